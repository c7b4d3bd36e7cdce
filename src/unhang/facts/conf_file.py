"""The file of further settings that NCCL_CONF_FILE names."""

from __future__ import annotations

import os

from unhang.facts.host import Host


def named(host: Host) -> str | None:
    """Its path, from the root; None where none is named. Raises OSError where it is relative to a directory that is not known."""
    path = host.environ.get("NCCL_CONF_FILE")
    if not path or os.path.isabs(path):  # noqa: PTH117
        return path or None
    # NCCL opens it as it stands: it is relative to where each process is started.
    if host.is_live:
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    raise OSError(f"NCCL_CONF_FILE={path} is relative to the directory that a process is started in, which is not known")
