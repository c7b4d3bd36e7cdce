"""container-capability: a capability, a device or a mount is missing in the container."""

from __future__ import annotations

from unhang.knowledge.judge import Findings, Found, HostView


def on_host(host: HostView) -> Findings:
    from unhang.facts import container, infiniband

    seen = host.container
    if seen.kind in ("bare", "slurm", "systemd", "wsl"):
        return
    here = {d.path: d.usable for d in seen.devices}
    if seen.nvidia_gpus_on_bus and "/dev/nvidiactl" not in here:
        yield Found("no-gpus", seen=seen)
    elif "/dev/nvidiactl" in here and "/dev/nvidia-uvm" not in here:
        yield Found("no-uvm", here=[p for p in here if p.startswith("/dev/nvidia")])
    refused = [path for path, usable in here.items() if path.startswith("/dev/nvidia") and not path.startswith("/dev/nvidia-caps/") and not usable]
    if refused:
        yield Found("not-permitted", refused=refused)
    given = seen.nvidia_driver_capabilities
    if given and given != "all" and "/dev/nvidiactl" in here and "compute" not in given.split(","):
        yield Found("no-compute", given=given)
    if container.lacks_verbs(host.snapshot):
        adapters = host.get(infiniband.SUBJECT)
        # Only NCCL uses them, between hosts.
        needed = bool(seen.nvidia_gpus_on_bus and host.several and (adapters is None or infiniband.active(adapters)))
        yield Found("no-verbs", needed=needed, seen=seen)
