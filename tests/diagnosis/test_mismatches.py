"""Ranks that issue different calls: by majority, by history, by the guard around one of them, and by Gloo's crash."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from tests.chinese import zh
from tests.tables import for_each

from unhang.records.incident import GuardedLine

BACKENDS = ("gloo", "nccl")


def stand(
    b, lab, number, *, op="all_reduce", line=20, sizes=((4,),), dtype="Float", guards=(), backend="gloo", world=2, seq=13, done=False, file="train.py"
):
    frames = lab.in_collective(op, lab.user(40, "main"), lab.user(line, "step", guards=guards, file=file))
    last = lab.Entry(seq=seq, op=op, sizes=() if op == "barrier" else sizes, dtype=dtype, done=done, frames=frames)
    return b.rank(number, frames=frames if not done else (lab.user(99, "after"),), entries=[*lab.steps(seq - 1), last], backend=backend, world=world)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_barrier_under_a_rank_test(build, lab, backend):
    b = stand(build(), lab, 0, op="barrier", line=52, guards=("epoch % 2 == 0", "rank == 0"), backend=backend)
    v = stand(b, lab, 1, backend=backend).judge()
    p = v.primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("rank0-guarded-collective", "established", (0,), "train.py:52 in step")
    assert "`rank == 0`" in p.says and any("if rank == 0" in e.text for e in p.evidence)
    assert not v.contributing


@pytest.mark.parametrize("odd", [0, 1, 5])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_majority_of_eight_decides_whatever_the_order(build, lab, backend, odd):
    b = build()
    for r in range(8):
        stand(b, lab, r, sizes=((8,),) if r == odd else ((4,),), backend=backend, world=8)
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks, v.primary.where) == (
        "collective-mismatch",
        "established",
        (odd,),
        "train.py:20 in step",
    )
    assert "[8]" in v.primary.says and "7 of 8 ranks agree" in v.primary.says


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_the_one_that_left_its_habit_is_odd(build, lab, odd):
    b = build()
    for r in range(2):
        stand(b, lab, r, sizes=((2,),) if r == odd else ((4,),))
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (odd,))
    assert "the same line issued something else before" in v.primary.says


def test_the_smaller_side_may_have_finished(build, lab):
    b = stand(build(), lab, 0, sizes=((4,),))
    v = stand(b, lab, 1, sizes=((2,),), done=True).judge()
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("collective-mismatch", (1,), "train.py:20 in step")


def test_without_history_both_are_named(build, lab):
    b = stand(build(), lab, 0, op="broadcast", line=30)
    v = stand(b, lab, 1, op="reduce", line=31).judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks, v.primary.where) == ("collective-mismatch", "likely", (0, 1), None)
    assert "which one cannot be told from two" in v.primary.says and "same-order" in [r.id for r in v.primary.remedies]


def test_dtypes_differ(build, lab):
    b = stand(build(), lab, 0)
    v = stand(b, lab, 1, dtype="Half").judge()
    assert v.primary.ranks == (1,) and v.primary.remedies[0].id == "same-dtype"


def test_gathers_may_be_uneven(build, lab):
    b = stand(build(), lab, 0, op="gather", sizes=((4,),))
    v = stand(b, lab, 1, op="gather", sizes=((7,),)).judge()
    assert v.primary.cause == "unknown"


def test_ranks_that_parted_earlier_are_shown_where_they_parted(build, lab):
    b = build()
    for r in range(2):
        parted = lab.Entry(seq=13, sizes=((2,) if r else (4,),), frames=lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step")))
        frames = lab.in_collective("all_reduce", lab.user(21, "step"))
        after = [lab.Entry(seq=14, done=bool(r), frames=frames)]
        if r:
            after.append(lab.Entry(seq=15, done=False, frames=frames))
        b.rank(r, frames=frames, entries=[*lab.steps(12), parted, *after])
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (1,)) and "#13" in v.primary.says


@pytest.mark.parametrize("guard", ["rank != 0", "not (rank == 0)", "not (self.is_main_process)"])
def test_the_majority_may_stand_under_the_guard(build, lab, guard):
    b = stand(build(), lab, 0, op="barrier", line=60, world=4)
    for r in range(1, 4):
        stand(b, lab, r, line=21, guards=(guard,), world=4)
    v = b.judge()
    assert (v.primary.cause, v.primary.ranks, v.primary.where) == ("rank0-guarded-collective", (0,), "train.py:21 in step")


def test_a_guard_around_the_usual_call_does_not_explain_an_unusual_one(build, lab):
    b = stand(build(), lab, 0, guards=("not (rank == 1)",))
    v = stand(b, lab, 1, sizes=((2,),), done=True).judge()
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (1,))


def test_a_guard_that_lets_the_others_in_does_not_explain_them(build, lab):
    b = stand(build(), lab, 1, line=39, sizes=((340,),), guards=("not (mode == 'skip' and rank == 1 and (step == 30))",), world=3)
    for number in (0, 2):
        stand(b, lab, number, world=3)
    v = b.judge()
    assert v.primary.cause == "collective-mismatch"
    assert "rank0-guarded-collective" not in [f.cause for f in (*v.contributing, *v.symptoms)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_guarded_call_that_has_failed_was_waited_in(build, lab, first):
    """A call that gave up, or whose peer went, is over in Gloo's recorder."""
    b = build()
    for r, op, line, guards in ((0, "barrier", 52, ("rank == 0",)), (1, "all_reduce", 20, ())):
        text, at_s = (lab.GLOO_TIMEOUT, 30.0) if r == first else (lab.PEER_CLOSED, 30.1)
        frames = lab.in_collective(op, lab.user(40, "main"), lab.user(line, "step", guards=guards))
        raised = lab.Raised(type="RuntimeError", text=text, frames=frames, at_s=at_s)
        b.rank(r, raised=raised, entries=[*lab.steps(12), lab.Entry(seq=13, op=op, sizes=() if r == 0 else ((4,),), frames=frames)])
    p = b.judge("failure").primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("rank0-guarded-collective", "established", (0,), "train.py:52 in step")
    assert any("rank 0 waits in barrier #13" in e.text for e in p.evidence)


def test_a_guarded_call_that_is_over_is_not_waited_in(build, lab):
    b = stand(build(), lab, 0, op="barrier", line=52, done=True)
    v = stand(b, lab, 1).judge(guards=(GuardedLine(file=f"{lab.CWD}/train.py", line=52, tests=("rank == 0",)),))
    assert (v.primary.cause, v.primary.standing) == ("collective-mismatch", "likely")


def test_a_guard_in_a_caller_counts(build, lab):
    frames = lab.in_collective("barrier", lab.user(41, "main", guards=("args.local_rank in (-1, 0)",)), lab.user(9, "save", file="io.py"))
    b = build().rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, op="barrier", sizes=(), done=False, frames=frames)])
    v = stand(b, lab, 1).judge()
    assert (v.primary.cause, v.primary.where) == ("rank0-guarded-collective", "train.py:41 in main")


@pytest.mark.parametrize(("tests", "cause"), [(("rank == 0",), "rank0-guarded-collective"), (("epoch > 1",), "collective-mismatch")])
def test_a_rank_that_has_gone_on_since_its_guarded_call(build, lab, tests, cause):
    """NCCL returns at once: the stack of rank 0 is elsewhere, and only the recorder knows the line."""
    call = lab.Entry(seq=13, op="broadcast", done=False, frames=lab.in_collective("broadcast", lab.user(40, "main"), lab.user(52, "log")))
    b = build().rank(0, frames=(lab.user(40, "main"), lab.user(60, "item")), entries=[*lab.steps(12), call], backend="nccl")
    v = stand(b, lab, 1, backend="nccl").judge(guards=(GuardedLine(file=f"{lab.CWD}/train.py", line=52, tests=tests),))
    assert v.primary.cause == cause
    if cause == "rank0-guarded-collective":
        assert (v.primary.ranks, v.primary.where) == ((0,), "train.py:52 in log")


def test_a_guard_that_selects_nobody_does_not_count(build, lab):
    b = stand(build(), lab, 0, op="barrier", line=52, guards=("local_rank != -1", "ranking", "world_size > 1"))
    assert stand(b, lab, 1).judge().primary.cause == "collective-mismatch"


def test_only_stacks_still_tell_guard_and_mismatch(build, lab):
    def side(number, op, guards=()):
        frames = lab.in_collective(op, lab.user(52 if guards else 20, "step", guards=guards))
        return b.rank(number, frames=frames, enqueued=13, completed=12)

    b = build()
    side(0, "barrier", ("rank == 0",))
    side(1, "all_reduce")
    assert b.judge().primary.cause == "rank0-guarded-collective"
    b = build()
    side(0, "barrier")
    side(1, "all_reduce")
    v = b.judge()
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("collective-mismatch", "likely", (0, 1))


def crash(b, lab, *, dead, survivor, survivor_sizes, fatal_line=20, log_rank=True, before=((4,),)):
    main = (lab.user(40, "main"), lab.user(fatal_line, "step"))
    text = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    text += "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(lab.in_collective("all_reduce", *main)))
    b.rank(dead, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=12).fatal(dead, text)
    b.log(dead if log_rank else None, lab.GLOO_SIZE)
    last = lab.Entry(seq=13, sizes=survivor_sizes, frames=lab.lost().frames)
    b.rank(survivor, raised=lab.lost(), entries=[*lab.steps(12, sizes=before), last])
    return b


@pytest.mark.parametrize("log_rank", [True, False])
@pytest.mark.parametrize(("before", "odd"), [(((4,),), "survivor"), (((8,),), "dead")])
@pytest.mark.parametrize("dead", [0, 1])
def test_gloo_kills_the_smaller_side(build, lab, dead, before, odd, log_rank):
    survivor = 1 - dead
    v = crash(build(), lab, dead=dead, survivor=survivor, survivor_sizes=((8,),), log_rank=log_rank, before=before).judge("failure")
    p = v.primary
    assert (p.cause, p.standing, p.where) == ("collective-mismatch", "established", "train.py:20 in step")
    assert p.ranks == ((survivor,) if odd == "survivor" else (dead,))
    assert "8 bytes arrived where 4 were expected" in p.says
    assert any("op.preamble.length" in e.text and e.line == 2 for e in p.evidence)
    assert "peer-lost" in [s.cause for s in v.symptoms] and not v.contributing


@for_each(
    ("op", "size", "dtype", "sent", "advised"),
    [
        # 8 doubles met as many floats, or half as many doubles: their bytes are the same.
        ("all_reduce", 8, "Double", "16 vs 8", ("same-dtype", "same-size")),
        ("all_reduce", 3, "Double", "8 vs 4", ("same-dtype",)),
        ("all_reduce", 9, "Float", "12 vs 8", ("same-size",)),
        ("broadcast", 9, "Long", "72 vs 36", ("same-dtype",)),
        ("all_gather", 7, "Half", "8 vs 6", ("same-size",)),
    ],
)
@for_each("before", [((272,),), ((4,),)])
def test_gloo_crash_is_of_the_call_that_is_sent_in_such_pieces(build, lab, op, size, dtype, sent, advised, before):
    """Both ranks stand at line 20 for the first time; DDP's call at line 19 came before it, and went well."""
    b = crash(build(), lab, dead=0, survivor=1, survivor_sizes=((size,),), log_rank=False)
    frames = lab.in_collective(op, lab.user(40, "main"), lab.user(20, "step"))
    entries = [*lab.steps(12, line=19, sizes=before), lab.Entry(seq=13, op=op, sizes=((size,),), dtype=dtype, frames=frames)]
    b.ranks.clear()
    b.logs.clear()
    b.rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=1).log(0, lab.GLOO_SIZE.replace("8 vs 4", sent))
    text = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.fatal(0, text + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(frames)))
    p = b.rank(1, raised=dataclasses.replace(lab.lost(), frames=frames), entries=entries).judge("failure").primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "established", (0, 1), "train.py:20 in step")
    assert f"{op} of [{size}] {dtype}" in p.says and any("rank 1: #13" in e.text and "line 20" in e.text for e in p.evidence)
    assert tuple(r.id for r in p.remedies) == (*advised, "check-each-call")


@for_each(
    ("op", "one", "other", "advised"),
    [
        ("all_reduce", {}, {"dtype": "Double"}, ("same-dtype", "check-each-call")),
        ("all_reduce", {}, {"sizes": ((8,),)}, ("same-size", "check-each-call")),
        ("broadcast", {}, {"sizes": ((8,),), "dtype": "Double"}, ("same-size", "same-dtype", "check-each-call")),
        ("broadcast", {"arguments": "group_src=0"}, {"arguments": "group_src=1"}, ("same-root",)),
        ("gather", {"arguments": "group_dst=0"}, {"arguments": "group_dst=1"}, ("same-root",)),
        ("reduce", {"arguments": "group_dst=0 op=SUM"}, {"arguments": "group_dst=1 op=MAX"}, ("same-root", "same-reduction")),
        ("all_reduce", {"arguments": "op=SUM"}, {"arguments": "op=MAX"}, ("same-reduction",)),
    ],
)
@for_each("world", [2, 3])
def test_each_thing_in_which_calls_differ_has_its_own_advice(build, lab, op, one, other, advised, world):
    b = build()
    for r in range(world):
        how = dict(other if r == 1 else one)
        *way, inner = lab.in_collective(op, lab.user(40, "main"), lab.user(20, "step"))
        frames = (*way, dataclasses.replace(inner, arguments=how.pop("arguments", "")))
        b.rank(r, frames=frames, entries=[*lab.steps(12, line=19), lab.Entry(seq=13, op=op, done=False, frames=frames, **how)], world=world)
    p = b.judge().primary
    standing = "established" if world == 3 or "arguments" in one else "likely"
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", standing, (1,) if world == 3 else (0, 1))
    assert p.where == "train.py:20 in step" and tuple(r.id for r in p.remedies) == advised
    assert other.get("arguments", "") in p.says and other.get("dtype", "") in p.says


@pytest.mark.parametrize("arguments", ["group_src=0", ""])
def test_equal_roots_or_roots_that_nobody_tells_are_no_mismatch(build, lab, arguments):
    b = build()
    *way, inner = lab.in_collective("broadcast", lab.user(20, "step"))
    frames = (*way, dataclasses.replace(inner, arguments=arguments))
    for r in range(2):
        b.rank(r, frames=frames, entries=[*lab.steps(12, line=19), lab.Entry(seq=13, op="broadcast", done=False, frames=frames)])
    p = b.judge().primary
    assert (p.cause, p.standing) == ("unknown", "not-established")
    assert ("collective-mismatch" in p.says) is not bool(arguments)


def test_gloo_crash_without_a_recorder_names_both(build, lab):
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6)).log(0, lab.GLOO_SIZE).rank(1, raised=lab.lost())
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.ranks) == ("collective-mismatch", (0, 1)) and "cannot be told from two" in v.primary.says


def test_gloo_crash_among_four_goes_by_majority(build, lab):
    b = crash(build(), lab, dead=2, survivor=1, survivor_sizes=((8,),))
    for r in (0, 3):
        b.rank(r, raised=lab.lost(), entries=lab.steps(13))
    assert b.judge("failure").primary.ranks == (1,)


def test_torchs_own_check_names_the_ranks(build, lab):
    text = (
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLGATHER), "
        "but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE)."
    )
    b = build().rank(0, raised=lab.lost(lab.PEER_CLOSED, at_s=30.6)).rank(1, raised=lab.lost(text))
    v = b.judge("failure")
    assert (v.primary.cause, v.primary.standing, v.primary.ranks) == ("collective-mismatch", "established", (0, 1))


@pytest.mark.parametrize("ahead", [0, 1])
def test_of_two_the_rank_at_a_new_line_may_have_gone_on_rightly(build, lab, ahead):
    """The other one had a batch more: who went astray cannot be told from two, and the new line is no proof."""
    b = build()
    for r in range(2):
        stand(b, lab, r, sizes=((64,),) if r == ahead else ((4,),), line=30 if r == ahead else 20)
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "likely", (0, 1), None)
    assert "which one cannot be told from two (train.py:30 in step was hardly ever reached before)" in p.says
    assert [r.id for r in p.remedies[:2]] == ["same-order", "same-size"]


def test_of_four_at_two_lines_the_majority_decides(build, lab):
    b = build()
    for r in range(4):
        stand(b, lab, r, sizes=((64,),) if r < 3 else ((4,),), line=30 if r < 3 else 20, world=4)
    p = b.judge().primary
    assert (p.standing, p.ranks, p.where) == ("established", (3,), "train.py:20 in step") and "3 of 4 ranks agree" in p.says
    assert "rank 3 发出了 all_reduce [4] Float（位于 train.py:20 in step），而 rank 0 到 2 发出了" in zh(p.says) and "4 个 rank 中有 3 个一致" in zh(
        p.says
    )


def test_two_against_two_blames_nobody(build, lab):
    b = build()
    for r in range(4):
        stand(b, lab, r, sizes=((64,),) if r < 2 else ((4,),), line=30 if r < 2 else 20, world=4)
    p = b.judge().primary
    assert (p.standing, p.ranks, p.where) == ("likely", (0, 1, 2, 3), None) and "is not in evidence" in p.says


def test_a_guard_that_let_the_other_rank_in_before_does_not_explain(build, lab):
    """`if rank != 1 or batch is not None:` around a line that both came to twelve times; rank 1 has run out of batches."""
    b = stand(build(), lab, 0, line=20, guards=("rank != 1 or batch is not None",))
    p = stand(b, lab, 1, op="barrier", line=30).judge().primary
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "likely", (0, 1))


def test_two_lines_of_which_each_rank_has_its_own_name_both(build, lab):
    b = build()
    for r in range(2):
        frames = lab.in_collective("all_reduce", lab.user(31 if r else 20, "step"))
        size = ((64,),) if r else ((4,),)
        b.rank(r, frames=frames, entries=[*lab.steps(12, line=20 + r), lab.Entry(seq=13, sizes=size, done=False, frames=frames)])
    assert b.judge().primary.ranks == (0, 1)


def test_gloo_kills_a_rank_at_another_line_than_its_peer(build, lab):
    b = build()
    main = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
    fatal = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=12)
    b.fatal(0, fatal + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(main))).log(0, lab.GLOO_SIZE)
    last = lab.Entry(seq=13, sizes=((64,),), frames=lab.lost(line=30).frames)
    b.rank(1, raised=lab.lost(line=30), entries=[*lab.steps(12), last])
    p = b.judge("failure").primary
    assert (p.cause, p.ranks, p.where) == ("collective-mismatch", (0, 1), None)
    assert "(rank 0 at train.py:20 in step, rank 1 at train.py:30 in step)" in p.says and "cannot be told from two" in p.says
    assert p.remedies[0].id == "same-order"


def test_gloo_crash_at_two_lines_of_habit_blames_neither(build, lab):
    """Each line did what it always did: rank 0 may have a step too many, or rank 1 may have left the loop too early."""
    b = build()
    main = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
    fatal = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=12)
    b.fatal(0, fatal + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(main))).log(0, lab.GLOO_SIZE)
    at_end = lab.lost(line=30).frames
    entries = [*lab.steps(11), lab.Entry(seq=12, sizes=((64,),), frames=at_end), lab.Entry(seq=13, sizes=((64,),), frames=at_end)]
    b.rank(1, raised=lab.lost(line=30), entries=entries)
    p = b.judge("failure").primary
    assert (p.cause, p.ranks, p.where) == ("collective-mismatch", (0, 1), None) and "cannot be told from two" in p.says


@pytest.mark.parametrize(
    ("usual", "sent", "advised"),
    [
        ({"op": "broadcast", "sizes": ((1,),), "dtype": "Int"}, "132 vs 4", ("same-size",)),
        ({"sizes": ((1,),), "dtype": "Int"}, "132 vs 4", ("same-size",)),
        ({"sizes": ((132,),), "dtype": "Half"}, "132 vs 264", ("same-dtype", "same-size")),
    ],
    ids=["broadcast-at-that-line", "smaller-at-that-line", "as-many-of-another-type"],
)
def test_gloo_crash_at_two_lines_says_what_is_known_to_differ(build, lab, usual, sent, advised):
    """Rank 0 skipped a batch, and is at the end of the script: nobody knows of which type its call there was."""
    end, ddp = lab.lost(line=30), lab.lost(line=20).frames
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=12).log(0, lab.GLOO_SIZE.replace("8 vs 4", sent))
    text = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.fatal(0, text + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(end.frames)))
    entries = [lab.Entry(seq=1, frames=ddp, **usual), *(lab.Entry(seq=n, sizes=((132,),), frames=ddp) for n in range(2, 13))]
    p = b.rank(1, raised=end, entries=[*entries, lab.Entry(seq=13, sizes=((1,),), frames=end.frames)]).judge("failure").primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "established", (0, 1), None)
    assert tuple(r.id for r in p.remedies) == ("same-order", *advised, "check-each-call")
    assert ("type" in p.says) is ("same-dtype" in advised)


@pytest.mark.parametrize(("world", "words"), [(2, "than the other rank "), (4, "than the other ranks ")])
def test_the_others_are_counted(build, lab, world, words):
    b = crash(build(), lab, dead=0, survivor=1, survivor_sizes=((8,),))
    for r in range(2, world):
        b.rank(r, raised=lab.lost(), entries=lab.steps(13))
    assert words in b.judge("failure").primary.says + " "


def test_an_early_exit_from_a_loop_is_no_guard(build, lab):
    """`if rank == 1 and step == 13: break` before a line that all ranks came to twelve times."""
    frames = lab.in_collective("all_reduce", lab.user(20, "step", guards=("not (rank == 1)",)))
    b = build().rank(0, frames=frames, entries=[*lab.steps(12), lab.Entry(seq=13, done=False, frames=frames)])
    v = b.rank(1, ended=lab.Ended(at_s=28.0, exitcode=0, announced=True), enqueued=12).judge("hang")
    assert (v.primary.cause, v.primary.ranks) == ("premature-exit", (1,))


def test_gloo_crash_at_two_lines_without_a_recorder_blames_neither(build, lab):
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6))
    main = lab.in_collective("all_reduce", lab.user(20, "step"))
    fatal = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.fatal(0, fatal + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(main))).log(0, lab.GLOO_SIZE)
    p = b.rank(1, raised=lab.lost(line=30)).judge("failure").primary
    assert (p.cause, p.ranks, p.where) == ("collective-mismatch", (0, 1), None)
    assert [r.id for r in p.remedies[:2]] == ["same-order", "same-size"]
    assert "(rank 0 at train.py:20 in step, rank 1 at train.py:30 in step)" in p.says


def test_survivors_of_a_gloo_crash_that_differ_are_compared_with_each_other(build, lab):
    """Rank 4 has another type in as many elements; Gloo ended rank 0, where its bytes did not fit."""
    main = lab.in_collective("all_reduce", lab.user(20, "step"))
    fatal = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), world=5)
    b.fatal(0, fatal + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(main))).log(0, lab.GLOO_SIZE)
    for r in range(1, 5):
        stand(b, lab, r, dtype="Double" if r == 4 else "Float", world=5)
    p = b.judge("failure").primary
    assert (p.cause, p.ranks) == ("collective-mismatch", (4,)) and "type" in p.says
    assert "same-dtype" in [r.id for r in p.remedies] and "same-size" not in [r.id for r in p.remedies]


def test_a_rank_that_brought_another_size_is_told_to_bring_the_same_at_a_line_of_its_own_as_well(build, lab):
    """Gloo has ended rank 0; of the survivors, whose recorders tell, two agree."""
    main = lab.in_collective("all_reduce", lab.user(20, "step"))
    fatal = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), world=4)
    b.fatal(0, fatal + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(main))).log(0, lab.GLOO_SIZE)
    for r in range(1, 4):
        stand(b, lab, r, line=30 if r == 3 else 20, sizes=((9,),) if r == 3 else ((4,),), world=4)
    p = b.judge("failure").primary
    assert (p.cause, p.ranks, p.where) == ("collective-mismatch", (3,), "train.py:30 in step")
    assert [r.id for r in p.remedies[:2]] == ["same-size", "same-order"]


def test_who_waits_in_a_message_by_its_stack_is_shown_by_its_stack(build, lab):
    """Gloo's dumps hold no messages: the dump of that rank says nothing of its recv."""
    b = build()
    for r in range(2):
        stand(b, lab, r, world=3)
    recv = lab.in_collective("recv", lab.user(30, "exchange"))
    p = b.rank(2, frames=recv, entries=lab.steps(12), world=3).judge().primary
    assert (p.cause, p.ranks) == ("collective-mismatch", (0, 1, 2)) and "in a circle" in p.says
    told = {e.text.split(" waits")[0]: e.source for e in p.evidence}
    assert told["rank 2"] == "incidents/1/stacks/rank2.json" and any(s.startswith("incidents/1/flight/") for s in told.values())


def test_groups_that_two_ranks_use_in_different_orders(build, lab):
    b = build()
    for r, order in enumerate(("xy", "yx")):
        b.rank(r, backend="nccl", frames=(lab.user(50 + r, "forward"),), entries=[])
        raw = pickle.loads(b.rundir.flight(1, r).read_bytes())
        raw["pg_config"] = {g: {"name": g, "desc": "", "ranks": "[0, 1]"} for g in "xy"}
        raw["pg_status"] = {}
        for n, g in enumerate(order):
            one = pickle.loads(lab.dump([lab.Entry(seq=1, done=False, frames=(lab.user(60 + n, "forward"),))], backend="nccl", group=g))["entries"][0]
            raw["entries"].append(one | {"time_created_ns": n, "record_id": n, "pg_id": "xy".index(g), "state": "scheduled"})
        b.rundir.write_bytes(b.rundir.flight(1, r), pickle.dumps(raw))
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "likely", (0, 1))
    assert "rank 0 in all_reduce #1 of group x (train.py:60 in forward); rank 1 in all_reduce #1 of group y" in p.says


def test_of_groups_in_different_orders_the_rank_that_most_differ_from(build, lab):
    b = build()
    for r, order in enumerate(("xy", "xy", "yx")):
        b.rank(r, backend="nccl", frames=(lab.user(50 + r, "forward"),), entries=[], world=3)
        raw = pickle.loads(b.rundir.flight(1, r).read_bytes())
        raw["pg_config"] = {g: {"name": g, "desc": "", "ranks": "[0, 1, 2]"} for g in "xy"}
        raw["pg_status"] = {}
        at = lab.user(60 + r, "forward")
        one = pickle.loads(lab.dump([lab.Entry(seq=1, done=False, frames=(at,))], backend="nccl", group=order[0]))["entries"][0]
        raw["entries"].append(one | {"time_created_ns": 1, "record_id": 0, "pg_id": "xy".index(order[0]), "state": "scheduled"})
        b.rundir.write_bytes(b.rundir.flight(1, r), pickle.dumps(raw))
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", "likely", (2,), "train.py:62 in forward")
    assert p.says.endswith("; rank 2 came to group y first, where more than half of the ranks of both came to group x first")


@pytest.mark.parametrize("swapped", [True, False])
def test_of_two_branches_of_one_test_the_rank_that_differs_is_shown(build, lab, swapped):
    """`if rank == 2: gather else: broadcast`: the line of the others is no more to blame than they are."""
    b = build()
    for r in range(4):
        guards = ("rank == 2",) if r == 2 else ("not (rank == 2)",)
        stand(b, lab, r, op="all_gather" if r == 2 else "broadcast", line=30 if r == 2 else 32, guards=guards if swapped or r == 2 else (), world=4)
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("rank0-guarded-collective", "established", (2,), "train.py:30 in step")


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_meet_from_two_branches_are_explained_by_neither(build, lab, world):
    """`if rank == 0: broadcast else: broadcast`, twelve times; then rank 1 goes on at a line that rank 0 has not come to."""
    b = build()
    for r in range(world):
        guards = ("rank == 0",) if r == 0 else ("not (rank == 0)",)
        pair = lab.in_collective("broadcast", lab.user(40, "main"), lab.user(13 if r == 0 else 15, "step", guards=guards))
        on = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(20, "step"))
        entries = [lab.Entry(seq=n, op="broadcast", frames=pair) for n in range(1, 13)]
        op, frames = ("all_reduce", on) if r == 1 else ("broadcast", pair)
        b.rank(r, frames=frames, entries=[*entries, lab.Entry(seq=13, op=op, done=False, frames=frames)], world=world)
    p = b.judge().primary
    assert (p.cause, p.ranks, p.where) == ("collective-mismatch", *(((0, 1), None) if world == 2 else ((1,), "train.py:20 in step")))


@pytest.mark.parametrize("kind", ["extra", "lacking"])
def test_a_slip_that_equal_calls_hide_is_shown_where_it_began(build, lab, kind):
    """Lines 20 and 21 make equal calls, line 22 another one. Rank 2 has one too many at line 30, or has left out line 20, before the eighth."""
    b = build()
    for r in range(3):
        lines = [20, 21, 22] * 3
        if r == 2:
            lines = [*lines[:6], 30, *lines[6:8]] if kind == "extra" else [*lines[:6], *lines[7:]]
        entries = []
        for n, line in enumerate(lines, 1):
            frames = lab.in_collective("all_reduce", lab.user(40, "main"), lab.user(line, "step"))
            entries.append(lab.Entry(seq=n, op="broadcast" if line == 22 else "all_reduce", frames=frames))
        # Equal calls part at the first that differs: the others wait in it.
        until = 9 if kind == "extra" else 8
        b.rank(r, frames=entries[until - 1].frames, entries=[*entries[: until - 1], lab.dataclasses.replace(entries[until - 1], done=False)], world=3)
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "established", (2,))
    assert p.where == f"train.py:{30 if kind == 'extra' else 21} in step"
    assert f"already #7 came from {p.where}, where the others were at train.py:20 in step" in p.says


def test_a_function_that_is_called_from_another_line_has_no_habit_there(build, lab):
    """Rank 0 is at the end of the script, as it should be; rank 1 has a batch too many. Both reduce in one helper."""
    b = build()
    for r in range(2):
        way = lab.in_collective("all_reduce", lab.user(40 if r else 50, "main"), lab.user(20, "step"))
        b.rank(r, frames=way, entries=[*lab.steps(12), lab.Entry(seq=13, sizes=((4,),) if r else ((64,),), done=False, frames=way)])
    p = b.judge().primary
    assert (p.cause, p.standing, p.ranks) == ("collective-mismatch", "likely", (0, 1))


def test_gloo_crash_without_a_majority_of_all_goes_by_the_line(build, lab):
    """Ranks 1 and 2 brought 8 elements, Gloo has ended rank 0: most of the survivors are no majority."""
    b = crash(build(), lab, dead=0, survivor=1, survivor_sizes=((8,),))
    b.rank(2, raised=lab.lost(), entries=[*lab.steps(12), lab.Entry(seq=13, sizes=((8,),), frames=lab.lost().frames)])
    assert b.rank(3, raised=lab.lost(), entries=lab.steps(13)).judge("failure").primary.ranks == (1, 2)


@pytest.mark.parametrize(("size", "standing"), [(3, "established"), (9, "likely")])
def test_gloo_crash_a_call_before_the_newest_one_of_the_survivor(build, lab, size, standing):
    """Rank 1 alone gathers at line 25. What rank 0 sends at line 29 is enough for it, and it goes on to line 29 itself."""

    def gather(seq, line, size=1):
        frames = lab.in_collective("all_gather", lab.user(40, "main"), lab.user(line, "step"))
        return lab.Entry(seq=seq, op="all_gather", sizes=((size,),), frames=frames)

    b = build().rank(0, ended=lab.Ended(at_s=30.0, exitcode=-6), enqueued=12).log(0, lab.GLOO_SIZE)
    text = "Fatal Python error: Aborted\n\nThread 0x00007f1e44e24b80 (most recent call first):\n"
    b.fatal(0, text + "".join(f'  File "{f.file}", line {f.line} in {f.name}\n' for f in reversed(gather(1, 29).frames)))
    entries = [*(gather(n, 29) for n in range(1, 13)), gather(13, 25, size), gather(14, 29)]
    raised = lab.Raised(type="RuntimeError", text=lab.PEER_RESET, frames=entries[-1].frames, at_s=30.5)
    p = b.rank(1, raised=raised, entries=entries).judge("failure").primary
    assert (p.cause, p.standing, p.ranks, p.where) == ("collective-mismatch", standing, (0, 1), None)
    if standing == "likely":
        # None of its calls is sent in pieces as large as the one that arrived.
        return
    assert "(rank 0 at train.py:29 in step, rank 1 at train.py:25 in step)" in p.says
    assert any("rank 1: #13 all_gather" in e.text and "line 25" in e.text for e in p.evidence)
