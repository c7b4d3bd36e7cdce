"""launcher-teardown: the launcher saw a child fail and stops the rest."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature

CAUSE = Cause(
    id="launcher-teardown",
    role="symptom",
    title="The launcher stopped the remaining processes",
    title_zh="启动器结束了其余进程",
    what="torchrun, accelerate, DeepSpeed or torch.multiprocessing reports that a child failed, and ends the others.",
    why="Some rank failed first; the launcher only says so.",
    signatures=(
        Signature(needle="closing signal SIGTERM", pattern=r"Sending process (?P<pid>\d+) closing signal SIGTERM", role="symptom"),
        Signature(
            needle="failed (exitcode:",
            pattern=r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)",
            role="symptom",
        ),
        Signature(needle="multiprocessing.errors.ChildFailedError", role="symptom"),
        Signature(needle="Root Cause (first observed failure)", role="symptom"),
        Signature(needle="SignalException: Process", pattern=r"Process (?P<pid>\d+) got signal: (?P<signal>\d+)", role="symptom"),
        Signature(needle="multiprocessing.spawn.Process", pattern=r"spawn\.Process(?:Raised|Exited)Exception", role="symptom"),
        Signature(needle="] Killing subprocess", pattern=r"Killing subprocess (?P<pid>\d+)", role="symptom"),
        Signature(needle="exits with return code =", pattern=r"(?P<pid>\d+) exits with return code = (?P<exitcode>-?\d+)", role="symptom"),
        Signature(needle="subprocess.CalledProcessError: Command", role="symptom"),
    ),
    mistaken_for={"rank-exception": "the launcher's own traceback (ChildFailedError, CalledProcessError) names no cause; that of the rank does"},
    sources=("https://docs.pytorch.org/docs/stable/elastic/errors.html",),
    hits=(
        "W1103 23:45:43.792000 4711 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4720 closing signal SIGTERM",
        (
            "E1103 23:45:43.992000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 2 (pid: 4722) of "
            "binary: /opt/venv/bin/python3"
        ),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "[2026-11-03 10:00:01,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 5101",
        "[2026-11-03 10:00:01,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] 5100 exits with return code = 1",
        "subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.",
    ),
    near_misses=("Received SIGTERM, saving a checkpoint", "raise ChildProcessError(10, 'No child processes')"),
    explain={
        "en": (
            "The launcher noticed that one of its processes failed and ended the others. It names an exit code, not a cause: look at the first "
            "process that failed."
        ),
        "zh": "启动器发现有一个子进程失败，于是结束了其余进程。它给出的是退出码，不是原因：要看最先失败的那个进程。",
    },
)
