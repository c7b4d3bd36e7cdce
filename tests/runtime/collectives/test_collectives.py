"""What the collectives compute, for all that can be given to them: against the same computed by one process."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unhang
from unhang.runtime.collectives import guarded_group as circles

pytestmark = pytest.mark.torch

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*INTEGERS, *FLOATS, *COMPLEX, torch.bool)
LAYOUTS = (
    "contiguous",
    "transposed",
    "permuted",
    "columns",
    "strided",
    "diagonal",
    "offset",
    "channels_last",
    "scalar",
    "empty",
    "empty_expanded",
    "one_row_expanded",
    "negated",
    "conjugated",
    "overlapping",
)


@dataclass(frozen=True)
class Case:
    layout: str
    dtype: torch.dtype
    numel: int
    seed: int
    op: str = "sum"
    chunk_bytes: int | str = "auto"
    out: str = ""
    atomic: bool = False


def operations(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype is torch.bool:
        return ("sum", "min", "max", "product", "band", "bor", "bxor")
    if dtype in INTEGERS:
        return ("sum", "min", "max", "product", "band", "bor", "bxor")
    return ("sum", "avg", "mean") if dtype in COMPLEX else ("sum", "avg", "min", "max", "product")


@st.composite
def cases(draw: st.DrawFn, layouts: tuple[str, ...] = LAYOUTS) -> Case:
    layout = draw(st.sampled_from(layouts))
    dtype = draw(st.sampled_from(COMPLEX if layout == "conjugated" else [d for d in DTYPES if d is not torch.bool or layout != "negated"]))
    return Case(
        layout=layout,
        dtype=dtype,
        numel=draw(st.sampled_from([1, 2, 7, 96, 1000, 4111])),
        seed=draw(st.integers(0, 99)),
        op=draw(st.sampled_from(operations(dtype))),
        chunk_bytes=draw(st.sampled_from(["auto", 1024, 1500, 5000])),
        out=draw(st.sampled_from(["", "", "contiguous", "columns"])),
        atomic=draw(st.booleans()),
    )


def memory(case: Case, rank: int, numel: int) -> torch.Tensor:
    """Small whole numbers, which add up and multiply exactly in every type."""
    generator = torch.Generator().manual_seed(case.seed * 7 + rank)
    found = torch.randint(0, 2 if case.dtype is torch.bool else 4, (numel,), generator=generator)
    if case.dtype in COMPLEX:
        return torch.complex(found.double(), torch.randint(0, 4, (numel,), generator=generator).double()).to(case.dtype)
    return found.to(case.dtype)


def laid(layout: str, case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor, and the memory that it lies in."""
    n = case.numel
    rows = max(1, n // 6)
    base = memory(case, rank, 24 * rows + 64)
    match layout:
        case "contiguous":
            tensor = base[: 6 * rows].view(rows, 6)
        case "transposed":
            tensor = base[: 6 * rows].view(rows, 6).t()
        case "permuted":
            tensor = base[: 6 * rows].view(2, 3, rows).permute(2, 0, 1)
        case "columns":
            tensor = base[: 9 * rows].view(rows, 9)[:, 1:7]
        case "strided":
            tensor = base[5 : 5 + 18 * rows : 3].view(rows, 6)
        case "diagonal":
            tensor = base[:64].view(8, 8).diagonal()
        case "offset":
            tensor = base[7 : 7 + n]
        case "channels_last":
            tensor = base[: 12 * rows].view(2, rows, 3, 2).permute(0, 3, 1, 2)
        case "scalar":
            tensor = base[3]
        case "empty":
            tensor = base[:0].view(0, 3)
        case "empty_expanded":
            tensor = base[:0].view(0, 1).expand(0, 3)
        case "one_row_expanded":
            tensor = base[:6].as_strided((1, 6), (0, 1))
        case "negated":
            tensor = torch._neg_view(base[: 6 * rows].view(rows, 6))
        case "conjugated":
            tensor = base[: 6 * rows].view(rows, 6).conj()
        case "overlapping":
            tensor = base[: n + 2].unfold(0, 3, 1)
    return tensor, base


def expected(case: Case, layout: str, size: int) -> torch.Tensor:
    """One process has all ranks' tensors."""
    parts = [laid(layout, case, rank)[0].clone() for rank in range(size)]
    if case.dtype is torch.bool:
        logical = {"sum": torch.logical_or, "bor": torch.logical_or, "max": torch.logical_or, "bxor": torch.logical_xor}
        return functools.reduce(logical.get(case.op, torch.logical_and), parts)
    take = {
        "sum": torch.add,
        "avg": torch.add,
        "mean": torch.add,
        "min": torch.minimum,
        "max": torch.maximum,
        "product": torch.mul,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    found = functools.reduce(take[case.op], parts)
    return found / size if case.op in ("avg", "mean") else found


def same(found: torch.Tensor, wanted: torch.Tensor, case: Case) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if case.op in ("avg", "mean"):
        torch.testing.assert_close(found, wanted)
    else:
        assert torch.equal(found, wanted), (found, wanted)


def untouched(tensor: torch.Tensor, base: torch.Tensor, before: torch.Tensor) -> None:
    """Whatever lies beside the tensor is as it was."""
    if tensor.is_neg() or tensor.is_conj():
        return
    own = torch.zeros(base.numel(), dtype=torch.bool)
    own.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    assert torch.equal(base[~own], before[~own])


def reduced(rank: int, size: int, case: Case) -> None:
    tensor, base = laid(case.layout, case, rank)
    before, given_ = base.clone(), tensor.clone()
    out, out_base, out_before = None, None, None
    if case.out:
        out_base = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 3, dtype=case.dtype) if tensor.dim() else torch.zeros((), dtype=case.dtype)
        out = out_base[..., 1:-2] if tensor.dim() and case.out == "columns" else torch.zeros(tensor.shape, dtype=case.dtype)
        out_before = out_base.clone()
    found = unhang.all_reduce(tensor, case.op, chunk_bytes=case.chunk_bytes, out=out, atomic=case.atomic)
    same(found, expected(case, case.layout, size), case)
    if out is None:
        assert found is tensor
        untouched(tensor, base, before)
    else:
        assert found is out and torch.equal(tensor, given_)
        if case.out == "columns" and tensor.dim() and out_base is not None and out_before is not None:
            assert torch.equal(out_base[..., :1], out_before[..., :1]) and torch.equal(out_base[..., -2:], out_before[..., -2:])


@settings(max_examples=120)
@given(case=cases(), size=st.sampled_from([2, 3, 4]))
def test_an_all_reduce_is_what_one_process_would_compute(worlds, case, size):
    worlds(size)(reduced, size, case)


def of_floats(rank: int, size: int, numel: int, chunk_bytes: int | str, dtype: torch.dtype, op: str) -> None:
    parts = [torch.randn(numel, generator=torch.Generator().manual_seed(r), dtype=torch.float64).to(dtype) for r in range(size)]
    total = functools.reduce(torch.add, [p.double() for p in parts])
    found = unhang.all_reduce(parts[rank].clone(), op, chunk_bytes=chunk_bytes)
    # What is rounded in every step is the partial sum, not what is left of it.
    scale = functools.reduce(torch.add, [p.double().abs() for p in parts])
    bound = (size + 1) * torch.finfo(dtype).eps * scale / (size if op == "avg" else 1)
    assert ((found.double() - (total / size if op == "avg" else total)).abs() <= bound + torch.finfo(dtype).tiny).all()


@settings(max_examples=25)
@given(
    size=st.sampled_from([2, 3, 4]),
    numel=st.integers(1, 5000),
    chunk_bytes=st.sampled_from(["auto", 1024, 4096]),
    dtype=st.sampled_from(FLOATS),
    op=st.sampled_from(["sum", "avg"]),
)
def test_sums_of_floats_are_close(worlds, size, numel, chunk_bytes, dtype, op):
    worlds(size)(of_floats, size, numel, chunk_bytes, dtype, op)


def averaged_half(rank: int) -> float:
    return unhang.all_reduce(torch.full((4,), 60000.0, dtype=torch.float16), "avg")[0].item()


KINDS = [
    *((op, dtype) for op in ("sum", "avg", "max", "product") for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)),
    *((op, dtype) for op in ("sum", "min", "bor") for dtype in (torch.int64, torch.int16, torch.uint8, torch.bool)),
    *((op, torch.complex64) for op in ("sum", "avg")),
]


def comes_again(rank: int, op: str, dtype: torch.dtype) -> list[list]:
    found = []
    for _ in range(5):
        tensor = torch.tensor([1, 2, 3]).to(dtype) * (1 + rank)
        # Not contiguous, where it comes the third time.
        tensor = torch.stack([tensor, tensor], dim=1)[:, 0] if len(found) == 2 else tensor
        found.append(unhang.all_reduce(tensor, op, deadline=20).tolist())
    return found


@pytest.mark.parametrize(("op", "dtype"), KINDS)
def test_a_call_that_comes_again_gives_what_it_gave_at_first(worlds, op, dtype):
    """By another way: it has a lane of its own then."""
    (first, *others), other = worlds(2)(comes_again, op, dtype)
    assert [first] * 4 == others and other == [first] * 5


def test_an_average_that_fits_does_not_overflow_on_its_way(worlds):
    assert worlds(2)(averaged_half) == [60000.0, 60000.0]


def sent(rank: int, size: int, case: Case, src: int) -> None:
    tensor, base = laid(case.layout, case, rank)
    before = base.clone()
    assert unhang.broadcast(tensor, src, chunk_bytes=case.chunk_bytes) is tensor
    same(tensor, laid(case.layout, case, src)[0].clone(), Case(case.layout, case.dtype, case.numel, case.seed))
    untouched(tensor, base, before)


@settings(max_examples=40)
@given(case=cases(), size=st.sampled_from([2, 3, 4]), data=st.data())
def test_a_broadcast_is_the_root_s(worlds, case, size, data):
    worlds(size)(sent, size, case, data.draw(st.integers(0, size - 1)))


def gathered(rank: int, size: int, case: Case) -> None:
    tensor, base = laid(case.layout, case, rank)
    before = base.clone()
    found = unhang.all_gather(tensor)
    assert len(found) == size and torch.equal(base, before)
    for other, part in enumerate(found):
        same(part, laid(case.layout, case, other)[0].clone(), Case(case.layout, case.dtype, case.numel, case.seed))


@settings(max_examples=40)
@given(case=cases(), size=st.sampled_from([2, 3, 4]))
def test_a_gather_is_everybody_s(worlds, case, size):
    worlds(size)(gathered, size, case)


def scattered(rank: int, size: int, case: Case) -> None:
    def whole(r: int) -> torch.Tensor:
        tensor, _ = laid(case.layout, case, r)
        return torch.stack([tensor] * size).transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else torch.stack([tensor] * size)

    tensor = whole(rank)
    before = tensor.clone()
    found = unhang.reduce_scatter(tensor, case.op, chunk_bytes=case.chunk_bytes)
    assert torch.equal(tensor, before)
    same(found, expected(case, case.layout, size).unsqueeze(0), case)


@settings(max_examples=30)
@given(case=cases(), size=st.sampled_from([2, 3, 4]))
def test_a_reduce_scatter_is_this_rank_s_part(worlds, case, size):
    worlds(size)(scattered, size, case)


def empty_parts(rank: int) -> tuple[int, ...]:
    return tuple(unhang.reduce_scatter(torch.empty(0, 3)).shape)


def test_a_reduce_scatter_of_nothing(worlds):
    assert worlds(2)(empty_parts) == [(0, 3), (0, 3)]


def objects(rank: int, given_: list) -> list:
    return unhang.all_gather_object(given_[rank])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.binary(max_size=700),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=25)
@given(data=st.data(), size=st.sampled_from([2, 3, 4]))
def test_objects_come_as_they_were(worlds, data, size):
    values = [data.draw(anything) for _ in range(size)]
    assert worlds(size)(objects, values) == [values] * size


def lazy(tensor: torch.Tensor) -> torch.Tensor:
    """On a device that neither Gloo nor NCCL has ever heard of, which every build of torch has."""
    import torch._lazy.ts_backend

    with contextlib.suppress(RuntimeError):
        # It may be there already.
        torch._lazy.ts_backend.init()
    return tensor.to("lazy")


def elsewhere(rank: int, size: int) -> None:
    columns = lazy(torch.arange(12.0).reshape(4, 3) * (rank + 1))[:, 1]
    total = size * (size + 1) / 2
    wanted = torch.arange(12.0).reshape(4, 3)[:, 1] * total
    found = unhang.all_reduce(columns)
    assert found is columns and found.device.type == "lazy" and torch.equal(found.cpu(), wanted)
    truth = lazy(torch.tensor([rank == 0, False]))
    assert unhang.all_reduce(truth, chunk_bytes=1024, atomic=True).cpu().tolist() == [True, False]
    out = lazy(torch.zeros(3, dtype=torch.int16))
    unhang.all_reduce(lazy(torch.full((3,), rank + 1, dtype=torch.int16)), out=out)
    assert out.cpu().tolist() == [int(total)] * 3
    assert unhang.broadcast(lazy(torch.tensor([float(rank)])), size - 1).cpu().item() == size - 1
    parts = unhang.all_gather(lazy(torch.tensor([rank])))
    assert [part.device.type for part in parts] == ["lazy"] * size and [part.cpu().item() for part in parts] == list(range(size))
    assert unhang.reduce_scatter(lazy(torch.arange(float(size)))).cpu().tolist() == [float(rank * size)]


def test_another_device_goes_through_host_memory(worlds):
    worlds(2)(elsewhere, 2)


def of_bytes(rank: int, size: int) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.int16):
        part = (torch.arange(12).reshape(3, 4).t() % 3 + rank).to(dtype)
        gathered = unhang.all_gather(part)
        assert all(torch.equal(g.float(), (torch.arange(12).reshape(3, 4).t() % 3 + r).to(dtype).float()) for r, g in enumerate(gathered))
        for tensor in (part.clone(), part.clone().contiguous(), part.clone()[1:]):
            wanted = gathered[size - 1][tensor.shape[0] - 4 :] if tensor.shape[0] == 4 else gathered[size - 1][1:]
            assert torch.equal(unhang.broadcast(tensor, size - 1, chunk_bytes=1024).float(), wanted.float())


def test_what_is_only_moved_may_be_of_any_type(worlds):
    worlds(3)(of_bytes, 3)


def apart(rank: int) -> str:
    try:
        unhang.broadcast(torch.zeros(4).to(torch.float8_e5m2 if rank else torch.float8_e4m3fn), deadline=20)
    except unhang.CollectiveMismatch as e:
        return str(e)
    return ""


def test_but_of_one_type_on_all_ranks(worlds):
    assert all("float8_e5m2 as bytes" in said and "float8_e4m3fn as bytes" in said for said in worlds(2)(apart))


def kinds(rank: int) -> None:
    wanting = torch.full((3,), rank + 1.0, requires_grad=True)
    loss = (wanting * 2).sum()
    assert unhang.all_reduce(loss) is loss and loss.item() == 18.0 and loss.requires_grad
    assert unhang.all_reduce(torch.nn.Parameter(torch.ones(4, 2)).t()).tolist() == [[2.0] * 4] * 2
    with torch.inference_mode():
        made = torch.tensor([rank == 0])
    assert unhang.all_reduce(made).item() is True
    if hasattr(torch.Tensor, "has_names"):
        assert unhang.all_reduce(torch.ones(3, 2).refine_names("a", "b").align_to("b", "a")).rename(None).tolist() == [[2.0] * 3] * 2
    assert len(unhang.all_gather(torch.empty(0, 3))) == 2


def test_whatever_else_a_tensor_may_be(worlds):
    worlds(2)(kinds)


def in_pieces(rank: int, size: int, numel: int) -> tuple[int, bool]:
    seen = []
    circle = circles.of()
    before = circle.turn

    def turn(call, deadline_s):
        seen.append(call.chunk)
        return before(call, deadline_s)

    circle.turn = turn
    try:
        parts = unhang.all_gather(torch.arange(numel) + rank)
    finally:
        del circle.turn
    return seen[0], all(torch.equal(part, torch.arange(numel) + r) for r, part in enumerate(parts))


def test_a_large_gather_goes_in_pieces(worlds):
    numel = (40 << 20) // 8 + 3
    assert worlds(2)(in_pieces, 2, numel) == [((16 << 20) // 8, True)] * 2


class Local(torch.Tensor):
    """As DTensor is: its memory is not what it shows."""


def dtensor() -> torch.Tensor:
    from torch.distributed.device_mesh import DeviceMesh

    # Where it is since torch 2.5.
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensors, "DTensor"):
        tensors = pytest.importorskip("torch.distributed._tensor")

    me = torch.distributed.get_rank()
    named = {"_rank": me} if "_rank" in inspect.signature(DeviceMesh.__init__).parameters else {}
    mesh = DeviceMesh("cpu", [me], _init_backend=False, **named)
    return tensors.DTensor.from_local(torch.ones(4), mesh, run_check=False)


def impossible(kind: str) -> tuple[torch.Tensor, str]:
    match kind:
        case "expanded":
            return torch.ones(3, 1).expand(3, 4), "sum"
        case "subclass":
            return torch.ones(3).as_subclass(Local), "sum"
        case "sparse":
            return torch.ones(3, 3).to_sparse(), "sum"
        case "float8":
            return torch.ones(4).to(torch.float8_e4m3fn), "sum"
        case "list":
            return [1.0], "sum"
        case "dtensor":
            return dtensor(), "sum"
        case "meta":
            return torch.ones(4, device="meta"), "sum"
        case "quantised":
            with warnings.catch_warnings():
                # They will be gone one day.
                warnings.simplefilter("ignore")
                return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8), "sum"
        case "nested":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "sum"
        case "freed":
            freed = torch.ones(4)
            freed.untyped_storage().resize_(0)
            return freed, "sum"
        case "avg_of_ints":
            return torch.ones(4, dtype=torch.int32), "avg"
        case "band_of_floats":
            return torch.ones(4), "band"
        case "max_of_complex":
            return torch.ones(4, dtype=torch.complex64), "max"
        case "no_such_operation":
            return torch.ones(4), "median"
        case "chunks_too_small":
            return torch.ones(4), "chunks_too_small"
        case "other_out" | "expanded_out" | "sparse_out":
            return torch.ones(4), kind
    raise AssertionError(kind)


def refused(rank: int, kind: str, only: int | None) -> tuple[str, float, float]:
    tensor, op = impossible(kind)
    said = ""
    try:
        if only is not None and rank != only:
            unhang.all_reduce(torch.ones(12), deadline=20)
        elif kind == "chunks_too_small":
            unhang.all_reduce(tensor, chunk_bytes=12)
        elif kind == "other_out":
            unhang.all_reduce(tensor, out=torch.ones(5))
        elif kind == "expanded_out":
            unhang.all_reduce(tensor, out=torch.ones(1).expand(4))
        elif kind == "sparse_out":
            unhang.all_reduce(tensor, out=torch.ones(4).to_sparse())
        else:
            unhang.all_reduce(tensor, op)
    except (unhang.CollectiveError, TypeError, ValueError) as e:
        said = f"{type(e).__name__}: {e}"
    after = torch.full((3,), float(rank))
    unhang.all_reduce(after, "max", deadline=20)
    return said, after[0].item()


REFUSED = {
    "expanded": ("CollectiveError", "expanded"),
    "subclass": ("TypeError", "Local"),
    "sparse": ("CollectiveError", "sparse"),
    "float8": ("CollectiveError", "float8"),
    "list": ("TypeError", "list"),
    "dtensor": ("TypeError", "to_local()"),
    "meta": ("CollectiveError", "meta"),
    "quantised": ("CollectiveError", "dequantize()"),
    "nested": ("CollectiveError", "nested"),
    "freed": ("CollectiveError", "freed"),
    "expanded_out": ("CollectiveError", "out is expanded"),
    "sparse_out": ("CollectiveError", "out is of layout"),
    "avg_of_ints": ("CollectiveError", "int32"),
    "band_of_floats": ("CollectiveError", "BAND"),
    "max_of_complex": ("CollectiveError", "complex"),
    "no_such_operation": ("CollectiveError", "median"),
    "chunks_too_small": ("ValueError", "chunk_bytes"),
    "other_out": ("CollectiveError", "out"),
}


@pytest.mark.parametrize("call", ["broadcast", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("kind", ["list", "subclass", "sparse", "meta", "quantised", "nested", "freed"])
def test_nor_by_any_other_collective(worlds, call, kind):
    for said, after in worlds(2)(refused_by, call, kind):
        assert said.startswith(REFUSED[kind][0]) and REFUSED[kind][1] in said
        assert after == 1.0


def refused_by(rank: int, call: str, kind: str) -> tuple[str, float]:
    said = ""
    try:
        getattr(unhang, call)(impossible(kind)[0])
    except (unhang.CollectiveError, TypeError) as e:
        said = f"{type(e).__name__}: {e}"
    return said, unhang.all_reduce(torch.full((3,), float(rank)), "max", deadline=20)[0].item()


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_sent_is_refused_by_all_and_the_next_call_works(worlds, kind):
    name, word = REFUSED[kind]
    for said, after in worlds(2)(refused, kind, None):
        assert said.startswith(name) and word in said
        assert after == 1.0


@pytest.mark.parametrize("kind", REFUSED)
def test_what_one_rank_cannot_send_the_others_are_told_at_once(worlds, kind):
    """And they stay in step: the next call of one is the next of all."""
    found = worlds(3)(refused, kind, 1)
    name, word = REFUSED[kind]
    assert found[1][0].startswith(name) and word in found[1][0]
    for rank in (0, 2):
        assert found[rank][0].startswith("PeerFailed") and f"rank 1: {name}" in found[rank][0] and word in found[rank][0]
        assert "nothing moved" not in found[rank][0] and "within" not in found[rank][0]
    assert [after for _, after in found] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("how", ["pickle", "rows", "src", "gathered"])
def test_the_same_of_the_other_collectives(worlds, how):
    found = worlds(3)(refused_elsewhere, how)
    assert found[1][0] not in ("", "PeerFailed") and found[0][0] == found[2][0] == "PeerFailed"
    assert [after for _, after in found] == [2.0, 2.0, 2.0]


def refused_elsewhere(rank: int, how: str) -> tuple[str, float]:
    bad, said = rank == 1, ""
    try:
        with unhang.deadline(20):
            if how == "pickle":
                unhang.all_gather_object((lambda: 0) if bad else 0)
            elif how == "rows":
                unhang.reduce_scatter(torch.ones(4 if bad else 3))
            elif how == "src":
                unhang.broadcast(torch.ones(3), 7 if bad else 0)
            elif how == "gathered":
                unhang.all_gather(torch.ones(3, 3).to_sparse() if bad else torch.ones(3, 3))
    except Exception as e:
        said = type(e).__name__
    return said, unhang.all_reduce(torch.full((3,), float(rank)), "max", deadline=20)[0].item()


def peaks(rank: int) -> tuple[float, float]:
    """By how much resident memory rises at most, in bytes for each byte that is gathered from all ranks."""
    mb = 1 << 20

    def status(name: str) -> int:
        return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)).split()[1]) << 10

    def peak(call, size_bytes: int) -> float:
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        call()
        return (status("VmHWM") - before) / (2 * size_bytes)

    tensor, value = torch.ones(64 * mb // 4), bytes(range(256)) * (40 * mb // 256)
    return peak(lambda: unhang.all_gather(tensor), 64 * mb), peak(lambda: unhang.all_gather_object(value), 40 * mb)


def test_a_gather_takes_little_more_than_what_it_returns(fresh):
    """In one piece it took twice that, and objects five times."""
    world = fresh(2)
    world(empty_parts)
    for tensors, objects_ in world(peaks, bound_s=60):
        assert tensors < 1.7 and objects_ < 3.5
