"""The bucket size of every DistributedDataParallel, as the user of unhang asked for it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from . import overrides
from .protocol import ENV_BUCKET


def patch(module: ModuleType) -> None:
    """torch.nn.parallel.distributed."""
    wanted = overrides.count(ENV_BUCKET, least=1)
    if wanted is None:
        return
    kind: Any = module.DistributedDataParallel

    def change(arguments: dict[str, Any], _: Any) -> None:
        asked = arguments.get("bucket_cap_mb")
        # torch 2.4 and later: None stands for it.
        if (was := getattr(module, "_DEFAULT_BUCKET_CAP_MB", 25) if asked is None else asked) != wanted:
            arguments["bucket_cap_mb"] = wanted
            overrides.changed("DDP bucket_cap_mb", was=was, now=wanted)

    kind.__init__ = overrides.rebound(kind.__init__, change)
