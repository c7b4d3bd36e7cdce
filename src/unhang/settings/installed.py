"""What the training's Python would load: asked of that Python, which reads metadata and imports nothing."""

from __future__ import annotations

import json
import re

from unhang.facts import gpu, which_nccl
from unhang.facts.host import Host, NotHere
from unhang.settings.setting import Installed

PACKAGES = ("accelerate", "deepspeed", "lightning", "transformers", "llamafactory", "ray")
# Nothing is imported from the directory that we are called in.
# The first of several that are found is the one that would be imported. A wheel of NCCL beside torch is torch's.
_ASK = """
import sys
sys.path[:] = filter(None, sys.path)
import importlib.metadata as m, json
found, wheels, site = {}, set(), None
for d in m.distributions():
    name = (d.metadata["Name"] or "").lower().replace("_", "-")
    if name not in found:
        found[name] = d.version
        if name == "torch":
            site = str(d.locate_file(""))
    if name.startswith("nvidia-nccl-cu"):
        wheels.add(d.version)
print(json.dumps([found, sorted(wheels), site]))
"""


def installed(python: str, host: Host | None = None, *, timeout_s: float = 20.0) -> Installed:
    """Nothing is there where that Python cannot be asked."""
    host = host or Host()
    # What it prints may follow what a sitecustomize prints.
    found, wheels, site = _asked(host, python, timeout_s)
    torch = re.match(r"(\d+)\.(\d+)", found.get("torch", ""))
    nccl: tuple[int, ...] | None = None
    if torch is not None and site is not None:
        wheel = None if not wheels else wheels[0] if len(wheels) == 1 else ""
        which = which_nccl.of_torch(host, which_nccl.Place(site=site.rstrip("/"), version=found["torch"], wheel=wheel))
        # RCCL reads NCCL's names by NCCL's code, and counts its releases in the same way.
        nccl = None if which is None else tuple(int(n) for n in re.findall(r"\d+", which.version)[:3])
    packages = {name: found[name] for name in PACKAGES if name in found}
    if "lightning" not in packages and "pytorch-lightning" in found:
        packages["lightning"] = found["pytorch-lightning"]
    return Installed(torch=(int(torch[1]), int(torch[2])) if torch else None, nccl=nccl, packages=packages, gpus=_gpus(host), python=python)


def _asked(host: Host, python: str, timeout_s: float) -> tuple[dict[str, str], list[str], str | None]:
    try:
        # Not attached, should we run inside of a training that is.
        ran = host.run(["env", "UNHANG_ATTACH=0", python, "-c", _ASK], timeout_s=timeout_s)
        found, wheels, site = json.loads(ran.out.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}, [], None
    return found, wheels, site


def _gpus(host: Host) -> int:
    """How many a process started here would see."""
    try:
        seen = gpu.collect(host)
    except (NotHere, OSError):
        return 0
    if seen.visible is None:
        return len(seen.gpus)
    # Everything behind -1 is hidden.
    named = re.split(r",?\s*-1", seen.visible)[0]
    return min(len(seen.gpus), len([n for n in named.split(",") if n.strip()]))
