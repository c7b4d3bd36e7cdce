"""How long does it take to move an environment, how large does it get, and at what peak of memory? Against other packers; one JSON line last.

All tools pack one environment, in turns, `--repeats` times, with a warm file cache. `unhang` takes the interpreter along and leaves `__pycache__`
behind. `copy` is `cp -a`: as fast as this disk takes so many files. Tools that are missing or refuse are listed. All of them get a copy without the
links of editable installs, which venv-pack refuses; conda-pack takes it for a conda prefix, since it gets an empty `conda-meta`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ZSTD = "zstd -q -T0 -3"
# Program that has to be there, how it packs {env} into {file}, and how it unpacks that into {dest}.
TOOLS = {
    "unhang": ("", "{unhang} pack save {env} {file}", "{unhang} pack load {file} {dest}/env"),
    "tar + gzip": ("tar", "tar -C {env} -czf {file} .", "tar -C {dest} -xzf {file}"),
    "tar + zstd": ("zstd", "tar -C {env} -cf - . | " + ZSTD + " -o {file}", "zstd -q -dc {file} | tar -C {dest} -xf -"),
    "tar + zstd --long, no __pycache__": (
        "zstd",
        "tar -C {env} --exclude=__pycache__ -cf - . | " + ZSTD + " --long=27 -o {file}",
        "zstd -q -dc {file} | tar -C {dest} -xf -",
    ),
    "venv-pack": ("venv-pack", "venv-pack -q -p {env} -o {file}.tar.gz && mv {file}.tar.gz {file}", "tar -C {dest} -xzf {file}"),
    "conda-pack": (
        "conda-pack",
        (
            "mkdir {env}/conda-meta && touch {env}/conda-meta/history && conda-pack -q -j -1 -p {env} -o {file}.tar.gz; "
            "done=$?; rm -r {env}/conda-meta; mv {file}.tar.gz {file}; exit $done"
        ),
        "tar -C {dest} -xzf {file} && {dest}/bin/conda-unpack",
    ),
    "copy": ("cp", "touch {file}", "cp -a {env}/. {dest}"),
}


def timed(command: str) -> tuple[float, float]:
    """Seconds, and the peak of memory of its largest process in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(" ".join(said.split())[:200] or f"it ended with {process.returncode}")
    return took, usage.ru_maxrss / 1024


def measured(env: Path, directory: str | None, missing: dict[str, str]) -> Iterator[tuple[str, dict[str, float]]]:
    unhang = f"{sys.executable} -m unhang"
    for name, (program, packs, unpacks) in TOOLS.items():
        if program and shutil.which(program) is None:
            missing[name] = f"{program} is not installed"
        else:
            with tempfile.TemporaryDirectory(prefix="unhang-pack-", dir=directory) as place:
                file, dest = Path(place) / "env.packed", Path(place) / "unpacked"
                dest.mkdir()
                where = {"env": env, "file": file, "dest": dest, "unhang": unhang}
                try:
                    save_s, save_mb = timed(packs.format(**where))
                    load_s, load_mb = timed(unpacks.format(**where))
                except RuntimeError as e:
                    missing[name] = str(e)
                    continue
                yield name, {"save_s": save_s, "load_s": load_s, "MB": file.stat().st_size / 1e6, "save_peak_MB": save_mb, "load_peak_MB": load_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default=sys.prefix)
    parser.add_argument("--directory", help="where archives and copies go for the time being")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    missing: dict[str, str] = {}
    runs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="unhang-pack-", dir=args.directory) as place:
        env = Path(place) / "env"
        subprocess.run(["cp", "-a", f"{args.env}/.", env], check=True)
        for link in env.glob("lib/python3*/site-packages/*editable*.pth"):
            link.unlink()
        files = [p for p in env.rglob("*") if p.is_file() and not p.is_symlink()]
        total = sum(p.stat().st_size for p in files)
        for _ in range(args.repeats):
            for name, numbers in measured(env, args.directory, missing):
                runs.setdefault(name, []).append(numbers)
                sys.stderr.write(f"{name}: {numbers}\n")
    found: dict[str, Any] = {}
    for name, taken in runs.items():
        columns = {key: sorted(round(r[key], 2) for r in taken) for key in taken[0]}
        found[name] = {
            key: {"median": statistics.median(v), "min": v[0], "max": v[-1]} if key.endswith("_s") else v[len(v) // 2] for key, v in columns.items()
        }
    print(
        json.dumps(
            {
                "benchmark": "pack",
                "unit": "s, MB",
                "files": len(files),
                "environment_MB": round(total / 1e6),
                "n": args.repeats,
                "found": found,
                "missing": [f"{name}: {why}" for name, why in missing.items()],
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            }
        )
    )


if __name__ == "__main__":
    main()
