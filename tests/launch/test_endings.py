"""What looks like a failure and is none: trainings that end, begin, and share a command in ways of their own."""

from __future__ import annotations

import signal
import sys

import pytest

pytestmark = pytest.mark.integration

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def shell(launcher, *commands: str, **more):
    return launcher.run("bash", "-c", "; ".join(commands), **more)


def test_a_rank_that_has_done_its_work_ends_abruptly_while_another_still_works(launcher):
    """Longer than a launcher is given to end the others of a failed rank."""
    body = """
dist.init_process_group("gloo")
train(20)
if rank == 1:
    os._exit(0)
until = time.time() + 50
while time.time() < until:
    sum(range(1000))
print("exported", flush=True)
os._exit(0)
"""
    run = launcher.train(body, timeout_s=800)
    assert (run.exitcode, run.outcome["attempts"], run.outcome["incidents"], run.outcome["verdict"]) == (0, 1, 0, None)
    assert "exported" in run.log("rank0.out")
    assert [e["incident"] for e in run.happened("Opened")] == [e["incident"] for e in run.happened("Abandoned")]


@pytest.mark.parametrize(
    "remains",
    [
        "threading.Thread(target=threading.Event().wait).start()",
        "import atexit\nif rank == 1: atexit.register(threading.Event().wait)",
    ],
    ids=["thread", "exit-handler"],
)
def test_what_hangs_after_its_work_is_ended_and_not_trained_again(launcher, remains):
    body = f"dist.init_process_group('gloo')\ntrain(30)\ndist.destroy_process_group()\n{remains}\n"
    run = launcher.train(body, "--hang-after", "6")
    assert (run.exitcode, run.outcome["attempts"]) == (1, 1), run.err[-3000:]
    assert run.primary["cause"] == "process-stuck"


def test_steps_before_the_ranks_meet(launcher):
    body = """
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
for step in range(3):
    optimizer.step()
dist.init_process_group("gloo")
train(10)
dist.destroy_process_group()
"""
    run = launcher.train(body)
    assert (run.exitcode, run.outcome["incidents"]) == (0, 0)


def test_two_trainings_under_one_command(launcher):
    script = launcher.script("dist.init_process_group('gloo')\ntrain(40)\ndist.destroy_process_group()\n")
    start = " ".join([*TORCHRUN, str(script)])
    run = shell(launcher, f"{start} & {start}", "wait")
    assert (run.exitcode, run.outcome["incidents"]) == (0, 0)
    assert any("another training" in e["text"] for e in run.happened("Note"))


def test_ranks_that_replace_themselves_by_another_program(launcher):
    body = """
dist.init_process_group("gloo", init_method=f"file://{__file__}.{len(sys.argv)}", rank=rank, world_size=2)
train(5)
dist.barrier()
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
dist.destroy_process_group()
"""
    run = launcher.train(body, timeout_s=800)
    assert (run.exitcode, run.outcome["incidents"]) == (0, 0)


def test_reported_means_left_alone(launcher):
    body = """
if sys.argv[1] == "fails":
    optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
    optimizer.step()
    raise ValueError("no such batch")
until = time.time() + 60
while time.time() < until:
    time.sleep(0.2)
print("survived", flush=True)
"""
    script = launcher.script(body)
    run = launcher.run(
        "--on-failure", "report", "bash", "-c", f"{sys.executable} {script} fails & {sys.executable} {script} works; wait", timeout_s=800
    )
    assert "survived" in run.log("launcher.out")
    assert run.primary["cause"] == "rank-exception"


def test_what_a_training_leaves_running_may_end(launcher):
    """An upload in the background."""
    done = launcher.tmp_path / "uploaded"
    body = f"""
import subprocess
dist.init_process_group("gloo")
train(5)
dist.destroy_process_group()
if rank == 0:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(12); open({str(done)!r}, 'w').close()"], start_new_session=True)
"""
    run = launcher.train(body)
    assert run.exitcode == 0
    assert done.exists()
    assert any("left running" in e["text"] for e in run.happened("Note"))


def test_a_signal_that_announces_the_end_of_the_time_reaches_the_training(launcher):
    body = """
stop = False
def save(*_):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, save)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
flag = torch.zeros(1)
while not flag:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
    flag = torch.tensor([float(stop)])
    dist.all_reduce(flag)
print("saved", flush=True)
dist.destroy_process_group()
"""
    process, run_dir = launcher.start("-n", "2", str(launcher.script(body)))
    launcher.until(lambda: (run_dir / "events.jsonl").is_file() and "FirstStep" in (run_dir / "events.jsonl").read_text())
    process.send_signal(signal.SIGUSR1)
    run = launcher.finish(process, run_dir)
    assert (run.exitcode, run.outcome["incidents"]) == (0, 0)
    assert "saved" in run.log("rank0.out")
