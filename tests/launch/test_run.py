"""`unhang run` on real trainings: what is found, what is said, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from unhang import encoding
from unhang.diagnosis.why import judge
from unhang.launch.attempt import INTERRUPT_GRACE_S
from unhang.launch.step_rate import STANDS_S
from unhang.records.rundir import RunDir

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

CALM = "dist.init_process_group('gloo')\ntrain(30)\nprint('rank', rank, 'done')\ndist.destroy_process_group()\n"


def broken(what: str, *, step: int = 20, steps: int = 30) -> str:
    """A training of which rank 1 does `what` once, at a fixed step of the first attempt."""
    return f"""
def at(step):
    if first and rank == 1 and step == {step}:
        {what}

dist.init_process_group("gloo")
train({steps}, at)
dist.destroy_process_group()
"""


def test_an_undisturbed_run(launcher):
    run = launcher.train(CALM, compiler=True)
    assert (run.exitcode, run.outcome["verdict"], run.outcome["attempts"]) == (0, None, 1)
    assert run.log("rank0.out") == "rank 0 done\n"
    assert run.log("rank1.out") == "rank 1 done\n"
    assert "rank 0 done" in run.err
    (first,) = run.happened("FirstStep")
    assert (first["ranks"], first["devices"], first["backend"]) == (2, ["cpu"], "gloo")
    assert "2 ranks on cpu (gloo)" in run.err
    assert not (run.path / "incidents").exists()
    assert (run.path / "host.json").is_file()


def test_killed_rank_and_a_restart(launcher):
    run = launcher.train(broken("os.kill(os.getpid(), signal.SIGKILL)"))
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    assert (run.primary["cause"], run.primary["ranks"]) == ("host-oom-or-killed", [1])
    # The survivor's evidence was taken before the launcher ended it.
    assert (run.path / "incidents/1/stacks/rank0.json").is_file()
    assert (run.path / "incidents/1/flight/rank_0").is_file()
    assert len(run.happened("Restarting")) == 1


def test_an_exception_and_the_trainings_own_exit_code(launcher):
    run = launcher.train(broken("raise ValueError('no such batch')"), "--on-failure", "abort")
    assert (run.exitcode, run.outcome["attempts"]) == (1, 1)
    assert (run.primary["cause"], run.primary["ranks"], run.primary["standing"]) == ("rank-exception", [1], "established")
    assert run.primary["where"].startswith("train.py:")
    assert "no such batch" in run.primary["says"]
    # What to read stands last, in few lines, behind a rule: torchrun prints dozens.
    ours = run.err.rpartition("─" * 80)[2].strip().splitlines()
    assert [line.split()[0] for line in ours] == ["✗", "rank", "who", "where", "do", "unhang:", "unhang:"], ours
    assert "ValueError: no such batch" in ours[1] and ours[4].startswith("do this ")


@pytest.mark.integration
@pytest.mark.parametrize(("leave", "hook"), [("sys.exit(0)", ""), ("raise ValueError('lost')", "sys.excepthook = lambda *e: None")])
def test_the_line_that_ends_a_rank_is_named(launcher, leave, hook):
    # Exit handlers that take their time, as those of experiment trackers do: the last heartbeat is theirs.
    late = "import atexit\natexit.register(lambda: time.sleep(1))\n"
    run = launcher.train(f"{late}{hook}\n{broken(leave)}", "--on-failure", "abort")
    cause = "premature-exit" if "exit" in leave else "rank-exception"
    assert (run.primary["cause"], run.primary["ranks"], run.primary["standing"]) == (cause, [1], "established")
    line = (launcher.tmp_path / "train.py").read_text().splitlines().index(f"        {leave}") + 1
    assert run.primary["where"] == f"train.py:{line} in at"
    assert "last seen" not in run.primary["says"]


def test_an_exit_code_of_the_training_is_passed_on(launcher):
    script = launcher.tmp_path / "exits.py"
    script.write_text("raise SystemExit(7)")
    run = launcher.run("--on-failure", "abort", sys.executable, str(script))
    assert run.exitcode == 7


def test_a_hang(launcher):
    run = launcher.train(broken("threading.Event().wait()"), "--hang-after", "4")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    assert (run.primary["cause"], run.primary["ranks"]) == ("process-stuck", [1])
    line = next(i for i, text in enumerate(launcher.script(broken("threading.Event().wait()")).read_text().splitlines(), 1) if "Event" in text)
    assert run.primary["where"] == f"train.py:{line} in at"


@pytest.mark.integration
def test_a_hang_without_restart_returns_1(launcher):
    run = launcher.train(broken("threading.Event().wait()"), "--hang-after", "4", "--on-failure", "abort")
    assert (run.exitcode, run.outcome["attempts"]) == (1, 1)


@pytest.mark.integration
def test_a_hang_that_is_only_reported(launcher):
    run = launcher.train(broken("time.sleep(9)"), "--hang-after", "4", "--on-failure", "report")
    assert (run.exitcode, run.outcome["attempts"], run.outcome["incidents"]) == (0, 1, 1)
    assert [e["left_s"] for e in run.happened("Stalled")] == [None]
    assert run.primary["ranks"] == [1]
    assert len(run.happened("CaughtUp")) == 1


@pytest.mark.integration
def test_a_stopped_rank_is_read_from_outside(launcher):
    run = launcher.train(broken("os.kill(os.getpid(), signal.SIGSTOP)"), "--hang-after", "4")
    assert run.exitcode == 0
    assert (run.primary["cause"], run.primary["ranks"], run.primary["standing"]) == ("process-stuck", [1], "established")
    assert run.primary["where"].startswith("train.py:")
    # It has been ended: nobody can let it go on any more.
    files = ("verdict.json", "verdict.md", "report.html", "incidents/1/verdict.json")
    texts = {
        name: " ".join(text.split()) for name, text in {"err": run.err, "out": run.out, **{n: (run.path / n).read_text() for n in files}}.items()
    }
    assert not [name for name, text in texts.items() if "kill -CONT" in text]
    # Told before it was ended; what is left was written afterwards.
    assert [name for name, text in texts.items() if "unhang run ends process" in text] == ["err"]
    assert [name for name, text in texts.items() if "has ended since" in text] == ["out", *files]


@pytest.mark.integration
def test_a_rank_that_was_stopped_behind_its_last_heartbeat(launcher):
    """That one tells of a collective which it has left since: the rank does not wait there, and nobody else is to blame."""
    body = """
def at(step):
    if first and step == 20:
        if rank == 0:
            time.sleep(0.8)
        dist.all_reduce(torch.ones(1))
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

dist.init_process_group("gloo")
train(30, at)
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "20")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    found = run.primary
    told = [found["says"], *(e["text"] for e in found["evidence"])]
    assert (found["cause"], found["ranks"], found["standing"]) == ("process-stuck", [1], "established")
    assert "while rank 0 waits in all_reduce" in found["says"]
    assert not any("rank 1 waits" in text or "; no #" in text for text in told), told
    assert "straggler" not in {e["kind"] for e in run.happened("Opened")}


@pytest.mark.integration
def test_a_rank_that_was_stopped_in_an_evaluation(launcher):
    """The other one gives it up and trains on: no call of unhang's own, long over, is what it waits in then."""
    body = """
import unhang

def metrics(data, size):
    if first and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    yield {"loss": 1.0}

def at(step):
    if first and step == 20 and rank == 0:
        # Long enough for a heartbeat of the other one, the last for a while.
        time.sleep(0.8)
    for size in (1000, 2000):
        unhang.all_reduce(torch.ones(size), "avg", deadline=6)
    if step == 20:
        print("missing", unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=15).missing, flush=True)

dist.init_process_group("gloo")
train(30, at)
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "5")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    found = run.primary
    assert (found["cause"], found["ranks"], found["standing"]) == ("process-stuck", [1], "established")
    assert "missing (1,)" in run.log("rank0.out")
    line = next(n for n, text in enumerate((run.path.parent / "train.py").read_text().splitlines(), 1) if "backward()" in text)
    assert f"while rank 0 waits in all_reduce (train.py:{line} in train)" in found["says"]
    assert "straggler" not in {e["kind"] for e in run.happened("Opened")}


@pytest.mark.integration
def test_a_rank_that_never_used_the_group_in_which_it_is_waited_for(launcher):
    """Gloo's dumps do not tell who belongs to a group: rank 2 does not, and is not to blame for computing meanwhile."""
    body = """
dist.init_process_group("gloo")
side = dist.new_group([0, 1])
train(20)
if rank == 0:
    dist.all_reduce(torch.zeros(4), group=side)
threading.Event().wait()
"""
    run = launcher.train(body, "--hang-after", "4", "--on-failure", "abort", ranks=3)
    assert (run.primary["cause"], run.primary["ranks"]) == ("process-stuck", [1])


@pytest.mark.integration
def test_programs_that_compute_one_after_another_are_work(launcher):
    burn = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    what = f"import subprocess\n        for _ in range(7): subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    run = launcher.train(broken(what))
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)
    assert {e["kind"] for e in run.happened("Opened")} <= {"straggler"}


@pytest.mark.integration
def test_slow_is_not_stuck(launcher):
    # CPU time: on a busy machine the usual step takes longer, and so does what is called slow.
    busy = "end = time.thread_time() + 15\n        while time.thread_time() < end: sum(range(10000))"
    run = launcher.train(broken(busy))
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)
    assert (run.primary["cause"], run.primary["ranks"]) == ("straggler-timeout", [1])
    assert {e["kind"] for e in run.happened("Stalled")} <= {"repeats", "works"} and len(run.happened("CaughtUp")) == 1


@pytest.mark.integration
def test_a_timeout_later_leaves_the_rank_named_that_was_waited_for(launcher):
    run = launcher.train(broken("while True: pass"), "--hang-after", "4", "--timeout", "15", "--on-failure", "report")
    assert run.exitcode != 0
    kinds = [e["kind"] for e in run.happened("Opened")]
    assert (kinds[0], kinds[-1]) == ("straggler", "failure")
    final = json.loads((run.path / "verdict.json").read_text())
    for primary in (run.primary, final["primary"], json.loads(encoding.encode(judge(RunDir.open(run.path)).primary))):
        assert (primary["cause"], primary["standing"], primary["ranks"]) == ("process-stuck", "likely", [1])
        assert "led to collective-timeout" in primary["says"]
    assert "process-stuck" in run.err.splitlines()[-1] or "led to" in " ".join(run.err.split())


@pytest.mark.integration
def test_a_step_of_twenty_times_the_usual_is_no_alarm(launcher):
    run = launcher.train(broken("time.sleep(6)", step=20, steps=24).replace("train(24, at)", "train(24, at, step_s=0.25)"))
    assert (run.exitcode, run.outcome["attempts"], run.outcome["incidents"]) == (0, 1, 0)


@pytest.mark.integration
def test_the_same_failure_twice_in_a_row_ends_it(launcher):
    run = launcher.train(broken("raise ValueError('always')").replace("first and ", ""), "--max-restarts", "5")
    assert (run.exitcode, run.outcome["attempts"]) == (1, 2)
    assert "same failure again" in run.happened("GaveUp")[0]["why"]


@pytest.mark.integration
def test_max_restarts(launcher):
    # Each attempt gets a few steps further than the one before.
    body = broken("raise ValueError('again')").replace("first and ", "").replace("step == 20", "step == 6 + 9 * int(os.environ['UNHANG_ATTEMPT'])")
    run = launcher.train(body, "--max-restarts", "1")
    assert (run.exitcode, run.outcome["attempts"]) == (1, 2)
    assert "--max-restarts 1" in run.happened("GaveUp")[0]["why"]


@pytest.mark.integration
def test_two_ranks_that_train_alone_are_a_failure(launcher):
    body = """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""
    run = launcher.train(body)
    assert run.exitcode == 1
    assert run.primary["cause"] == "rendezvous-misconfig"
    assert run.outcome["attempts"] == 1


@pytest.mark.integration
def test_the_world_check_can_be_switched_off(launcher):
    body = """
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
for step in range(5):
    optimizer.step()
"""
    assert launcher.train(body, "--no-world-check").exitcode == 0


@pytest.mark.integration
def test_any_launcher_and_its_own_restarts(launcher):
    body = broken("os.kill(os.getpid(), signal.SIGKILL)").replace("first and", "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and")
    # torch 2.13's Gloo may find addresses of the attempt before in the agent's store: each attempt gets a store of its own.
    meeting = f"init_method='file://{launcher.tmp_path}/store' + os.environ['TORCHELASTIC_RESTART_COUNT'], rank=rank, world_size=2"
    script = launcher.script(body.replace('init_process_group("gloo")', f'init_process_group("gloo", {meeting})'))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    run = launcher.run(*torchrun, str(script))
    assert (run.exitcode, run.outcome["attempts"], run.outcome["incidents"]) == (0, 1, 1)
    assert run.primary["cause"] == "host-oom-or-killed"
    assert any("starts the ranks again by itself" in e["text"] for e in run.happened("Note"))
    assert [e["restarts"] for e in run.happened("Attached")] == [0, 0, 1, 1]


@pytest.mark.integration
def test_processes_that_a_script_spawns_itself(launcher):
    body = """
import torch.multiprocessing as mp

def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    train(30)
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
"""
    run = launcher.run(sys.executable, str(launcher.script(body)))
    assert run.exitcode == 0
    assert {e["rank"] for e in run.happened("Joined")} == {0, 1}
    assert run.happened("FirstStep")[0]["ranks"] == 2


def test_output_passes_unchanged(launcher):
    script = launcher.tmp_path / "prints.py"
    script.write_text("import sys\nsys.stdout.buffer.write(b'a\\rb\\x00\\xff\\n'); sys.stdout.write('no end')\n")
    process = subprocess.run(
        [sys.executable, "-m", "unhang", "run", "--run-dir", str(launcher.tmp_path / "r"), sys.executable, str(script)],
        capture_output=True,
        timeout=300,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout == b"a\rb\x00\xff\nno end"


def test_credentials_of_the_command_line_are_not_written_down(launcher):
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
    run = launcher.run("--on-failure", "abort", sys.executable, "-c", "raise SystemExit(3)", f"--token={secret}", "--password", "planted words")
    assert run.exitcode == 3
    for file in (p for p in run.path.rglob("*") if p.is_file()):
        assert secret.encode() not in file.read_bytes() and b"planted" not in file.read_bytes(), file


def test_dry_run_starts_nothing(launcher):
    script = launcher.script("open('started', 'w')")
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "run", "--dry-run", "-n", "2", "--python", sys.executable, str(script), "--lr", "1 2"],
        capture_output=True,
        text=True,
        cwd=launcher.tmp_path,
        timeout=300,
        check=True,
    )
    assert "UNHANG_ATTACH=1" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("--nproc-per-node 2 " + str(script) + " --lr '1 2'")
    assert not (launcher.tmp_path / "started").exists()
    assert not (launcher.tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["missing.py"], "missing.py: no such file"),
        (["--on-failure", "explode", "train.py"], "restart, abort, report"),
        (["nosuchlauncher"], "nosuchlauncher"),
    ],
)
def test_bad_input(launcher, argv, says):
    launcher.script("")
    run = launcher.run(*argv)
    assert run.exitcode == 2
    assert says in run.err
    assert "Traceback" not in run.err


def test_a_run_directory_that_exists_is_not_overwritten(launcher):
    (launcher.tmp_path / "run1").mkdir()
    (launcher.tmp_path / "run1" / "run.json").touch()
    run = launcher.run(sys.executable, "-c", "pass")
    assert run.exitcode == 2
    assert "run1" in run.err


def interrupted(launcher, body: str, signals: list[int]):
    process, run_dir = launcher.start("-n", "2", str(launcher.script(body)))
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    for number in signals:
        process.send_signal(number)
        launcher.until(lambda: process.poll() is not None or "interrupted" in (launcher.tmp_path / "err1").read_text())
    return launcher.finish(process, run_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything(launcher, number):
    run = interrupted(launcher, "dist.init_process_group('gloo')\ntrain(100000)\n", [number])
    assert run.exitcode == 128 + number
    assert run.happened("Finished")[0]["interrupted"] is True
    assert run.outcome["interrupted"] is True
    assert run.outcome["verdict"] is None
    seen = run.happened("LastSeen")[0]
    assert seen["signal"] == number.name and sorted(r for s in seen["seen"] for r in s["ranks"]) == [0, 1]
    assert f"as {number.name} came, by the last heartbeats: rank" in run.err
    assert judge(RunDir.open(run.path)).primary.says.startswith("the training was interrupted")


STANDS = """
dist.init_process_group('gloo')
# Long steps: what stands for a while is not named yet.
train(6, step_s=3.0)
print("stands", flush=True)
if rank == 1:
    threading.Event().wait()
dist.barrier()
"""


def standing(launcher, *options: str):
    """A run whose ranks stand, as our watch has seen for longer than is usual."""
    process, run_dir = launcher.start("-n", "2", "--hang-after", "300", *options, str(launcher.script(STANDS)))
    log = run_dir / "logs" / "attempt-0" / "rank0.out"
    launcher.until(lambda: log.is_file() and "stands" in log.read_text())
    began = time.monotonic()
    launcher.until(lambda: time.monotonic() - began > 5 * STANDS_S)
    return process, run_dir


@pytest.mark.integration
def test_what_stands_still_is_looked_at_before_it_is_interrupted(launcher):
    process, run_dir = standing(launcher)
    process.send_signal(signal.SIGINT)
    run = launcher.finish(process, run_dir)
    assert (run.exitcode, run.outcome["interrupted"], run.outcome["incidents"]) == (130, True, 1)
    assert (run.primary["cause"], run.primary["standing"], run.primary["ranks"]) == ("process-stuck", "likely", [1])
    assert "interrupted then (SIGINT)" in run.primary["says"] and "after which it is taken for a hang" in run.primary["says"]
    told = [e["text"] for e in run.happened("Note")]
    assert any("taking stacks of 2 ranks, up to 5 s; Ctrl-C again to skip" in text for text in told)
    incident = json.loads((run_dir / "incidents" / "1" / "incident.json").read_text())
    assert (incident["kind"], incident["interrupted_by"]) == ("interrupted", "SIGINT")
    assert all(r["answered"] and r["stacks"] and r["flight"] and r["ended"] is None for r in incident["ranks"])
    again = judge(RunDir.open(run_dir)).primary
    assert again is not None and again.says == run.primary["says"]


@pytest.mark.integration
def test_the_end_of_the_time_is_told_to_all_processes_at_once(launcher):
    """As Slurm does: the ranks die while they are looked at."""
    process, run_dir = standing(launcher)
    for pid in [process.pid, *(pid for pid, _ in launcher.living() if pid != process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    run = launcher.finish(process, run_dir)
    assert run.exitcode == 143
    incident = json.loads((run_dir / "incidents" / "1" / "incident.json").read_text())
    assert (incident["kind"], incident["interrupted_by"]) == ("interrupted", "SIGTERM")
    assert all(r["ended"] is None and r["last_place"] for r in incident["ranks"])
    assert run.primary["ranks"] == [1] and "SIGTERM" in run.primary["says"]


IGNORES = """for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)
dist.init_process_group('gloo', **({} if 'RANK' in os.environ else {'store': dist.HashStore(), 'rank': 0, 'world_size': 1}))
train(100000)
"""


def test_a_second_interrupt_forces(launcher):
    process, run_dir = launcher.start("-n", "2", str(launcher.script(IGNORES)))
    err = launcher.tmp_path / "err1"
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    process.send_signal(signal.SIGINT)
    launcher.until(lambda: "interrupted; waiting up to 30 s for the training to end by itself (Ctrl-C again ends it at once)" in err.read_text())
    launcher.until(lambda: "still there" in err.read_text())
    process.send_signal(signal.SIGINT)
    run = launcher.finish(process, run_dir)
    assert run.exitcode == 130
    assert sorted(r for e in run.happened("Forced") if e["by_us"] for s in e["seen"] for r in s["ranks"]) == [0, 1]
    assert "ended by force" in run.err
    pids = {e["rank"]: e["pid"] for e in run.happened("Attached") if e["rank"] is not None}
    asked, told = (e for e in run.happened("Note") if "Ctrl-C again" in e["text"])
    assert told["text"].startswith(f"still there 5 s after it: rank 0 (pid {pids[0]}), rank 1 (pid {pids[1]}); to be ended by force in 25 s")
    # Without the force, ranks that ignore the signal are given this long.
    assert run.happened("Finished")[0]["s"] - asked["s"] < INTERRUPT_GRACE_S[signal.SIGINT] / 2


@pytest.mark.integration
@pytest.mark.parametrize("alone", [False, True])
def test_a_launcher_that_may_end_its_ranks_before_us_is_told_of(launcher, alone):
    """Ours waits for 60 s behind SIGTERM, torchrun for 30 s; a Python of its own has nobody who would end it."""
    script = str(launcher.script(IGNORES))
    process, run_dir = launcher.start(*((sys.executable, script) if alone else ("-n", "2", script)))
    err = launcher.tmp_path / "err1"
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    process.send_signal(signal.SIGTERM)
    launcher.until(lambda: "still there" in err.read_text())
    process.send_signal(signal.SIGTERM)
    run = launcher.finish(process, run_dir)
    assert run.exitcode == 143
    asked, told = (e["text"] for e in run.happened("Note") if "another signal" in e["text"])
    sooner = ("", "") if alone else ("; its launcher may end it after 30 s", ", by their launcher maybe in 25 s")
    assert f"waiting up to 60 s for the training to end by itself{sooner[0]} (another" in asked
    assert f"to be ended by force in 55 s{sooner[1]} (another" in told


def test_a_supervisor_that_is_killed_leaves_no_training_behind(launcher):
    # Short, as the path of a socket has to be.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        script = launcher.script("dist.init_process_group('gloo')\ntrain(100000)\n")
        process, run_dir = launcher.start("-n", "2", str(script), env={"TMPDIR": temporary})
        launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
        process.kill()
        process.wait()
        launcher.until(lambda: not launcher.living())
        # Its socket is left, until the next run.
        assert len(list(Path(temporary).glob("unhang-*/socket"))) == 1
        launcher.run(sys.executable, "-c", "pass", env={"TMPDIR": temporary})
        assert not list(Path(temporary).glob("unhang-*"))


def test_what_a_shell_script_leaves_behind_with_a_killed_supervisor_is_named(launcher):
    train = launcher.script("dist.init_process_group('gloo')\ntrain(100000)\n")
    script = launcher.tmp_path / "train.sh"
    of_one = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0"
    script.write_text(f"{of_one} {shlex.quote(sys.executable)} {shlex.quote(str(train))} &\nwait\n")
    process, run_dir = launcher.start("sh", str(script))
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    pid = launcher.until(lambda: next((r["pid"] for r in json.loads((run_dir / "now.json").read_text())["ranks"] if r["step"]), None))
    process.kill()
    process.wait()
    assert f"still running, unwatched: rank 0 (pid {pid} on " in judge(RunDir.open(run_dir)).primary.says
    os.kill(pid, signal.SIGKILL)
    # It closes its files before it is seen to be dead.
    launcher.until(lambda: "no longer alive: rank 0" in judge(RunDir.open(run_dir)).primary.says)


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_never_takes_the_training_down(launcher):
    mount = launcher.tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], check=True)
    try:
        body = "dist.init_process_group('gloo')\nprint('x' * 1000000)\ntrain(20)\nprint('end', rank)\ndist.destroy_process_group()\n"
        script = launcher.script(body)
        process = subprocess.run(
            [sys.executable, "-m", "unhang", "run", "--run-dir", str(mount / "run"), "-n", "2", "--python", sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        assert "end 0" in process.stdout
        assert "No space left on device" in process.stderr
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.integration
def test_what_the_user_is_shown(launcher):
    run = launcher.train(broken("os.kill(os.getpid(), signal.SIGKILL)"))
    told = [line for line in run.err.splitlines() if line.startswith("unhang:")]
    assert [line.split(":")[1].split(";")[0].strip()[:18] for line in told] == [
        "2 ranks on cpu (gl",
        "a rank has failed",
        "starting again (re",
        "2 ranks on cpu (gl",
        "training finished ",
        "records in run1",
    ]
    assert Path(run.outcome["run_dir"], "verdict.md").is_file()
    assert Path(run.outcome["run_dir"], "report.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.integration
def test_a_rank_that_waits_for_an_upload_is_not_stuck(launcher):
    """`aws s3 cp` and the like: the rank itself does nothing, and its child hardly uses CPU. It is named, and not ended."""
    upload = "import time\nfor _ in range(250):\n    open('/dev/zero', 'rb', buffering=0).read(20000)\n    time.sleep(0.1)\n"
    body = broken(f"import subprocess; subprocess.run([sys.executable, '-c', {upload!r}])")
    run = launcher.train(body)
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)
    assert run.primary["cause"] == "straggler-timeout"


@pytest.mark.parametrize("call", ["barrier()", "evaluate(lambda data, size: {}, {'a': 1}, batch_size=1)"])
@pytest.mark.integration
def test_a_rank_that_the_library_waits_for(launcher, call):
    """unhang's own collectives poll: who waits in one neither executes nor is the one that is stuck."""
    body = f"""
import unhang
def at(step):
    if step == 20:
        if first and rank == 1:
            threading.Event().wait()
        unhang.{call}

dist.init_process_group("gloo")
train(30, at)
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "4")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    assert (run.primary["cause"], run.primary["ranks"]) == ("process-stuck", [1])
    assert f"waits in unhang.{call.partition('(')[0]} (" in run.primary["says"]


@pytest.mark.integration
def test_a_thread_that_keeps_a_finished_script_alive(launcher):
    body = """
dist.init_process_group("gloo")
train(30)
if rank == 1:
    threading.Thread(target=threading.Event().wait, name="uploader").start()
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "4")
    assert (run.primary["cause"], run.primary["ranks"], run.outcome["attempts"]) == ("process-stuck", [1], 1)
    line = next(i for i, text in enumerate((launcher.tmp_path / "train.py").read_text().splitlines(), 1) if "uploader" in text)
    assert "thread uploader" in run.primary["says"] and f"train.py:{line} in " in run.primary["where"]


@pytest.mark.integration
def test_a_rank_that_an_evaluation_at_the_end_went_on_without(launcher):
    """Nobody is left that waits for it: without being told, silence would be given ten minutes."""
    body = """
import unhang
dist.init_process_group("gloo")
train(30)

def metrics(data, size):
    if first and rank == 1:
        threading.Event().wait()
    return {"loss": 1.0}

found = unhang.evaluate(metrics, {"a": 1}, batch_size=1, deadline=4)
print("missing", found.missing)
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "6")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    assert (run.primary["cause"], run.primary["ranks"]) == ("process-stuck", [1])
    assert "missing (1,)" in run.log("rank0.out")


@pytest.mark.integration
@pytest.mark.parametrize("skips", [True, False])
def test_a_call_of_the_library_and_a_collective_that_wait_for_each_other(launcher, skips):
    """Who waits in the library asks the store all the time: that is no sign of life. One rank leaves out a call; or fails alone in an evaluation."""
    body = f"""
import unhang

def metrics(data, size):
    if rank == 1:
        raise RuntimeError("bad sample")
    dist.all_reduce(torch.ones(1))
    return {{"loss": 1.0}}

def at(step):
    if not ({skips} and step == 20 and rank == 1):
        unhang.all_reduce(torch.ones(8), "max")
    if not {skips} and step == 20:
        unhang.evaluate(metrics, {{"a": 1}}, batch_size=1)

dist.init_process_group("gloo")
train(30, at)
"""
    run = launcher.train(body, "--hang-after", "6", "--max-restarts", "0")
    assert (run.exitcode, run.primary["cause"], run.primary["standing"]) == (1, "collective-mismatch", "likely")
    assert run.primary["ranks"] == [0, 1] and f"in unhang.{'all_reduce' if skips else 'evaluate'} (" in run.primary["says"]
    failed = "rank 1 has failed in an evaluation of 'a' (attempt 1), and waits for the others: RuntimeError: bad sample"
    assert skips or failed in run.log("rank1.err")
    assert "straggler" not in {e["kind"] for e in run.happened("Opened")} and run.outcome["elapsed_s"] < 60


@pytest.mark.integration
@pytest.mark.parametrize("who", ["True", "rank == 0"])
def test_a_lock_that_a_build_has_left_behind(launcher, tmp_path, who):
    """Ranks that look for it ten times a second do not execute, whether the others look for it as well or wait for them."""
    (tmp_path / "lock").touch()
    body = f"""
from torch.utils.file_baton import FileBaton
dist.init_process_group("gloo")
if {who}:
    FileBaton({str(tmp_path / "lock")!r}).wait()
dist.barrier()
"""
    run = launcher.train(body, "--hang-after", "4", "--max-restarts", "0")
    assert (run.exitcode, run.primary["cause"], run.primary["standing"]) == (1, "extension-build-lock", "likely")
    assert run.primary["ranks"] == ([0, 1] if who == "True" else [0])


@pytest.mark.integration
def test_a_build_that_others_wait_for_is_work(launcher, tmp_path):
    """Rank 1 compiles by a child of its own, longer than anything may stand still, while rank 0 polls."""
    (tmp_path / "lock").touch()
    body = f"""
import subprocess
from torch.utils.file_baton import FileBaton
dist.init_process_group("gloo")
if rank == 0:
    FileBaton({str(tmp_path / "lock")!r}).wait()
else:
    subprocess.run([sys.executable, "-c", "import time; e = time.time() + 12\\nwhile time.time() < e: pass"])
    os.unlink({str(tmp_path / "lock")!r})
dist.barrier()
"""
    run = launcher.train(body, "--hang-after", "4")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)


@pytest.mark.integration
def test_a_large_collective_is_no_hang(launcher):
    """All ranks are inside one call for longer than the threshold, and data moves."""
    body = """
dist.init_process_group("gloo")
for _ in range(30):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
gathered = [None, None]
dist.all_gather_object(gathered, [torch.ones(3) for _ in range(60_000)])
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "3")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)
    # While one rank still pickles and the other waits, that one is slow.
    assert {e["kind"] for e in run.happened("Opened")} <= {"straggler"}


@pytest.mark.integration
def test_calls_that_do_not_fit_are_found_without_a_rhythm(launcher):
    """No optimizer, and hardly begun: the calls alone tell."""
    body = """
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if first and rank == 0:
    dist.barrier()
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
    run = launcher.train(body, "--startup", "1000")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 2)
    assert (run.primary["cause"], run.primary["ranks"]) == ("rank0-guarded-collective", [0])


@pytest.mark.integration
def test_a_group_that_is_served_by_a_thread_of_its_own(launcher):
    body = """
dist.init_process_group("gloo")
signals = dist.new_group([0, 1])
flag = torch.zeros(1)
if rank == 1:
    waiter = threading.Thread(target=dist.broadcast, args=(flag, 0), kwargs={"group": signals})
    waiter.start()
train(14, step_s=0.7)
if rank == 0:
    dist.broadcast(flag, 0, group=signals)
else:
    waiter.join()
dist.destroy_process_group()
"""
    run = launcher.train(body, "--hang-after", "4")
    assert (run.exitcode, run.outcome["attempts"]) == (0, 1)
    assert not [e for e in run.happened("Opened") if e["kind"] == "hang"]


@pytest.mark.integration
def test_a_rank_that_ends_abruptly_after_its_work_is_no_failure(launcher):
    run = launcher.train("dist.init_process_group('gloo')\ntrain(10)\ndist.destroy_process_group()\nos._exit(0)\n")
    assert (run.exitcode, run.outcome["incidents"], run.outcome["verdict"]) == (0, 0, None)


@pytest.mark.integration
def test_a_hangup_that_is_ignored_stays_ignored(launcher):
    """nohup unhang run ..."""
    script = launcher.script(CALM)
    program = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    run_dir = launcher.tmp_path / "r"
    argv = ["-m", "unhang", "run", "--quiet", "--run-dir", str(run_dir), "--python", sys.executable, "-n", "2", str(script)]
    process = subprocess.Popen([sys.executable, "-c", program, *argv], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    launcher.processes.append(process)
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=300) == 0


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_costs_neither_verdict_nor_restart(launcher):
    mount = launcher.tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], check=True)
    try:
        body = "print('x' * 1000000, flush=True)\n" + broken("raise ValueError('no such batch')")
        script = launcher.script(body)
        process = subprocess.run(
            [sys.executable, "-m", "unhang", "run", "--quiet", "--run-dir", str(mount / "run"), "-n", "2", "--python", sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        assert "rank-exception" in process.stderr and "the training goes on" not in process.stderr
        assert "starting again (restart 1 of 3)" in process.stderr
        assert judge(RunDir.open(mount / "run")).primary.cause == "rank-exception"
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        for spare in Path("/dev/shm").glob("unhang-run-*"):
            shutil.rmtree(spare, ignore_errors=True)
