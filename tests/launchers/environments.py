"""An environment of its own for each launcher, made once per machine from a lock file: `python -m tests.launchers.environments [NAME...]`

It sees the packages of the Python that makes it (torch, numpy, pyarrow; not unhang, which is installed editable there) and holds only what the lock
file names, before those. Nothing is resolved (--no-deps), so nothing brings another torch with gigabytes of CUDA. The lock files were made by
installing each launcher beside torch and writing down what had come; what no test imports is left out of LLaMA-Factory's. Everything lies in
`.venv-launchers/`; what was interrupted is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1] / ".venv-launchers"
INSTALL_TIMEOUT_S = 1200.0

# torch's own is in another environment; LLaMA-Factory starts the one on PATH.
TORCHRUN = """#!{python}
import sys
from torch.distributed.run import main
sys.exit(main())
"""


def supported() -> bool:
    """LLaMA-Factory and today's pandas need Python 3.11."""
    return sys.version_info >= (3, 11)


class NotMade(Exception):
    """It cannot be installed: pip's own words."""


def environment(name: str, *, again: bool = False) -> Path:
    """The directory of the environment, made if need be. Raises NotMade; what could not be made is tried `again` only when asked for."""
    requirements = HERE / "requirements" / f"{name}.txt"
    marks = [requirements.read_bytes(), sys.version.encode(), sysconfig.get_path("purelib").encode()]
    made_of = hashlib.sha256(b"\0".join(marks)).hexdigest()
    path = ROOT / name
    complete = path / "complete"
    failed = ROOT / f"{name}.failed"
    ROOT.mkdir(exist_ok=True)
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.is_file() or complete.read_text() != made_of:
            if failed.is_file() and not again:
                raise NotMade(failed.read_text())
            shutil.rmtree(path, ignore_errors=True)
            try:
                _make(path, requirements)
            except NotMade as e:
                failed.write_text(str(e))
                raise
            failed.unlink(missing_ok=True)
            complete.write_text(made_of)
    return path


def _make(path: Path, requirements: Path) -> None:
    began = time.monotonic()
    print(f"{path}: installing {requirements.name}", file=sys.stderr, flush=True)
    venv.create(path, with_pip=False, symlinks=True)
    python = path / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip())
    # pip too is found there.
    (packages / "_of_the_maker.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # What the maker happens to have is installed all the same: its commands are in its own bin.
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--ignore-installed", "--requirement", str(requirements)]
    try:
        pip = subprocess.run(
            install, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise NotMade(f"{requirements.name}: pip was not done after {INSTALL_TIMEOUT_S:.0f} s") from e
    if pip.returncode != 0:
        raise NotMade(f"{requirements.name}: pip ended with {pip.returncode}:\n{pip.stdout}")
    for stub in sorted((HERE / "stubs" / requirements.stem).glob("*")):
        shutil.copytree(stub, packages / stub.name)
    torchrun = path / "bin" / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=python))
    torchrun.chmod(0o755)
    print(f"{path}: made in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if not supported():
        print("the lock files of the launchers are of Python 3.11 and newer: their tests will be skipped", file=sys.stderr)
        sys.exit(0)
    wrong = []
    for name in sys.argv[1:] or sorted(p.stem for p in (HERE / "requirements").glob("*.txt")):
        try:
            environment(name, again=True)
        except NotMade as e:
            wrong.append(name)
            print(f"{name}: the tests of this launcher will fail: {e}", file=sys.stderr)
    sys.exit(1 if wrong else 0)
