"""Torch's own collectives: no deadline of ours bounds them, and the first that is called inside of one warns.

Ours do not take their place: a rank that calls torch's outside of such a block would wait forever for those inside. Nor is torch's call given up on a
single rank: the ranks would be out of step, and a late peer would still write into this one's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from unhang.runtime.log import log

_NAMES = "all_reduce all_gather all_gather_into_tensor all_gather_object all_to_all all_to_all_single barrier broadcast broadcast_object_list gather"
_NAMES += " reduce reduce_scatter reduce_scatter_tensor scatter send recv"


@functools.cache
def warn_inside(dist: Any, bound_s: Callable[[], float | None]) -> None:
    """Have the first call log a warning for which `bound_s` answers. What a script has imported by name before is not seen."""
    warned: list[str] = []

    def watched(name: str, plain: Any) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not warned and bound_s() is not None:
                warned.append(name)
                log.warning("unhang.deadline() does not bound torch.distributed.%s, only calls of unhang such as unhang.all_reduce", name)
            return plain(*args, **kwargs)

        return call

    for name in filter(dist.__dict__.__contains__, _NAMES.split()):
        setattr(dist, name, watched(name, getattr(dist, name)))
