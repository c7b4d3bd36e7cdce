"""Stacks that stand in logs, or were given alone: who keeps the others waiting, where everybody waits, and what that leaves open."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest
from tests.chinese import zh

from unhang.diagnosis.logs import judge_logs

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
MAIN = ("/u/plain.py", 18, "<module>")
IN_REDUCE = (MAIN, ("/u/plain.py", 14, "main"), (C10D, 3252, "all_reduce"))
IN_BARRIER = (MAIN, ("/u/plain.py", 15, "main"), (C10D, 4000, "barrier"))
IN_LOAD = (MAIN, ("/u/plain.py", 13, "main"), ("/u/plain.py", 10, "load"))
IN_LOADER = (MAIN, ("/u/plain.py", 13, "main"), (LOADER, 700, "__next__"))
GAVE_UP = (
    "[rank{r}]: Traceback (most recent call last):\n"
    '[rank{r}]:   File "/u/plain.py", line 14, in main\n'
    "[rank{r}]:     dist.all_reduce(x)\n"
    f'[rank{{r}}]:   File "{C10D}", line 3252, in all_reduce\n'
    "[rank{r}]:     work.wait()\n"
    "[rank{r}]: RuntimeError: [/p/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete\n"
)


def faulthandler(frames, head="Timeout (0:00:08)!\nThread 0x00007f58253e8b80"):
    return f"{head} (most recent call first):\n" + "".join(f'  File "{f}", line {n} in {name}\n' for f, n, name in reversed(frames))


def py_spy(frames, *, pid=4000, state="idle", name=': "MainThread"'):
    short = [(f.partition("site-packages/")[2] or f.rpartition("/")[2], n, name) for f, n, name in frames]
    return f"Process {pid}: python plain.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} ({state}){name}\n" + "".join(
        f"    {name} ({f}:{n})\n" for f, n, name in reversed(short)
    )


@pytest.fixture
def judged(tmp_path):
    def judged(**texts):
        folder = tmp_path / "job"
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.txt").write_text(text)
        return judge_logs([str(folder)])

    return judged


def told(judged):
    p = judged.verdict.primary
    assert not any("only logs were given" in n.why or "healthy" in n.why for n in judged.verdict.not_examined)
    return p


def test_the_rank_that_is_elsewhere_while_the_others_give_up(judged):
    j = judged(rank0=faulthandler(IN_REDUCE) + GAVE_UP.format(r=0), rank1=faulthandler(IN_REDUCE) + GAVE_UP.format(r=1), rank2=faulthandler(IN_LOAD))
    p = told(j)
    assert (p.cause, p.standing, p.ranks, p.where) == ("process-stuck", "likely", (2,), "/u/plain.py:10 in load")
    assert "rank 2 stands at /u/plain.py:10 in load" in p.says and "ranks 0 and 1 are in all_reduce (/u/plain.py:14 in main)" in p.says
    assert zh(p.says) and (p.evidence[0].source.rpartition("/")[2], p.evidence[0].line) == ("rank2.txt", 2)
    assert [s.cause for s in j.verdict.symptoms] == ["collective-timeout"]


def test_stacks_alone_are_one_look(judged):
    p = told(judged(a_rank0=py_spy(IN_REDUCE), a_rank1=py_spy(IN_REDUCE, pid=4001), a_rank2=py_spy(IN_LOAD, pid=4002)))
    assert (p.cause, p.standing, p.ranks, p.where) == ("process-stuck", "possible", (2,), "plain.py:10 in load")
    assert "does not execute" in p.says and "one look" in p.says and "all_reduce (plain.py:14 in main)" in p.says


@pytest.mark.parametrize(
    ("stack", "cause"),
    [
        (py_spy(IN_LOAD, state="active+gil"), "straggler-timeout"),
        (py_spy(IN_LOADER), "dataloader-deadlock"),
        (faulthandler(IN_LOADER), "dataloader-deadlock"),
    ],
)
def test_what_the_rank_does_tells_the_cause(judged, stack, cause):
    p = told(judged(rank0=faulthandler(IN_REDUCE), rank1=stack))
    assert (p.cause, p.standing, p.ranks) == (cause, "possible", (1,))


def test_all_in_one_collective_blames_nobody(judged):
    p = told(judged(rank0=faulthandler(IN_REDUCE), rank1=faulthandler(IN_REDUCE)))
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", (0, 1))
    assert "ranks 0 and 1 stand in all_reduce (/u/plain.py:14 in main); by these stacks nobody is missing" in p.says and "network" in p.says


def test_one_stack_says_nothing_of_the_others(judged):
    p = told(judged(rank0=faulthandler(IN_REDUCE)))
    assert p.standing == "not-established" and "rank 0 stands in all_reduce" in p.says and "of no other rank there is a stack" in p.says


def test_in_two_collectives(judged):
    p = told(judged(rank0=faulthandler(IN_BARRIER), rank1=faulthandler(IN_REDUCE), rank2=faulthandler(IN_REDUCE)))
    assert (p.cause, p.standing) == ("unknown", "not-established") and "collective-mismatch" in p.says
    assert "ranks 1 and 2 are in all_reduce" in p.says and "rank 0 is in barrier" in p.says


def test_in_no_collective_and_threads_without_names(judged):
    p = told(judged(pyspy_rank0=py_spy(IN_LOAD, name=""), pyspy_rank1=py_spy(IN_LOAD, pid=4001, name="")))
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", (0, 1)) and "none of them is in a collective" in p.says


def test_a_stack_of_nobody_known(judged):
    p = told(judged(stack=py_spy(IN_LOAD)))
    assert (p.cause, p.ranks) == ("unknown", ()) and "a process stands at plain.py:10 in load" in p.says


def test_stacks_of_several_in_one_log_that_names_no_rank(judged):
    p = told(judged(all=faulthandler(IN_REDUCE) + faulthandler(IN_REDUCE) + faulthandler(IN_LOAD)))
    assert (p.cause, p.standing, p.ranks) == ("unknown", "not-established", ())
    assert "a process stands at /u/plain.py:10 in load; 2 stacks whose rank is not told are in all_reduce; whether they stay" in p.says


def test_old_stacks_and_stacks_of_a_crash_tell_nothing_of_the_end(judged):
    steps = "".join(f"step {n} loss 2.0\n" for n in range(300))
    verdict = judged(rank0=faulthandler(IN_REDUCE) + steps, rank1=faulthandler(IN_LOAD) + steps).verdict
    assert verdict.primary is None


def test_where_a_process_crashed_is_not_where_it_waits(judged):
    crash = faulthandler(IN_LOAD, head="Fatal Python error: Aborted\n\nCurrent thread 0x00007f58253e8b80")
    verdict = judged(rank0=faulthandler(IN_REDUCE) + GAVE_UP.format(r=0), rank1=crash).verdict
    assert verdict.primary.cause != "process-stuck"


def test_who_raised_keeps_nobody_waiting(judged):
    raised = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/u/plain.py", line 10, in load\n[rank1]:     x()\n[rank1]: ValueError: bad\n'
    )
    verdict = judged(rank0=faulthandler(IN_REDUCE) + GAVE_UP.format(r=0), rank1=faulthandler(IN_LOAD) + raised).verdict
    assert verdict.primary.cause == "rank-exception" and "process-stuck" not in {f.cause for f in verdict.contributing}


def of_a_job():
    """Two ranks in one log: one stands elsewhere, and the other one gives up."""
    return "".join(threads(r, f, 3) for r, f in ((0, IN_LOAD), (1, IN_REDUCE))) + GAVE_UP_AT.format(r=1, m=45)


def packed(path, text):
    data = text.encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
        return
    with tarfile.open(path, "w") as archive:
        # Two of one name: the newer one counts as a log of its own.
        for name, content in (("x.log", b"nothing\n"), ("job.log", b"nothing\n"), ("job.log", data)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("name", ["job.log.gz", "logs.tar"])
def test_stacks_in_what_is_packed(tmp_path, name):
    packed(tmp_path / name, of_a_job())
    verdict = judge_logs([str(tmp_path / name)]).verdict
    assert (verdict.primary.cause, verdict.primary.standing, verdict.primary.ranks) == ("process-stuck", "likely", (0,))
    assert not any("the stacks in" in n.what for n in verdict.not_examined)


def test_stacks_in_what_is_piped(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(of_a_job().encode())))
    verdict = judge_logs(["-"]).verdict
    assert (verdict.primary.cause, verdict.primary.ranks) == ("process-stuck", (0,))


@pytest.mark.parametrize("name", ["job.log", "job.log.gz", "logs.tar"])
def test_stacks_that_were_not_read_are_told(tmp_path, monkeypatch, name):
    for module in ("diagnosis.logs", "records.stacks_in_logs"):
        monkeypatch.setattr(f"unhang.{module}.MAX_BYTES", 1000)
    path = tmp_path / name
    if name == "job.log":
        path.write_text(of_a_job())
    else:
        packed(path, of_a_job())
    verdict = judge_logs([str(path)]).verdict
    assert verdict.primary.cause == "collective-timeout"
    assert any("the stacks in" in n.what and n.unread for n in verdict.not_examined)


DUMP = faulthandler(IN_LOAD)
GAVE_UP_AT = (
    "[rank{r}]:[E1120 09:{m}:10.100000000 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=101, "
    "OpType=ALLREDUCE, NumelIn=1000, NumelOut=1000, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


def counted(*numbers, minute=10, form="2026-11-20 09:{m}:01,000 INFO step={n} loss=2.{n}\n"):
    return "".join(form.format(m=minute, n=n) for n in numbers)


def older(verdict):
    return [(n.what.partition(" (")[0], n.why) for n in verdict.not_examined if "taken earlier" in n.why and zh(n.what) and zh(n.why)]


STEPS_FOLLOW, DATED_BEFORE = "taken earlier: training steps follow it", "taken earlier: what follows it is dated before anybody began to wait"


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        (counted(*range(1, 101)), STEPS_FOLLOW),
        (counted(1), STEPS_FOLLOW),
        ("  7%|▋         | 7/100 [00:12<02:40,  1.72s/it]\r  8%|▊         | 8/100 [00:14<02:40,  1.72s/it]\n", STEPS_FOLLOW),
        ("{'loss': 2.31, 'learning_rate': 1e-05}\n", STEPS_FOLLOW),
        ("2026-11-20 09:10:01,000 INFO data loaded\n", DATED_BEFORE),
        ("[1120 09:10:01.000000000 x.cpp:1] up\n".replace("[1120", "[I1120"), DATED_BEFORE),
    ],
)
def test_a_stack_behind_which_the_rank_goes_on_names_nobody(judged, behind, why):
    start = "2026-11-20 09:00:05,000 INFO loading data\n"
    j = judged(rank0=counted(*range(1, 101)) + GAVE_UP_AT.format(r=0, m=45), rank1=start + DUMP + behind)
    assert (j.verdict.primary.cause, j.verdict.primary.standing) == ("collective-timeout", "not-established")
    assert older(j.verdict) == [("the stack of rank 1", why)]


@pytest.mark.parametrize(
    "behind",
    [
        "",
        # Printed while the others waited.
        "2026-11-20 09:40:01,000 INFO gpu: 71 W\n",
        # A bar that is drawn again, an error that names the step, and code of a traceback count nothing.
        " 12%|█▏        | 12/100 [00:14<02:40,  1.72s/it]\n",
        "2026-11-20 09:44:01,000 ERROR failed in step 13, loss 2.0\n",
        "    loss = step(14)\n",
    ],
)
def test_a_stack_of_the_wait_does(judged, behind):
    before = " 12%|█▏        | 12/100 [00:14<02:40,  1.72s/it]\n"
    p = told(judged(rank0=counted(*range(1, 101)) + GAVE_UP_AT.format(r=0, m=45), rank1=before + DUMP + behind))
    assert (p.cause, p.standing, p.ranks) == ("process-stuck", "likely", (1,))


def test_steps_of_others_behind_a_stack(judged):
    stack = "".join(f"[rank1]: {line}\n" for line in DUMP.splitlines())
    # Whoever waits finishes the step that he is in.
    p = judged(all=stack + "[rank0]: " + counted(100) + GAVE_UP_AT.format(r=0, m=45)).verdict.primary
    assert (p.cause, p.ranks) == ("process-stuck", (1,))


def test_two_steps_of_others_behind_a_stack(judged):
    stack = "".join(f"[rank1]: {line}\n" for line in DUMP.splitlines())
    two = "".join(f"[rank0]: {line}" for line in counted(100, 101).splitlines(True))
    verdict = judged(all=stack + two + GAVE_UP_AT.format(r=0, m=45)).verdict
    assert verdict.primary.cause == "collective-timeout" and older(verdict) == [("the stack of rank 1", STEPS_FOLLOW)]


def threads(rank, frames, others):
    """A dump with so many other threads, behind a rank's prefix."""
    idle = [("/usr/lib/python3.11/threading.py", n, f"f{n}") for n in (995, *range(9), 975)]
    idle[0] = ("/usr/lib/python3.11/threading.py", 995, "_bootstrap")
    text = "".join(faulthandler(idle, head=f"Thread 0x00007f00000{rank}{n:02x}00") for n in range(others))
    return "".join(f"[rank{rank}]: {line}\n" for line in (text + faulthandler(frames, head=f"Thread 0x00007f00000{rank}ff00")).splitlines())


@pytest.mark.parametrize("others", [1, 4, 30])
def test_the_stacks_of_others_put_none_away(judged, others):
    stacks = "".join(threads(rank, IN_REDUCE if rank else IN_LOAD, others) for rank in range(8))
    p = told(judged(all=counted(*range(20)) + stacks + "".join(GAVE_UP_AT.format(r=r, m=45) for r in range(1, 8))))
    assert (p.cause, p.standing, p.ranks) == ("process-stuck", "likely", (0,)) and "ranks 1 to 7 are in all_reduce" in p.says


def test_what_ranks_print_as_they_end_puts_no_stack_away(judged):
    ending = "".join(f"[rank{r}]: frame #{n}: c10::f(int) + 0x{n:x} (0x7f00 in /lib/libc10.so)\n" for r in (1, 0) for n in range(1500))
    stacks = threads(0, IN_LOAD, 0) + threads(1, IN_REDUCE, 0)
    p = told(judged(all=stacks + GAVE_UP_AT.format(r=1, m=45) + ending))
    assert (p.cause, p.standing, p.ranks) == ("process-stuck", "likely", (0,))


@pytest.mark.parametrize("by", ["[rank0]: ", "[rank1]: "])
def test_how_old_a_stack_is_in_front_of_much_else_is_not_known(judged, by):
    ordinary = (by + "tokens per second: 3000\n") * (201 if by == "[rank0]: " else 2001)
    verdict = judged(all=threads(0, IN_LOAD, 0) + ordinary + GAVE_UP_AT.format(r=1, m=45)).verdict
    assert verdict.primary.cause == "collective-timeout"
    (left,) = (n for n in verdict.not_examined if "how old it is is not known" in n.why)
    assert left.what.startswith("the stack of rank 0 (")


def test_a_healthy_job_that_once_wrote_its_stacks(judged):
    verdict = judged(rank0=DUMP + counted(1, 2), rank1=DUMP + counted(1, 2), rank2=counted(1, 2)).verdict
    assert verdict.primary is None and older(verdict) == [("the stacks of ranks 0 and 1", STEPS_FOLLOW)]


def test_of_two_stacks_of_a_rank_the_one_of_the_failure_counts(judged):
    # The one that was taken by hand comes first by its name.
    j = judged(rank0=GAVE_UP.format(r=0), a_rank1=py_spy(IN_LOAD), rank1=faulthandler(IN_LOADER) + counted(1, 2))
    assert (told(j).cause, told(j).where) == ("process-stuck", "plain.py:10 in load") and older(j.verdict) == []


def test_what_nothing_dates_is_possible_at_most(judged):
    # Gloo's exception has no time: whether the line behind the stack is of the wait is not told.
    p = told(judged(rank0=GAVE_UP.format(r=0), rank1=DUMP + "2026-11-20 09:10:01,000 INFO up\n"))
    assert (p.cause, p.standing) == ("process-stuck", "possible")


def test_steps_of_the_next_attempt_are_not_behind_a_stack_of_this_one(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(
        GAVE_UP_AT.format(r=0, m=45)
        + "".join(f"[rank1]: {line}\n" for line in DUMP.splitlines())
        + "E1120 09:45:20.000000 17 torch/distributed/elastic/multiprocessing/api.py:9] failed (exitcode: -6) local_rank: 0 (pid: 31) of binary: p\n"
        + "W1120 09:46:00.000000 17 torch/distributed/run.py:852] Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
        + counted(1, 2, 3, minute=50)
    )
    j = judge_logs([str(log)], attempt=1)
    assert (j.attempts, j.verdict.primary.cause, j.verdict.primary.ranks) == (2, "process-stuck", (1,))
    # Nor is the stack one of the next attempt, where that has stacks as well.
    with log.open("a") as f:
        f.write("".join(f"[rank0]: {line}\n" for line in faulthandler(IN_REDUCE).splitlines()) + GAVE_UP_AT.format(r=0, m=59))
    j = judge_logs([str(log)], attempt=2)
    assert (j.verdict.primary.cause, [s.rank for s in j.chosen.view.stacks]) == ("collective-timeout", [0])
