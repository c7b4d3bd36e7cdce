"""ended-by-scheduler: Slurm, PBS or LSF ended the job."""

from __future__ import annotations

from unhang.knowledge.cause import Cause, Signature
from unhang.model import Remedy

CAUSE = Cause(
    id="ended-by-scheduler",
    role="root",
    title="The scheduler ended the job (time limit, preemption)",
    title_zh="调度器结束了作业（时限、抢占）",
    what="The scheduler ended all processes of the job from outside. The training itself did not fail.",
    why="The job reached the time limit that it asked for, a job of higher priority took its nodes, or one of its nodes failed.",
    signatures=(
        Signature(
            needle=" DUE TO TIME LIMIT",
            pattern=r"(?:JOB|STEP) (?P<job>[\w.+]+) ON (?P<host>\S+) CANCELLED AT (?P<time>\S+) DUE TO TIME LIMIT",
            says="Slurm ended job {job} at {time}: it reached its time limit",
            says_zh="Slurm 在 {time} 结束了作业 {job}：它达到了时限",
            remedies=("more-time", "save-on-signal"),
        ),
        Signature(
            needle="PBS: job killed: walltime",
            pattern=r"walltime (?P<used>\w+) exceeded limit (?P<limit>\w+)",
            says="PBS ended the job: {used} s exceeded its walltime of {limit} s",
            says_zh="PBS 结束了作业：{used} 秒，超过了 {limit} 秒的 walltime",
            remedies=("more-time", "save-on-signal"),
        ),
        Signature(
            needle="TERM_RUNLIMIT: job killed",
            says="LSF ended the job: it reached its run time limit",
            says_zh="LSF 结束了作业：它达到了运行时限",
            remedies=("more-time", "save-on-signal"),
        ),
        Signature(
            needle=" CANCELLED AT ",
            pattern=r"(?:JOB|STEP) (?P<job>[\w.+]+) ON (?P<host>\S+) CANCELLED AT (?P<time>\S+) DUE TO (?P<reason>PREEMPTION|JOB REQUEUE|NODE "
            r"FAILURE)",
            says="Slurm ended job {job} at {time}: {reason}",
            says_zh="Slurm 在 {time} 结束了作业 {job}：{reason}",
            remedies=("requeue", "save-on-signal"),
        ),
    ),
    remedies=(
        Remedy(
            id="more-time",
            says="Ask for more time, or save checkpoints often enough and go on in a further job.",
            says_zh="申请更长的时限，或者更频繁地保存检查点，在后续作业中继续训练。",
            command="scontrol show job $SLURM_JOB_ID | grep -E 'TimeLimit|RunTime'",
        ),
        Remedy(
            id="save-on-signal",
            says=(
                "Let the scheduler warn the training before it ends it, and save on that signal: #SBATCH --signal=SIGUSR2@120 (NCCL may catch "
                "SIGUSR1)."
            ),
            says_zh="让调度器在结束前先发信号，收到信号时保存检查点：#SBATCH --signal=SIGUSR2@120（NCCL 可能占用 SIGUSR1）。",
        ),
        Remedy(
            id="requeue",
            says=(
                "The job was taken away, not broken: submit it with --requeue and resume from its last checkpoint, or use a partition without "
                "preemption."
            ),
            says_zh="作业是被抢占的，并没有出错：提交时加 --requeue 并从最近的检查点恢复，或使用不会被抢占的分区。",
            command="sacct -j JOB --format=JobID,State,ExitCode,Elapsed,Reason",
        ),
    ),
    leads_to=("host-oom-or-killed", "rank-exception", "loader-worker-died", "premature-exit"),
    mistaken_for={
        "host-oom-or-killed": "there the kernel or an unknown sender killed one process; here the scheduler ended the whole job and says why",
        "launcher-teardown": "a line CANCELLED AT without a reason says only that the step was stopped",
    },
    sources=("https://slurm.schedmd.com/sbatch.html", "https://slurm.schedmd.com/preempt.html"),
    hits=(
        "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO TIME LIMIT ***",
        "=>> PBS: job killed: walltime 3628 exceeded limit 3600",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
        "slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO PREEMPTION ***",
        "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-11-03T10:00:01 DUE TO JOB REQUEUE ***",
    ),
    near_misses=(
        "slurmstepd: error: *** STEP 4711.0 ON node7 CANCELLED AT 2026-11-03T10:00:01 ***",
        "=>> PBS: job killed: mem 137438953472b exceeded limit 68719476736b",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    ),
    explain={
        "en": (
            "The scheduler ended the job, and says why in one line: its time limit, preemption by another job, or a failed node. What the ranks "
            "print after that line is a consequence. Nothing has to be repaired: save checkpoints often enough, let the scheduler send a signal "
            "before the end, and resume."
        ),
        "zh": (
            "调度器结束了作业，并用一行日志说明了原因：达到时限、被其他作业抢占，或节点故障。这一行之后各进程打印的内容都只是后果。没有什么需要修复："
            "足够频繁地保存检查点，让调度器在结束前先发信号，然后恢复训练。"
        ),
    },
)
