"""What travels to a host: the agent and all collectors as one archive, which Python there imports from memory. Nothing is written on the host."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_MODULES = (
    "hosts/agent.py",
    "hosts/job.py",
    "errors.py",
    "fsio.py",
    "i18n.py",
    "kernel_lines.py",
    "model.py",
    "patterns.py",
    "printable.py",
    "probes/worker.py",
    "text.py",
)
# It needs msgspec.
_NOT_THERE = ("snapshot_file.py",)
LEAST_PYTHON = (3, 10)

# One line for the shell there, short enough for any packet; what follows is not, so a host that stops here has an MTU that does not fit.
LOADER = (
    "import os,sys;"
    'print(\'{"id":-1,"version":[%d,%d]}\'%sys.version_info[:2],flush=True);'
    "i=sys.stdin.buffer;n=i.readline()or sys.exit();f=os.memfd_create('unhang');os.write(f,i.read(int(n)));"
    "sys.path.insert(0,'/proc/self/fd/%d'%f);"
    "from unhang.hosts.agent import main;main()"
)


@cache
def archive() -> bytes:
    """The modules, each package with an empty beginning: nothing else of ours is needed there."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in ("unhang", "unhang/hosts", "unhang/probes"):
            packed.writestr(f"{package}/__init__.py", "")
        for path in (*(_ROOT / m for m in _MODULES), *sorted((_ROOT / "facts").glob("*.py"))):
            if path.name not in _NOT_THERE:
                packed.write(path, f"unhang/{path.relative_to(_ROOT)}")
    return data.getvalue()
