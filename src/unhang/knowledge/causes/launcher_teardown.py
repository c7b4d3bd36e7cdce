"""launcher-teardown: the launcher saw a child fail and stops the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unhang.knowledge import srun_ranges
from unhang.knowledge.cause import Cause, LogView, Signature
from unhang.logs import exits

if TYPE_CHECKING:
    from unhang.model import Finding
    from unhang.records.incident_view import IncidentView


def _in_run(picture: IncidentView) -> Finding | None:
    return CAUSE.of_hits(srun_ranges.shortened(picture.hits_of(CAUSE.id)))


def _in_logs(view: LogView) -> Finding | None:
    return CAUSE.of_hits(srun_ranges.shortened(view.hits_of(CAUSE.id)), view)


CAUSE = Cause(
    id="launcher-teardown",
    role="symptom",
    title="The launcher stopped the remaining processes",
    title_zh="启动器结束了其余进程",
    what="torchrun, accelerate, DeepSpeed, Slurm, MPI, Ray or torch.multiprocessing reports that a child failed, and ends the others.",
    why="Some rank failed first; the launcher only says so.",
    signatures=(
        # New nodes that come, or some that leave in order, restart the workers of an elastic job: nobody failed.
        Signature(
            needle=" closing signal SI",
            # The end may stand in the next line, as a terminal wraps it.
            pattern=r"Sending process (?P<pid>\d+) closing signal SI(?:G(?:TERM|INT|KILL)|G?\w{0,4}$)",
            unless=r"Detected \d+ new nodes",
            role="symptom",
        ),
        Signature(
            needle="failed (exitcode:",
            pattern=r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+)(?: \(pid: (?P<pid>[^\s()]{1,20})\))?",
            role="symptom",
            says="local rank {local_rank} ended with exit code {exitcode}, and the launcher stopped the others",
            says_zh="本地 rank {local_rank} 以退出码 {exitcode} 结束，启动器随后结束了其余进程",
        ),
        Signature(needle="multiprocessing.errors.ChildFailedError", role="symptom"),
        Signature(needle="Root Cause (first observed failure)", role="symptom"),
        Signature(needle="SignalException: Process", pattern=r"Process (?P<pid>\d+) got signal: (?P<signal>\d+)", role="symptom"),
        Signature(needle=" death signal, shutting down workers", pattern=r"Received (?:Signals\.)?(?P<signal>\w+) death signal", role="symptom"),
        Signature(
            needle="forcefully exiting via Signals.SIGKILL",
            pattern=r"(?:Unable to shutdown process (?P<pid>\d+) )?via .{0,40}forcefully exiting",
            role="symptom",
        ),
        Signature(needle="multiprocessing.spawn.Process", pattern=r"spawn\.Process(?:Raised|Exited)Exception", role="symptom"),
        # DeepSpeed, and torch.distributed.launch up to 1.9.
        Signature(needle="Killing subprocess ", pattern=r"Killing subprocess (?P<pid>\d+)", role="symptom"),
        Signature(
            needle="exits with return code =",
            pattern=r"(?:Process (?P<pid>\d{1,9}) )?exits with return code = (?P<exitcode>-?\d+)",
            role="symptom",
            says="process {pid} ended with exit code {exitcode}, and DeepSpeed stopped the others",
            says_zh="进程 {pid} 以退出码 {exitcode} 结束，DeepSpeed 随后结束了其余进程",
        ),
        Signature(needle="ssh exited with exit code", role="symptom"),
        Signature(needle="subprocess.CalledProcessError: Command", pattern=rf"CalledProcessError: {exits.STARTER}", role="symptom"),
        Signature(needle="Job entrypoint command failed with exit code ", role="symptom"),
        # Slurm
        Signature(
            needle="Exited with exit code",
            pattern=rf"srun: error: {srun_ranges.HOSTS}: tasks? {srun_ranges.TASKS}: Exited with exit code (?P<exitcode>\d+)",
            role="symptom",
            says="Slurm task {tasks} on {host} ended with exit code {exitcode}",
            says_zh="{host} 上的 Slurm 任务进程 {tasks} 以退出码 {exitcode} 结束",
        ),
        Signature(needle="srun: Job step aborted", role="symptom"),
        Signature(needle="srun: Terminating StepId", role="symptom"),
        Signature(needle="aborted before step completely launched", role="symptom"),
        Signature(
            needle=" CANCELLED AT ", pattern=r"\*\*\* (?:STEP|JOB) \S+ (?:STEPD TERMINATED )?ON \S+ CANCELLED AT [\dT:-]+ \*\*\*", role="symptom"
        ),
        # MPI
        # Open MPI in full, and as it counts what others said alike; MPICH and Intel's MPI with and without their head.
        Signature(needle="MPI_ABORT was invoked on rank", pattern=r"MPI_ABORT was invoked on rank (?P<rank>\d+)", role="symptom"),
        Signature(needle="help-mpi-api.txt / mpi-abort", role="symptom"),
        Signature(
            needle="application called MPI_Abort(",
            pattern=r"(?:\(rank |application called MPI_Abort\([^)]{1,80}\) - process )(?P<rank>\d{1,9})",
            role="symptom",
        ),
        Signature(
            needle="noticed that process rank",
            pattern=r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)",
            role="symptom",
        ),
        Signature(needle="processes exited with non-zero status, thus causing", role="symptom"),
        Signature(needle="BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", role="symptom"),
        Signature(needle="Terminating remaining workers after failure of Process", role="symptom"),
        Signature(
            needle="is killed by signal: Terminated",
            pattern=r"DataLoader worker \(pid (?P<worker>\d+)\) is killed by signal: Terminated",
            role="symptom",
            says="data loader worker {worker} was asked to end (SIGTERM), as happens when its job is stopped",
            says_zh="DataLoader worker {worker} 被要求结束（SIGTERM），任务被停止时会这样",
        ),
        # Lightning
        Signature(
            needle="Child process with PID", pattern=r"Child process with PID (?P<pid>\d+) terminated with code (?P<exitcode>-?\d+)", role="symptom"
        ),
        Signature(needle="Received SIGTERM: 15", role="symptom"),
        # Ray
        Signature(needle="exceptions.ActorDiedError", role="symptom"),
        Signature(needle="exceptions.RayActorError", role="symptom"),
        Signature(needle="exceptions.WorkerCrashedError", role="symptom"),
        Signature(needle="A worker died or was killed while executing a task", role="symptom"),
        Signature(needle="The actor is dead because its worker process has died", role="symptom"),
        Signature(needle="Worker unexpectedly exits with a connection error", role="symptom"),
        # vLLM, SGLang
        Signature(needle=" died unexpectedly, shutting down", role="symptom"),
        Signature(needle="Engine core initialization failed. See root cause above", role="symptom"),
        Signature(needle="EngineDeadError", role="symptom"),
        Signature(needle="WorkerProc initialization failed due to an exception in a background process", role="symptom"),
        Signature(needle="fatal signal from worker processes, shutting down", role="symptom"),
        Signature(needle="It usually means ", pattern=r"(?i)\bsigquit\b.{0,60}It usually means \w+ child failed", role="symptom"),
        Signature(needle="scheduler is dead. Please check", pattern=r"\bRank (?P<ranks>\d{1,7}) scheduler is dead\.", role="symptom"),
    ),
    in_run=_in_run,
    in_logs=_in_logs,
    mistaken_for={
        "rank-exception": "the launcher's own traceback (ChildFailedError, CalledProcessError) names no cause; that of the rank does",
        "host-oom-or-killed": "exit code -9 is SIGKILL, which a launcher also sends to ranks that do not leave after SIGTERM",
    },
    sources=(
        "https://docs.pytorch.org/docs/stable/elastic/errors.html",
        "https://docs.ray.io/en/latest/ray-core/fault-tolerance.html",
    ),
    hits=(
        "Status message: Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):",
        "RuntimeError: DataLoader worker (pid 991) is killed by signal: Terminated. ",
        "W1103 23:45:43.792000 4711 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4720 closing signal SIGTERM",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 4797 closing signal SIGINT",
        (
            "E1103 23:45:43.992000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7) local_rank: 2 (pid: 4722) of "
            "binary: /opt/venv/bin/python3"
        ),
        (
            "[2026-11-03 08:47:31,261] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 (pid: 5120) of "
            "binary: p"
        ),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
        "W1103 09:10:41.194000 4711 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers",
        "W1103 09:10:41 4711 api.py:862] Unable to shutdown process 4720 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "[2026-11-03 10:00:01,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 5101",
        "Killing subprocess 5102",
        "[2026-11-03 10:00:01,000] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = 1",
        "pdsh@node0: node7: ssh exited with exit code 1",
        "subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.",
        "srun: error: node7: tasks 0-2,5: Exited with exit code 1",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: Terminating StepId=4711.0",
        "srun: StepId=4711.0 aborted before step completely launched.",
        "slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 ***",
        "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",
        "[node7:812] 7 more processes have sent help message help-mpi-api.txt / mpi-abort",
        "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
        "mpirun noticed that process rank 1 with PID 4720 on node node7 exited on signal 6 (Aborted).",
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "Terminating remaining workers after failure of Process[1]",
        "[rank: 1] Child process with PID 4720 terminated with code 1. Forcefully terminating all other processes to avoid zombies",
        "[rank: 0] Received SIGTERM: 15",
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task",
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
        "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task.",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        (
            "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
            "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called."
        ),
        "ERROR 11-03 10:00:01 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
        (
            "CRITICAL 11-03 10:00:01 [core_client.py:359] Got fatal signal from worker processes, shutting down. See stack trace above for root "
            "cause issue."
        ),
        "[2026-11-03 10:00:01] Received sigquit from a child process. It usually means the child failed.",
        "[2026-11-03 10:00:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "[2026-11-03 10:00:01] Rank 0 scheduler is dead. Please check if there are relevant logs.",
    ),
    near_misses=(
        (
            "[default] Detected 1 new nodes from group_rank=0; will restart worker group\n[default] Stopping worker group\n"
            "Sending process 336 closing signal SIGTERM"
        ),
        "Received SIGTERM, saving a checkpoint",
        "raise ChildProcessError(10, 'No child processes')",
        "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO TIME LIMIT ***",
        "Process 4720 exits successfully.",
    ),
    explain={
        "en": (
            "The launcher noticed that one of its processes failed and ended the others. It names an exit code, not a cause: look at the first "
            "process that failed. A negative code is a signal: -9 SIGKILL, -11 SIGSEGV, -6 SIGABRT; -15 is the launcher's own SIGTERM."
        ),
        "zh": (
            "启动器发现有一个子进程失败，于是结束了其余进程。它给出的是退出码，不是原因：要看最先失败的那个进程。负数表示信号：-9 是 SIGKILL，"
            "-11 是 SIGSEGV，-6 是 SIGABRT；-15 是启动器自己发出的 SIGTERM。"
        ),
    },
)
