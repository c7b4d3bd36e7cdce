"""What Gloo lacks for a script that was written for NCCL, done with what Gloo has. Installed only where the hook makes every group Gloo.

Read in torch's sources (ProcessGroupGloo.cpp of 2.7, ProcessGroup.cpp, distributed_c10d.py) and run on CPU with 2.13. On CUDA tensors Gloo itself has
broadcast, all_reduce, reduce, all_gather, gather, scatter and all_to_all_single; it copies by way of the host there. Of the rest:

    send, recv, isend, irecv       hand the device's address to the socket                       staged in host memory
    all_to_all (lists)             missing until after 2.7, then of equal sizes                  all_to_all_single in host memory
    all_reduce_coalesced           refuses CUDA tensors                                          one all_reduce for each
    all_gather_coalesced           reads the device's address on the host: a segmentation fault  one all_gather for each
    reduce_scatter (lists)         missing until after 2.7                                       all_reduce in host memory
    reduce_scatter_tensor          ignores `op` (always SUM) until after 2.7, wants equal shapes all_reduce in host memory
    all_gather (lists)             of the input's shape                                          by number of elements; unequal: a broadcast of each
    all_gather_into_tensor         wants equal shapes                                            flat views
    ReduceOp.AVG                   missing until after 2.7, integers raise                       divided before (integers: after) a SUM
    barrier(device_ids=...)        older versions raise                                          without device_ids
    _coalescing_manager(device=)   "does not implement startCoalescing"                          each call by itself

Ranks, groups and tags go to torch's own functions as they came. A call that is to go on in the background is finished by wait(): what has to be
copied back is copied there, in the stream that is current then.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from . import overrides

_NOBODY = object()
_ASYNC = "AsyncCollectiveTensor"
_TRACED = ("FakeTensor", "FunctionalTensor")
_GLOO_HAS = ("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "all_to_all_single", "barrier")
_active = threading.local()
# Buffers of sends that nobody waits for: NCCL has taken its own copy, Gloo reads the buffer when the peer asks for it. Gloo tells that it has done so
# only to who waits. A thread cannot do that: woken while the interpreter ends, it ends the process by SIGABRT. So the next send waits for the oldest
# ones, once there are so many of them that those have long arrived. Whoever has more than that on the way would have waited with NCCL as well.
MOST_BYTES = 1 << 30
# However large they are.
LEAST = 16

# Objects that the garbage collector, in any thread and at any moment, has found unused; and those that are kept, the oldest first.
_abandoned: deque[tuple[Any, Any]] = deque()
_left: deque[tuple[Any, Any]] = deque()
_left_bytes = 0
_lock = threading.Lock()


def away(tensor: Any) -> bool:
    """Whether the tensor lies where Gloo's sockets cannot read it."""
    return bool(tensor.device.type == "cuda")


def on_gloo(c10d: Any, group: Any) -> bool:
    """Whether this process belongs to the group and the group is Gloo's."""
    try:
        return str(c10d.get_backend(group)) == "gloo"
    except Exception:
        return False


def patch(c10d: Any) -> None:
    """Replace functions of torch.distributed.distributed_c10d by some that work on Gloo."""
    work = _work_class(c10d)
    for stand_in in (
        _isend, _irecv, _send, _recv,
        _all_to_all, _all_reduce, _reduce, _all_reduce_coalesced, _all_gather, _all_gather_coalesced, _reduce_scatter, _barrier
    ):  # fmt: skip
        _replace(c10d, stand_in.__name__[1:], stand_in, work)
    for name in ("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"):
        _replace(c10d, name, _reduce_scatter_tensor, work)
    for name in ("all_gather_into_tensor", "all_gather_single", "_all_gather_base"):
        _replace(c10d, name, _all_gather_into_tensor, work)
    for name in ("broadcast", "gather", "scatter", "all_to_all_single"):
        _replace(c10d, name, None, work)
    if hasattr(c10d, "_coalescing_manager"):
        c10d._coalescing_manager = _coalescing_manager(c10d)


class _Coalesced:
    """What torch's own manager gives to the body of a `with`."""

    def __init__(self) -> None:
        self.works: list[Any] = []

    def append(self, work: Any = None) -> None:
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def _work_class(c10d: Any) -> Any:
    """A torch.distributed.Work whose end is Python's: libraries ask isinstance."""

    class HostWork(c10d.Work):  # type: ignore[misc]
        def __init__(self, works: list[Any], result: list[Any], finish: Callable[[], object] | None = None) -> None:
            super().__init__()
            self._works, self._result, self._finish = works, result, finish or _nothing
            self._over = False

        def wait(self, timeout: Any = None) -> bool:
            if not self._over:
                for work in self._works:
                    # A receiver that was waited for once cannot be waited for again.
                    _wait(work, timeout)
                self._finish()
                self._over = True
                self._finish = _nothing
            return True

        def is_completed(self) -> bool:
            if not self._over and all(work.is_completed() for work in self._works):
                # Whoever has seen this reads the result. A failure is told by wait and exception.
                with contextlib.suppress(RuntimeError):
                    self.wait()
                return True
            return self._over

        def is_success(self) -> bool:
            return self._over or all(work.is_success() for work in self._works)

        def exception(self) -> Any:
            return None if self._over else next((e for work in self._works if (e := work.exception()) is not None), None)

        def synchronize(self) -> None:
            self.wait()

        def block_current_stream(self) -> None:
            self.wait()

        def result(self) -> list[Any]:
            self.wait()
            return self._result

        def get_future(self) -> Any:
            # DDP waits for it in C++: only Gloo's own future ends by itself, and nobody else copies back in the stream of the caller.
            if self._finish is _nothing and len(self._works) == 1 and not self._over:
                return self._works[0].get_future()
            self.wait()
            future: Any = sys.modules["torch"].futures.Future()
            future.set_result(self._result)
            return future

        def source_rank(self) -> int:
            return int(self._works[-1]._source_rank())

        _source_rank = source_rank

    return HostWork


def _nothing() -> None:
    pass


def _wait(work: Any, timeout: Any) -> None:
    if timeout is None:
        work.wait()
    else:
        work.wait(timeout)


def _replace(c10d: Any, name: str, stand_in: Any, work: Any) -> None:
    """Replace `name` of c10d by `stand_in`, which gets the original, too; with None only count its calls within a block."""
    original = getattr(c10d, name, None)
    if original is None:
        return
    replacement = original if stand_in is None else functools.partial(stand_in, c10d, original, work)
    outside = getattr(c10d.GroupMember, "NON_GROUP_MEMBER", _NOBODY)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _arrived(args), {key: _arrived(value) for key, value in kwargs.items()}
        given = (*args, *kwargs.values())
        group = kwargs.get("group", next((a for a in args if isinstance(a, c10d.ProcessGroup)), None))
        if any(a is outside for a in given) or not on_gloo(c10d, group):
            return original(*args, **kwargs)
        if not all(map(plain, given)):
            _refuse_wrapped(name, given)
            return original(*args, **kwargs)
        coalesced: list[_Coalesced] = getattr(_active, "coalesced", [])
        # Of a stand-in that calls others only the outermost call is one of the block.
        _active.coalesced = []
        try:
            result = replacement(*args, **kwargs)
        finally:
            _active.coalesced = coalesced
        if coalesced and isinstance(result, c10d.Work):
            return _one_of(coalesced[-1], result, work)
        return result

    setattr(c10d, name, function)


def _one_of(block: _Coalesced, result: Any, work: Any) -> Any:
    """NCCL ends all calls of a block together: DeepSpeed waits for the last one only."""
    block.append(result if isinstance(result, work) else work([result], []))
    return work(block.works, [])


def plain(value: Any) -> bool:
    """False for a tensor that has no memory of its own: a fake one of the compiler's, a DTensor."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return not isinstance(value, torch.Tensor) or type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _arrived(value: Any) -> Any:
    """What functional collectives give out in eager code is what it holds, once that has come."""
    if isinstance(value, (list, tuple)) and any(type(one).__name__ == _ASYNC for one in value):
        return type(value)(map(_arrived, value))
    if type(value).__name__ != _ASYNC:
        return value
    value.trigger_wait()
    return value.elem


def _refuse_wrapped(name: str, given: Any) -> None:
    """Gloo would read an address that is none, or one on the device. What the compiler traces goes its own way."""
    if name in _GLOO_HAS:
        return
    for value in given:
        if isinstance(value, (list, tuple)):
            _refuse_wrapped(name, value)
        elif not plain(value) and type(value).__name__ not in _TRACED and away(value):
            raise TypeError(
                f"{name} of a {type(value).__name__}: Gloo takes plain tensors here; hand over the one that it holds (of a DTensor: to_local())"
            )


def _told(what: str, now: str) -> None:
    overrides.changed(what, was="NCCL's", now=now)


def _finished(work: Any, async_op: bool) -> Any:
    if async_op:
        return work
    work.wait()
    return None


def _staged(tensor: Any, *, filled: bool) -> Any:
    """A contiguous tensor in host memory: with the same content, or only of the same shape."""
    torch: Any = sys.modules["torch"]
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return host.copy_(tensor.detach()) if filled else host


def _put_back(pairs: list[tuple[Any, Any]]) -> Callable[[], None]:
    def finish() -> None:
        torch: Any = sys.modules["torch"]
        with torch.no_grad():
            for tensor, host in pairs:
                tensor.copy_(host)
                if host.is_cuda:
                    # It may come from the stream of the call, whose pool takes it back before the copy has run.
                    host.record_stream(torch.cuda.current_stream(host.device))

    return finish


def _isend(c10d: Any, original: Any, work: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not away(tensor):
        return original(tensor, *args, **kwargs)
    _told("send", "by way of host memory")
    _drop_sends()
    host = _staged(tensor, filled=True)
    sending = original(host, *args, **kwargs)
    if sending is None:
        return None
    staged = work([sending], [])
    staged._finish = _keep_send(staged, sending, host)
    return staged


def _irecv(c10d: Any, original: Any, work: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not away(tensor):
        return original(tensor, *args, **kwargs)
    _told("recv", "by way of host memory")
    host = _staged(tensor, filled=False)
    receiving = original(host, *args, **kwargs)
    return None if receiving is None else work([receiving], [tensor], _put_back([(tensor, host)]))


def _send(c10d: Any, original: Any, work: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if away(tensor):
        _told("send", "by way of host memory")
        tensor = _staged(tensor, filled=True)
    return original(tensor, *args, **kwargs)


def _recv(c10d: Any, original: Any, work: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not away(tensor):
        return original(tensor, *args, **kwargs)
    _told("recv", "by way of host memory")
    host = _staged(tensor, filled=False)
    source = original(host, *args, **kwargs)
    _put_back([(tensor, host)])()
    return source


def _all_to_all(
    c10d: Any, original: Any, work: Any, output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    _told("all_to_all", "by way of host memory")
    torch: Any = sys.modules["torch"]
    given = torch.cat([_staged(tensor, filled=True).view(-1) for tensor in input_tensor_list])
    taken = torch.empty(sum(tensor.numel() for tensor in output_tensor_list), dtype=given.dtype)
    sizes_in, sizes_out = ([tensor.numel() for tensor in tensors] for tensors in (input_tensor_list, output_tensor_list))
    exchange = c10d.all_to_all_single(taken, given, sizes_out, sizes_in, group=group, async_op=True)
    parts = taken.split(sizes_out)
    pairs = [(tensor, part.view(tensor.shape)) for tensor, part in zip(output_tensor_list, parts, strict=True)]
    return _finished(work([exchange], list(output_tensor_list), _put_back(pairs)), async_op)


def _all_reduce(c10d: Any, original: Any, work: Any, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    op = c10d.ReduceOp.SUM if op is None else op
    if op != c10d.ReduceOp.AVG:
        return original(tensor, op=op, group=group, async_op=async_op)
    _told("ReduceOp.AVG", "a SUM of quotients")
    torch: Any = sys.modules["torch"]
    size = c10d.get_world_size(group)
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    with torch.no_grad():
        if not whole:
            # As NCCL does: the sum of what was divided before does not overflow in half precision.
            tensor.div_(size)
    reducing = original(tensor, op=c10d.ReduceOp.SUM, group=group, async_op=True)
    finish = (lambda: tensor.div_(size, rounding_mode="trunc")) if whole else None
    return _finished(work([reducing], [tensor], finish), async_op)


def _reduce(
    c10d: Any, original: Any, work: Any, tensor: Any, dst: Any = None, op: Any = None, group: Any = None, async_op: bool = False, **more: Any
) -> Any:
    op = c10d.ReduceOp.SUM if op is None else op
    if op != c10d.ReduceOp.AVG:
        return original(tensor, dst, op=op, group=group, async_op=async_op, **more)
    group_dst = more.get("group_dst")
    root = group_dst if group_dst is not None else c10d.get_group_rank(group or c10d._get_default_group(), dst)
    # Only the root's tensor is to change.
    result = tensor if c10d.get_rank(group) == root else tensor.detach().clone()
    scratch = tensor.detach().clone()
    reducing = c10d.all_reduce(scratch, op=op, group=group, async_op=True)
    return _finished(work([reducing], [result], _put_back([(result, scratch)])), async_op)


def _all_reduce_coalesced(c10d: Any, original: Any, work: Any, tensors: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    op = c10d.ReduceOp.SUM if op is None else op
    tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    if not any(away(tensor) for tensor in tensors) and op != c10d.ReduceOp.AVG:
        return original(tensors, op=op, group=group, async_op=async_op)
    _told("all_reduce_coalesced", "one call for each tensor")
    all_of_them = work([c10d.all_reduce(tensor, op=op, group=group, async_op=True) for tensor in tensors], tensors)
    # This one gives out a future.
    return all_of_them.get_future() if async_op else _finished(all_of_them, False)


def _all_gather(c10d: Any, original: Any, work: Any, tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    shapes = {one.shape for one in tensor_list}
    if shapes == {tensor.shape}:
        return original(tensor_list, tensor, group=group, async_op=async_op)
    if {one.numel() for one in tensor_list} == {tensor.numel()}:
        parts = [tensor.new_empty(tensor.shape) for _ in tensor_list]
        gathering = original(parts, tensor, group=group, async_op=True)
        pairs = [(one, part.view(one.shape)) for one, part in zip(tensor_list, parts, strict=True)]
        return _finished(work([gathering], list(tensor_list), _put_back(pairs)), async_op)
    if len(shapes) == 1:
        # Gloo tells what is wrong with it.
        return original(tensor_list, tensor, group=group, async_op=async_op)
    _told("all_gather of unequal sizes", "a broadcast of each")
    group = group or c10d._get_default_group()
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        own = tensor_list[c10d.get_rank(group)]
        own.copy_(tensor.reshape(own.shape))
    works = [c10d.broadcast(one, c10d.get_global_rank(group, rank), group=group, async_op=True) for rank, one in enumerate(tensor_list)]
    return _finished(work(works, list(tensor_list)), async_op)


def _all_gather_coalesced(
    c10d: Any, original: Any, work: Any, output_tensor_lists: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    if not any(away(tensor) for tensor in input_tensor_list):
        return original(output_tensor_lists, input_tensor_list, group=group, async_op=async_op)
    _told("all_gather_coalesced", "one call for each tensor")
    works = [
        c10d.all_gather([outputs[i] for outputs in output_tensor_lists], tensor, group=group, async_op=True)
        for i, tensor in enumerate(input_tensor_list)
    ]
    all_of_them = work(works, list(output_tensor_lists))
    return all_of_them.get_future() if async_op else _finished(all_of_them, False)


def _reduce_scatter(
    c10d: Any, original: Any, work: Any, output: Any, input_list: Any, op: Any = None, group: Any = None, async_op: bool = False
) -> Any:
    _told("reduce_scatter", "an all_reduce in host memory")
    torch: Any = sys.modules["torch"]
    parts = torch.cat([_staged(tensor, filled=True).view(-1) for tensor in input_list])
    reducing = c10d.all_reduce(parts, op=op, group=group, async_op=True)
    own = parts.split([tensor.numel() for tensor in input_list])[c10d.get_rank(group)]
    return _finished(work([reducing], [output], _put_back([(output, own.view(output.shape))])), async_op)


def _reduce_scatter_tensor(
    c10d: Any, original: Any, work: Any, output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False
) -> Any:
    size = c10d.get_world_size(group)
    if input.numel() != output.numel() * size:
        raise ValueError(f"reduce_scatter_tensor: the input has {input.numel()} elements, not {size} times the {output.numel()} of the output")
    _told("reduce_scatter_tensor", "an all_reduce in host memory")
    parts = _staged(input, filled=True).view(size, -1)
    reducing = c10d.all_reduce(parts, op=op, group=group, async_op=True)
    own = parts[c10d.get_rank(group)].view(output.shape)
    return _finished(work([reducing], [output], _put_back([(output, own)])), async_op)


def _all_gather_into_tensor(
    c10d: Any, original: Any, work: Any, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    if output_tensor.is_contiguous():
        # Gloo cuts the output along its first dimension and compares shapes; NCCL only counts.
        output_tensor, input_tensor = output_tensor.view(-1), input_tensor.reshape(-1)
    return original(output_tensor, input_tensor, group=group, async_op=async_op)


def _barrier(c10d: Any, original: Any, work: Any, group: Any = None, async_op: bool = False, device_ids: Any = None, **more: Any) -> Any:
    return original(group or c10d._get_default_group(), async_op=async_op, **more)


def _coalescing_manager(c10d: Any) -> Any:
    original = c10d._coalescing_manager

    @functools.wraps(original)
    @contextlib.contextmanager
    def coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False, **more: Any) -> Iterator[Any]:
        if not on_gloo(c10d, group):
            with original(group, device, async_ops, **more) as manager:
                yield manager
            return
        coalesced: list[_Coalesced] = _active.__dict__.setdefault("coalesced", [])
        own = _Coalesced()
        coalesced.append(own)
        try:
            yield own
        finally:
            coalesced.remove(own)
        if not async_ops:
            own.wait()

    return coalescing_manager


def _keep_send(handle: Any, sending: Any, buffer: Any) -> Callable[[], object]:
    """Keep the buffer for as long as it is needed, should nobody have the handle any more; returns what is to be called once it was waited for."""
    # Appending is all that may happen there: it is called wherever Python collects garbage.
    finalizer = weakref.finalize(handle, _abandoned.append, (sending, buffer))
    finalizer.atexit = False
    return finalizer.detach


def _drop_sends() -> None:
    """Wait for the oldest, where there are too many."""
    global _left_bytes
    oldest = []
    with _lock:
        while _abandoned:
            _left.append(_abandoned.popleft())
            _left_bytes += _left[-1][1].nbytes
        while len(_left) > LEAST and _left_bytes > MOST_BYTES:
            oldest.append(_left.popleft())
            _left_bytes -= oldest[-1][1].nbytes
    for sending, _ in oldest:
        # Nobody waits for this send, so nobody needs its error.
        with contextlib.suppress(RuntimeError):
            sending.wait()
