"""The bucket size of every DistributedDataParallel, as the user of unhang asked for it."""

from __future__ import annotations

import functools
import inspect
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
    initialise = kind.__init__
    signature = inspect.signature(initialise)
    # torch 2.4 and later: None stands for it.
    usual = getattr(module, "_DEFAULT_BUCKET_CAP_MB", 25)

    @functools.wraps(initialise)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # torch says better what is wrong with the call
            initialise(self, *args, **kwargs)
            return
        asked = bound.arguments.get("bucket_cap_mb")
        if (was := usual if asked is None else asked) != wanted:
            bound.arguments["bucket_cap_mb"] = wanted
            overrides.changed("DDP bucket_cap_mb", was=was, now=wanted)
        initialise(*bound.args, **bound.kwargs)

    kind.__init__ = __init__
