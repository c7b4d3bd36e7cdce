"""What an environment can do, found out from within: run by its own Python, on this host or on another. Prints one JSON object.

Standard library only, and Python 3.8. Everything is bounded, and done in processes of its own: an import may crash or hang.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_BATCH = 20
_KEPT = 4000
_END_S = 10.0
_running: list[subprocess.Popen[bytes]] = []
_TOP_LEVEL = re.compile(r"([A-Za-z_]\w*)(?:\.py|\.(?:cpython-|abi3)[\w.-]*so|\.so|/.*\.(?:py|so))")
_HOOK = re.compile(r".*\.pth|(?:site|user)customize\.py")
# Put beside the packages by mistake; some of them run tests when they are imported.
_NOT_MEANT = {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools", "setup", "conftest"}
_IMPORTS = """
import importlib, json, os, sys, traceback
out = os.dup(1); os.dup2(2, 1)
say = lambda **told: os.write(out, (json.dumps(told) + "\\n").encode())
for name in sys.argv[1:]:
    say(begins=name)
    try:
        importlib.import_module(name)
    except BaseException:
        say(failed=name, output=traceback.format_exc()[-4000:])
os._exit(0)
"""
_GLOO = """
import torch, torch.distributed as d
d.init_process_group("gloo")
value = torch.ones(1024) * (d.get_rank() + 1)
d.all_reduce(value)
assert value.eq(3).all(), value
d.destroy_process_group()
"""
_NCCL = """
import json, torch, torch.distributed as d
print(json.dumps(".".join(map(str, torch.cuda.nccl.version())) if d.is_nccl_available() and torch.version.cuda else None))
"""


def environ() -> dict[str, str]:
    """Without what leads elsewhere, and without the environment's own bin on the PATH: it has to work when it is not activated."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    kept["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return kept


def run(argv: list[str], limit_s: float) -> tuple[int | None, str]:
    """Exit code, None if it did not end in time, and the end of its output."""
    with tempfile.TemporaryDirectory(prefix="unhang-pack-") as cwd, open(f"{cwd}/output", "wb+") as output:
        try:
            process = started(argv, stdout=output, stderr=subprocess.STDOUT, cwd=cwd)
        except OSError as e:
            return 127, str(e)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT))
        return code, output.read().decode(errors="replace")


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: torchrun ends its ranks, which have sessions of their own, when it is asked to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            break
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def started(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environ(), start_new_session=True, **options)
    _running.append(process)
    return process


def interrupted(number: int, frame: Any) -> None:
    for process in _running:
        if process.poll() is None:
            end(process)
    os._exit(128 + number)


def modules(places: list[str]) -> dict[str, str]:
    """The top-level modules of all distributions, each with its distribution."""
    found: dict[str, str] = {}
    for d in importlib.metadata.distributions(path=places):
        name = d.metadata["Name"] or "?"
        listed = {m[1] for f in d.files or () for m in [_TOP_LEVEL.fullmatch(str(f))] if m and not m[1].startswith("__editable__")}
        # An editable install lists none of its modules; of others the text names some that they do not have (deepspeed-kernels).
        listed = listed or {n for n in (d.read_text("top_level.txt") or "").split() if n.isidentifier()}
        found |= dict.fromkeys(listed - _NOT_MEANT, name)
        guess = re.sub(r"[-.]+", "_", name).lower()
        if not listed and guess.isidentifier() and (d.read_text("direct_url.json") or "").find("editable") >= 0:
            found[guess] = name
    return found


def imports(names: list[str], limit_s: float) -> list[dict[str, Any]]:
    """Import each; what cannot be imported, with its traceback. After a crash or at the bound it goes on with the next one."""
    failed: list[dict[str, Any]] = []
    left = list(names)
    while left:
        read, write = os.pipe()
        process = started([sys.executable, "-I", "-c", _IMPORTS, *left], stdout=write, stderr=subprocess.DEVNULL, cwd="/")
        os.close(write)
        now, waited, buffer = None, False, b""
        until = time.monotonic() + limit_s
        with open(read, "rb", buffering=0) as stream, selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, until - time.monotonic())):
                    waited = True
                    break
                data = stream.read(65536)
                if not data:
                    break
                *lines, buffer = (buffer + data).split(b"\n")
                for told in map(json.loads, lines):
                    if "begins" in told:
                        now = told["begins"]
                        left.remove(now)
                        until = time.monotonic() + limit_s
                    else:
                        failed.append({"module": told["failed"], "output": told["output"]})
        if not waited:
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                waited = True
        end(process)
        if now is None:
            left, now = left[1:], left[0]
        if waited or process.returncode != 0:
            how = f"it did not end within {limit_s:g} s" if waited else f"it ended Python with {process.returncode}"
            failed.append({"module": now, "output": how})
    return failed


def scripts(places: list[str], limit_s: float) -> tuple[int, list[dict[str, Any]]]:
    names = {e.name for d in importlib.metadata.distributions(path=places) for e in d.entry_points if e.group == "console_scripts"}
    paths = [p for p in (os.path.join(sys.prefix, "bin", n) for n in sorted(names)) if os.path.exists(p)]

    def failure(path: str) -> dict[str, Any] | None:
        code, output = run([path, "--help"], limit_s)
        crashed = code is not None and (code < 0 or code in (126, 127))
        broken = crashed or re.search(r"^(?:ImportError|ModuleNotFoundError|importlib\.metadata\.\w+Error)\b", output, re.M)
        # What takes no --help, or takes long, has started.
        return {"script": path, "output": output} if code and broken else None

    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        return len(paths), [found for found in pool.map(failure, paths) if found is not None]


def examine(limit_s: float) -> dict[str, Any]:
    paths = sysconfig.get_paths()
    places = list(dict.fromkeys((paths["purelib"], paths["platlib"])))
    known = modules(places)
    names = sorted(known)
    batches = [names[i : i + _BATCH] for i in range(0, len(names), _BATCH)]
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        failed = [f for found in pool.map(lambda batch: imports(batch, limit_s), batches) for f in found]
        # Some disturb each other (pip and setuptools both bring distutils): what counts is what fails by itself.
        failed = [f for found in pool.map(lambda f: imports([f["module"]], limit_s), failed) for f in found]
    told: dict[str, Any] = {"prefix": sys.prefix, "base": sys.base_prefix, "imports": {"tried": len(names), "failed": failed}, "modules": known}
    pip = [sys.executable, "-I", "-m", "pip", "check"]
    # Files that Python runs at every start and that no distribution installed.
    brought = {str(f) for d in importlib.metadata.distributions(path=places) for f in d.files or ()}
    tops = {os.path.realpath(place) for place in places if os.path.isdir(place)}
    hooks = (os.path.join(top, n) for top in tops for n in os.listdir(top) if _HOOK.fullmatch(n) and n not in brought)
    told["hooks"] = sorted(os.path.relpath(hook, os.path.realpath(sys.prefix)) for hook in hooks)
    told["pip"] = run(pip, limit_s) if "pip" in known else None
    tried, broken = scripts(places, limit_s)
    told["scripts"] = {"tried": tried, "failed": broken}
    told["gloo"] = None
    torchrun = os.path.join(sys.prefix, "bin", "torchrun")
    if os.path.exists(torchrun):
        with tempfile.TemporaryDirectory(prefix="unhang-pack-") as directory:
            script = os.path.join(directory, "all_reduce.py")
            with open(script, "w") as file:
                file.write(_GLOO)
            told["gloo"] = run([torchrun, "--standalone", "--nproc-per-node", "2", script], 2 * limit_s)
    told["nccl"] = run([sys.executable, "-I", "-c", _NCCL], limit_s)
    return told


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    print(json.dumps(examine(float(sys.argv[1]))))  # noqa: T201
