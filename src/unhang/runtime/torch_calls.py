"""Torch's own collectives: no deadline of ours bounds them, and the first that is called inside of one warns.

Ours do not take their place: a rank that calls torch's outside of such a block would wait forever for those inside. Nor is torch's call given up on a
single rank: the ranks would be out of step, and a late peer would still write into this one's memory.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from unhang.runtime.log import log

_NAMES = "all_reduce all_gather all_gather_into_tensor all_gather_object all_to_all all_to_all_single barrier broadcast broadcast_object_list gather"
_NAMES += " reduce reduce_scatter reduce_scatter_tensor scatter send recv"
_lock, _blocks, _warned, _plain = threading.Lock(), 0, list[str](), dict[Any, Any]()


def blocks(more: int, bound_s: Callable[[], float | None]) -> None:
    """So many more are open. While any is, the first call for which `bound_s` answers logs a warning; then torch has its own functions again."""
    global _blocks
    with _lock:
        _blocks += more
        dist = sys.modules.get("torch.distributed")
        for name in filter(vars(dist).__contains__, _NAMES.split()) if dist is not None else ():
            plain = _plain.get(now := getattr(dist, name), now)
            setattr(dist, name, _watched(name, plain, bound_s) if _blocks else plain)


@functools.cache  # What torch.compile has made of a block is made again for each other function.
def _watched(name: str, plain: Any, bound_s: Callable[[], float | None]) -> Any:
    is_compiling = sys.modules["torch"].compiler.is_compiling

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and not _warned and bound_s() is not None:
            _warned.append(name)
            log.warning("unhang.deadline() does not bound torch.distributed.%s, only calls of unhang such as unhang.all_reduce", name)
        return plain(*args, **kwargs)

    _plain[call] = plain
    return call
