"""Real Gloo ranks that diverge, and whether `unhang why` is ever wrong while it calls its verdict established.

A seed draws a small training (plain torch, DDP, FSDP2, accelerate, transformers' Trainer), 2 to 4 ranks, and one divergence: a call skipped, one too
many, two swapped, another size, type, operation, reduction, root or group, fewer batches. The generator knows which ranks deviate and at which lines;
the code under test only gets what `unhang run` would have kept: stacks, recorders, counters, tracebacks, logs. A case is wrong if an established
verdict names a rank or a line that did not deviate, does not advise what differs, or advises what does not. Ranks are forked from this process, which
has imported torch once: about 2 s a case.

    scripts/divergences.py --cases 300   all of them; prints a table, ends with 1 if one is wrong
    scripts/divergences.py --cases 300 --again 6   every sixth is run twice, and is wrong as well if its verdict changes
    scripts/divergences.py 17 --keep D   case 17 alone; its run directory stays in D/17
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unhang.diagnosis.why import judge
from unhang.frames import Frame
from unhang.launch.evidence import guarded_lines, with_guards
from unhang.model import Counters, Verdict
from unhang.records.incident import Activity, Ended, Incident, LogRef, Raised, RankRecord, Stacks, ThreadStack
from unhang.records.rundir import RunDir

KINDS = ("skip", "extra", "swap", "size", "op", "group", "dtype", "root", "batches")
# What has to be advised of a call in which one thing differs, and what else may be: half as many bytes may be half as many elements.
ADVISED = {"size": ("same-size", "same-dtype"), "dtype": ("same-dtype", "same-size"), "root": ("same-root",), "reduction": ("same-reduction",)}
WRAPPERS = ("plain", "ddp", "fsdp2", "accelerate", "trainer")
# Nothing has changed for so long: the ranks stand. Recorders need four looks to see that a call which was noted out of order is over.
STANDS_S = 1.2
LOOK_S = 0.2
GIVE_UP_S = 60.0
IDLE = Activity(window_s=2.0, state="S", cpu_share=0.0, tree_cpu_share=0.0, switches_per_s=0.1, moved_share=0.0)

SETUP = {
    "plain": "import torch, torch.distributed as dist",
    "ddp": """\
import torch, torch.distributed as dist
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)""",
    "fsdp2": """\
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)""",
    "accelerate": """\
import torch, torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast, gather_object
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)""",
    "trainer": """\
import torch, torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments""",
}
STEP = {
    "ddp": "model(torch.ones(2, 4)).sum().backward()",
    "fsdp2": "model(torch.ones(2, 4)).sum().backward()",
    "accelerate": "accelerator.backward(model(torch.ones(2, 4)).sum())",
}
TRAINER = """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return {"loss": self.linear(x).sum()}
class Calls(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        at(state.global_step - 1)
arguments = TrainingArguments(output_dir=os.getcwd(), max_steps=steps, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
                              per_device_train_batch_size=1, logging_strategy="no")
data = [{"x": torch.ones(4)} for _ in range(64)]
Trainer(Net(), arguments, train_dataset=data, callbacks=[Calls()]).train()"""
CALLS = {
    "all_reduce": "dist.all_reduce(torch.ones({n}))",
    "broadcast": "dist.broadcast(torch.ones({n}), 0)",
    "all_gather": "dist.all_gather([torch.ones({n}) for _ in range(world)], torch.ones({n}))",
    "reduce": "dist.reduce(torch.ones({n}), 0)",
    "barrier": "dist.barrier()",
    "object": "dist.all_gather_object([None] * world, 'x' * {n})",
}
ACCELERATE = {
    "gather": "accelerator.gather(torch.ones({n}))",
    "acc-reduce": "accelerator.reduce(torch.ones({n}))",
    "everyone": "accelerator.wait_for_everyone()",
    "acc-broadcast": "broadcast(torch.ones({n}))",
    "gather-object": "gather_object(['x' * {n}])",
}
# Calls that are given another type, root or reduction; the last is over before anybody sees that it was another one.
GIVEN = {"dtype": ("all_reduce", "broadcast", "all_gather", "reduce"), "root": ("broadcast", "reduce"), "reduction": ("all_reduce", "reduce")}
# Rank 0 and the others come to one call from two lines, as they should.
PAIRED = ("if rank == 0:", "    dist.broadcast(torch.full((3,), 1.0), 0)", "else:", "    dist.broadcast(torch.empty(3), 0)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training. `lines`: those that may be named; `named`: the sets of ranks that may be."""

    seed: int
    world: int
    wrapper: str
    kind: str
    form: str
    script: str
    steps: int
    dirty: dict[int, tuple[int, ...]]
    deviants: tuple[int, ...]
    named: tuple[frozenset[int], ...]
    lines: frozenset[int]


class Draft:
    """A script in the making; lines carry marks: D the divergence, N where a rank that diverged goes on, S a regular call."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: dict[int, str] = {}
        self.indent = 0

    def add(self, text: str, mark: str = "") -> int:
        for line in text.split("\n"):
            self.lines.append("    " * self.indent + line)
            if mark:
                self.marks[len(self.lines)] = mark
        return len(self.lines)


def drawn(seed: int) -> Case:
    """The case of this seed, the same on each machine."""
    chance = random.Random(f"divergences/{seed}")
    wrapper = WRAPPERS[seed % len(WRAPPERS)]
    kind = KINDS[(seed // len(WRAPPERS)) % len(KINDS)]
    world = chance.choice((2, 2, 3, 4))
    deviants = tuple(sorted(chance.sample(range(world), 2 if world == 4 and chance.random() < 0.3 else 1)))
    steps = chance.randint(4, 8)
    when = chance.randint(1, steps - 1)
    form = chance.choice(("rank", "always", "data", *(("early", "loop", "caught") if kind == "skip" else ("loop",) if kind == "extra" else ())))
    pool = CALLS | (ACCELERATE if wrapper == "accelerate" else {})
    names = list(ACCELERATE) + list(CALLS)[:2] if wrapper == "accelerate" else list(CALLS)
    slots = [(chance.choice(names), chance.choice((4, 8, 8, 16)), chance.random() < 0.3) for _ in range(chance.randint(2, 4))]
    at = chance.randrange(len(slots) - (kind == "swap"))
    if kind in ("size", "group") or (kind in ("skip", "extra") and chance.random() < 0.3):
        slots[at] = (chance.choice(("all_reduce", "broadcast")) if kind == "group" else "all_reduce", slots[at][1], slots[at][2])
    if kind == "op" and chance.random() < 0.3:
        kind = "reduction"
    if kind in GIVEN:
        slots[at] = (chance.choice(GIVEN[kind]), slots[at][1], False)
    if kind == "swap" and slots[at][:2] == slots[at + 1][:2]:
        slots[at + 1] = ("all_gather" if slots[at][0] != "all_gather" else "all_reduce", *slots[at + 1][1:])
    rank = "accelerator.process_index" if wrapper == "accelerate" and chance.random() < 0.5 else "rank"
    test = f"{rank} == {deviants[0]}" if len(deviants) == 1 else f"{rank} in {deviants}"
    if rank != "rank" and deviants == (0,):
        test = "accelerator.is_main_process"
    condition = {"rank": f"{test} and step == {when}", "always": test}.get(form, "step in dirty")
    draft = Draft()
    draft.add("import json, os")
    draft.add(SETUP[wrapper])
    draft.add("rank, world = dist.get_rank(), dist.get_world_size()")
    draft.add(f"steps, dirty = {steps}, json.loads(os.environ['DIRTY'])")
    if kind == "batches":
        draft.add(f"steps = steps - 2 * ({test})", "D")
    if kind == "group":
        draft.add("other = dist.new_group(list(range(world)))")
    calls: list[tuple[str, int]] = []
    for number, (name, _, is_helper) in enumerate(slots):
        call = pool[name].replace("{n}", "n")
        if kind == "group" and number == at:
            call = call[:-1] + ", group=group)"
        if is_helper:
            draft.add(f"def sync_{number}(n, group=None):")
            line = draft.add("    " + call)
            calls.append((f"sync_{number}({{n}})" if not (kind == "group" and number == at) else f"sync_{number}({{n}}, group)", line))
        else:
            calls.append((call.replace("(n)", "({n})").replace("* n", "* {n}"), 0))
    paired = chance.random() < 0.4
    draft.add("def at(step):" if wrapper == "trainer" else "for step in range(steps):")
    draft.indent = 1
    if wrapper in STEP:
        draft.add(STEP[wrapper], "S")
        draft.add("optimizer.step()")
    if paired:
        draft.add("\n".join(PAIRED), "S")
    draft.add("if rank == 0 and step % 2:\n    message = f'step {step}'")

    def regular(number: int, mark: str = "S", deeper: int = 0, n: str = "") -> int:
        text, helper = calls[number]
        draft.indent += deeper
        line = draft.add(text.replace("{n}", n or str(slots[number][1])), mark)
        draft.indent -= deeper
        if helper and mark:
            draft.marks[helper] = mark if draft.marks.get(helper, "S") == "S" else draft.marks[helper]
        return helper or line

    def other_call() -> str:
        # The same operation with more or fewer elements may end a rank, and let the other one go on to its next call.
        name = slots[at][0] if chance.random() < 0.4 else chance.choice([name for name in names if name != slots[at][0]])
        return pool[name].replace("{n}", str(chance.choice((3, 5, 12, 32))))

    last = 0
    number = 0
    while number < len(slots):
        if number != at:
            line = regular(number)
            if last and not any(m == "N" for m in draft.marks.values()):
                draft.marks[line] = "N"
        elif kind == "skip":
            if form == "early":
                draft.add("if step in dirty:", "D")
                draft.add("    return" if wrapper == "trainer" else "    break", "D")
                regular(number, "D")
            elif form == "loop":
                draft.add("for _ in range(2 - (step in dirty)):", "D")
                regular(number, "D", 1)
            elif form == "caught":
                draft.add("try:\n    if step in dirty:\n        raise ValueError('empty batch')", "D")
                regular(number, "D", 1)
                draft.add("except ValueError:\n    pass", "D")
            else:
                draft.add(f"if not ({condition}):" if form != "always" else f"if not ({test}):", "D")
                regular(number, "D", 1)
            last = 1
        elif kind == "extra":
            if form == "loop":
                draft.add("for _ in range(1 + (step in dirty)):", "D")
                regular(number, "D", 1)
            else:
                draft.add(f"if {condition}:", "D")
                draft.add("    " + (calls[at][0].replace("{n}", str(slots[at][1])) if chance.random() < 0.4 else other_call()), "D")
                if calls[at][1]:
                    draft.marks[calls[at][1]] = "D"
                regular(number)
        elif kind == "swap":
            draft.add(f"if {condition}:", "D")
            regular(number + 1, "D", 1)
            regular(number, "D", 1)
            draft.add("else:")
            regular(number, "", 1)
            regular(number + 1, "", 1)
            number += 1
        elif kind == "size":
            draft.add(f"n = {slots[at][1]} + ({condition})", "D")
            regular(number, "D", n="n")
        elif kind == "dtype":
            draft.add(f"dtype = torch.{chance.choice(('float64', 'float64', 'float16', 'int32'))} if {condition} else torch.float32", "D")
            regular(number, "D", n=f"{slots[at][1]}, dtype=dtype")
        elif kind == "root":
            draft.add(f"root = {chance.choice(('1', 'world - 1'))} if {condition} else 0", "D")
            calls[at] = (calls[at][0][: -len("0)")] + "root)", 0)
            regular(number, "D")
        elif kind == "reduction":
            draft.add(f"how = dist.ReduceOp.MAX if {condition} else dist.ReduceOp.SUM", "D")
            calls[at] = (calls[at][0][:-1] + ", op=how)", 0)
            regular(number, "D")
        elif kind == "batches":
            regular(number)
        elif kind == "op":
            draft.add(f"if {condition}:", "D")
            draft.add("    " + other_call(), "D")
            draft.add("else:")
            regular(number, "", 1)
        else:
            draft.add(f"group = other if {condition} else None", "D")
            regular(number, "D")
        number += 1
    draft.indent = 0
    if wrapper == "trainer":
        # At its end it gathers the loss of all ranks.
        draft.marks[draft.add(TRAINER, "S")] = "N" if kind == "batches" else "S"
    # The line of a helper may issue another size for the first time here, on all ranks.
    helpers = [f"sync_{n}(32)" for n, (name, _, is_helper) in enumerate(slots) if is_helper and "all" in name]
    ends = draft.add(helpers[-1] if helpers and chance.random() < 0.6 else "dist.all_reduce(torch.ones(2))", "S")
    if kind == "batches" and chance.random() < 0.7:
        # Nothing makes a rank wait that has come to its end.
        draft.lines[-1] = "done = True"
    # Behind a skipped call the rank comes to the next one; behind the last of a step to the first of the next step, or to the end.
    if kind == "skip" and "N" not in draft.marks.values():
        after = [n for n, m in draft.marks.items() if m == "S"]
        draft.marks |= dict.fromkeys(after, "N")
    if form == "early" or kind == "batches":
        draft.marks[ends] = "N"
    lines = frozenset(n for n, m in draft.marks.items() if m in ("D", "N"))
    rest = frozenset(range(world)) - set(deviants)
    named = [frozenset(deviants), frozenset(range(world))]
    if form in ("rank", "always") and kind in ("skip", "op", "swap"):
        # Whoever stands under the test is named for it.
        named.append(rest)
    return Case(
        seed=seed,
        world=world,
        wrapper=wrapper,
        kind=kind,
        form=form,
        script="\n".join(draft.lines) + "\n",
        steps=steps,
        dirty={r: (when,) if r in deviants else () for r in range(world)},
        deviants=deviants,
        named=tuple(named),
        lines=lines,
    )


# -- the ranks


class Witness:
    """In a rank: says how it stands, and gives evidence, from a thread of its own."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link.makefile("rwb")
        self.main = threading.main_thread().ident or 0
        self.raised: dict[str, Any] | None = None
        self.left = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        from torch._C import _distributed_c10d
        from torch.distributed import distributed_c10d

        from unhang.attach.frames import glance, stacks
        from unhang.attach.recorder import Recorders

        recorders = Recorders(distributed_c10d, _distributed_c10d)
        for line in self.link:
            asked = json.loads(line)
            _, sig, inside = glance(self.main)
            reply: dict[str, Any] = {"groups": recorders.groups(), "sig": sig, "inside": inside, "raised": self.raised, "left": self.left}
            if path := asked.get("flight"):
                reply["threads"] = stacks(main_ident=self.main, without=threading.get_ident())
                try:
                    recorders.dump(path)
                except Exception as e:
                    reply["error"] = repr(e)
            self.link.write(json.dumps(reply).encode() + b"\n")
            self.link.flush()


def be_rank(case: Case, rank: int, folder: Path, rundir: RunDir, link: socket.socket) -> None:
    import torch.distributed as dist

    from unhang.attach import exit_hooks
    from unhang.attach.frames import traceback_frames

    for fd, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(rundir.log(0, rank=rank, stream=stream), os.O_CREAT | os.O_WRONLY | os.O_APPEND), fd)
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(case.world),
        "LOCAL_WORLD_SIZE": str(case.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "UNHANG_FATAL_DIR": str(rundir.fatal(0)),
        "DIRTY": json.dumps(case.dirty[rank]),
    }
    exit_hooks.arrange_fatal()
    witness = Witness(link)
    script = folder / "train.py"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case.world, timeout=datetime.timedelta(seconds=2 * GIVE_UP_S)
        )
        exec(compile(case.script, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    except BaseException as e:
        traceback.print_exc()
        frames = [f for f in traceback_frames(e.__traceback__) if f[0] != __file__]
        witness.raised = {"type": type(e).__name__, "text": str(e), "frames": frames}
        # As the hook does: who has failed waits until the evidence is in.
        threading.Event().wait()
    witness.left = True
    time.sleep(2 * LOOK_S)
    os._exit(0)


@dataclass
class Rank:
    """A rank, seen from outside. `told` is its last answer."""

    number: int
    pid: int
    link: socket.socket
    told: dict[str, Any]
    exitcode: int | None = None

    def ask(self, **what: str) -> dict[str, Any] | None:
        try:
            self.link.sendall(json.dumps(what).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                if not select.select([self.link], [], [], 20.0)[0] or not (more := self.link.recv(1 << 20)):
                    return None
                data += more
            return dict(json.loads(data))
        except OSError:
            return None

    def look(self) -> object:
        if self.exitcode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exitcode = os.waitstatus_to_exitcode(status)
            elif (told := self.ask()) is not None:
                self.told = told
        return self.exitcode, self.told.get("groups"), self.told.get("sig"), self.told.get("raised") is not None

    @property
    def stands(self) -> bool:
        waits = any(e > c for e, c in (self.told.get("groups") or {}).values()) or self.told.get("inside")
        return self.exitcode is not None or self.told.get("raised") is not None or bool(waits)


def run(case: Case, folder: Path) -> Verdict | None:
    """The verdict on a case; None where the training came to its end, or never stood."""
    rundir = RunDir.create(folder / "run")
    rundir.write(rundir.run, {"schema": "unhang/run/1"})
    for made in (rundir.logs(0), rundir.fatal(0), rundir.flight(1, 0).parent):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(case.script)
    ranks = []
    for number in range(case.world):
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                be_rank(case, number, folder, rundir, theirs)
            finally:
                os._exit(70)
        theirs.close()
        ranks.append(Rank(number=number, pid=pid, link=ours, told={}))
    try:
        return _judged(case, folder, rundir, ranks) if _stood(ranks) else None
    finally:
        for rank in ranks:
            if rank.exitcode is None:
                os.kill(rank.pid, signal.SIGKILL)
                os.waitpid(rank.pid, 0)
            rank.link.close()


def _stood(ranks: Sequence[Rank]) -> bool:
    began = since = time.monotonic()
    before: object = None
    while time.monotonic() - began < GIVE_UP_S:
        seen = [rank.look() for rank in ranks]
        if all(rank.exitcode == 0 for rank in ranks):
            return False
        if seen != before or not all(rank.stands for rank in ranks):
            before, since = seen, time.monotonic()
        if time.monotonic() - since > STANDS_S:
            return True
        time.sleep(LOOK_S)
    return False


def _judged(case: Case, folder: Path, rundir: RunDir, ranks: Sequence[Rank]) -> Verdict:
    records, logs = [], []
    for rank in ranks:
        number, told = rank.number, rank.told
        record = RankRecord(
            rank=number, pid=rank.pid, host="node0", local_rank=number, world_size=case.world, backend="gloo", device="cpu", last_beat_s=30.0
        )
        if rank.exitcode is not None:
            left = bool(told.get("left"))
            # A process may end long after its connections, and after those have failed that counted on it.
            ended = Ended(at_s=33.0 if left else 30.0, exitcode=rank.exitcode, announced=left, finished=left)
            record = replace(record, ended=ended, done=left)
        elif (given := rank.ask(flight=str(rundir.flight(1, number)))) is not None:
            told = given
            record = replace(record, answered=True, activity=IDLE)
            if rundir.flight(1, number).is_file():
                record = replace(record, flight=rundir.relative(rundir.flight(1, number)))
            if told["raised"] is None:
                threads = tuple(ThreadStack(name=t["name"], main=t["main"], frames=_frames(t["frames"])) for t in told["threads"])
                path = rundir.stacks(1, number)
                rundir.write(path, with_guards(_ours_left_out(Stacks(source="process", threads=threads))))
                record = replace(record, stacks=rundir.relative(path))
        if raised := told.get("raised"):
            record = replace(record, raised=Raised(type=raised["type"], text=raised["text"], frames=_frames(raised["frames"]), at_s=30.0))
        groups = {name: Counters(enqueued=e, completed=c) for name, (e, c) in (told.get("groups") or {}).items()}
        records.append(replace(record, groups=groups, last_progress_s=29.0))
        for stream in ("out", "err"):
            log = rundir.log(0, rank=number, stream=stream)
            logs.append(LogRef(path=rundir.relative(log), bytes=log.stat().st_size, rank=number))
    is_failure = any(r.raised or r.ended for r in records)
    incident = Incident(
        number=1,
        attempt=0,
        kind="failure" if is_failure else "hang",
        at_s=31.0,
        at="2026-11-03T10:00:00.000+00:00",
        cwd=str(folder),
        command=("python", "train.py"),
        expected_world=case.world,
        stalled_for_s=None if is_failure else 2.0,
        threshold_s=None if is_failure else 1.0,
        exitcode=1 if is_failure else None,
        ranks=tuple(records),
        logs=tuple(logs),
        guards=guarded_lines(rundir.path / r.flight for r in records if r.flight),
    )
    rundir.write(rundir.incident(1), incident)
    return judge(rundir)


def _frames(told: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(file=f, line=n, name=name, code=code, arguments=given) for f, n, name, code, given in told)


def _ours_left_out(stacks: Stacks) -> Stacks:
    """Without the frames of this script below the training's."""
    return replace(stacks, threads=tuple(replace(t, frames=tuple(f for f in t.frames if f.file != __file__)) for t in stacks.threads))


# -- what is right


def wrong(case: Case, verdict: Verdict | None) -> str | None:
    """What an established verdict says that is not so; None where nothing is."""
    found = verdict.primary if verdict is not None else None
    if found is None or found.standing != "established":
        return None
    if frozenset(found.ranks) not in case.named and not (found.ranks and set(found.ranks) < set(case.deviants)):
        return f"names ranks {list(found.ranks)}, and {list(case.deviants)} deviated"
    line = int(found.where.split(":")[1].split(" ")[0]) if found.where is not None and found.where.startswith("train.py:") else None
    if found.where is not None and line not in case.lines:
        return f"names {found.where}, and the lines that deviate are {sorted(case.lines)}"
    advised = {r.id for r in found.remedies if r.id.startswith("same-") and r.id not in ("same-order", "same-branches")}
    if found.cause == "collective-mismatch" and (known := ADVISED.get(case.kind)) and not {known[0]} <= advised <= {*known}:
        return f"advises {sorted(advised)} where {known[0]} would help"
    return None


def examine(seed: int, keep: Path | None) -> tuple[Case, Verdict | None, str | None]:
    case = drawn(seed)
    folder = keep / str(seed) if keep is not None else Path(tempfile.mkdtemp(prefix="unhang-divergence-"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        verdict = run(case, folder)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return case, verdict, wrong(case, verdict)


def _shown(verdict: Verdict | None) -> tuple[object, ...] | None:
    found = verdict.primary if verdict is not None else None
    return None if found is None else (found.cause, found.standing, found.ranks, found.where, [r.id for r in found.remedies])


def prepare() -> None:
    """Import once what every rank needs; ranks are forked, so nothing here may start a thread."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000", "USE_LIBUV": "0"}
    import accelerate  # noqa: F401
    import torch
    import transformers
    from torch.distributed.fsdp import fully_shard  # noqa: F401

    torch.set_num_threads(1)
    transformers.Trainer  # noqa: B018  it is imported when it is first named


def said(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="*", help="these cases")
    parser.add_argument("--cases", type=int, default=0, help="the first N cases")
    parser.add_argument("--keep", type=Path, help="keep scripts and run directories in this folder")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="run every N-th case twice: its verdict has to be the same")
    chosen = parser.parse_args()
    prepare()
    began = time.monotonic()
    standings: Counter[tuple[str, str]] = Counter()
    mistakes, changed, again = [], [], 0
    seeds = [*chosen.seeds, *range(chosen.cases)]
    for seed in seeds:
        case, verdict, mistake = examine(seed, chosen.keep)
        found = verdict.primary if verdict is not None else None
        standings[case.kind, found.standing if found is not None else "went through"] += 1
        told = "went through" if found is None else f"{found.cause} {found.standing} {list(found.ranks)} {found.where or ''}"
        said(f"{seed:4} {case.wrapper:10} {case.kind:9} {case.form:6} {list(case.deviants)} of {case.world}: {told}")
        if chosen.again and seed % chosen.again == 0:
            other = examine(seed, None)[1]
            again += 1
            if (once := _shown(verdict)) != (twice := _shown(other)):
                changed.append(seed)
                said(f"     CHANGED: {once}\n          to: {twice}")
        if mistake is not None:
            mistakes.append(seed)
            said(f"     WRONG: {mistake}\n     {found.says if found else ''}")
    for kind in (*KINDS, "reduction"):
        said(f"{kind:9} " + ", ".join(f"{n} {standing}" for (k, standing), n in sorted(standings.items()) if k == kind))
    established = sum(n for (_, standing), n in standings.items() if standing == "established")
    seconds = round(time.monotonic() - began, 1)
    said(json.dumps({"cases": len(seeds), "established": established, "wrong": mistakes, "twice": again, "changed": changed, "seconds": seconds}))
    return 1 if mistakes or changed else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
