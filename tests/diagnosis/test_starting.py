"""Trainings that never began, and ranks that never came, from logs as torchrun, shells and Slurm write them: `unhang why`, end to end."""

from __future__ import annotations

import pytest
from tests.tables import for_each

from unhang.diagnosis.logs import judge_logs

ENDED = "".join(
    f"[{r}]:\n  time      : 2026-11-22_06:13:32\n  host      : node1\n  rank      : {r} (local_rank: {r})\n  exitcode  : {{}} (pid: {20506 + r})\n"
    for r in range(2)
)
TEARDOWN = (
    "E1122 06:13:32.245000 20383 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 20506) of "
    "binary: /opt/env/bin/python\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)
# The end of what torchrun 2.13 --no-python prints of its own; Python 3.11.
POPEN = """\
Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py", line 68, in _popen
    return Popen(
           ^^^^^^
  File "/usr/lib/python3.11/subprocess.py", line 1026, in __init__
    self._execute_child(args, executable, preexec_fn, close_fds,
  File "/usr/lib/python3.11/subprocess.py", line 1950, in _execute_child
    raise child_exception_type(errno_num, err_msg, err_filename)
"""


@pytest.fixture
def judge(tmp_path):
    def judge(text, name="train.log"):
        path = tmp_path / name
        path.write_text(text)
        return judge_logs([str(path)]).verdict

    return judge


@for_each(
    ("line", "cause", "told", "remedy"),
    [
        (
            "/opt/env/bin/python: can't open file '/srv/job/trian.py': [Errno 2] No such file or directory",
            "config-error",
            "the script does not exist: /srv/job/trian.py",
            "ls -la /srv/job",
        ),
        ("python: can't open file 'trian.py': [Errno 2] No such file or directory", "config-error", "does not exist: trian.py", "ls -la ."),
        ("python3: can't open file '/srv/train.py': [Errno 13] Permission denied", "config-error", "Permission denied", "ls -la /srv"),
        ("/opt/env/bin/python: can't find '__main__' module in '/srv/job'", "config-error", "/srv/job was started as a script", "ls -la /srv"),
        (
            "/usr/bin/python3: No module named accelerate.__main__; 'accelerate' is a package and cannot be directly executed",
            "config-error",
            "accelerate was to be run as a module (-m); it is a package",
            "find_spec",
        ),
        ("/usr/bin/env: ‘python’: No such file or directory", "launcher-wrong-env", "no python is on the PATH", "torch.distributed.run"),
        ("/usr/bin/env: ‘python3\\r’: No such file or directory", "config-error", "ends as on Windows", "sed -i"),
        ("bash: line 1: train.py: command not found", "config-error", "train.py was started as a command", "ls -la ."),
        ("sh: 1: train.py: not found", "config-error", "train.py", "ls -la ."),
        (
            "bash: line 1: ./train.py: Permission denied",
            "config-error",
            "./train.py was started by its name and is not executable",
            "python ./train.py",
        ),
        ("slurm_script: line 3: ./trainer: cannot execute binary file: Exec format error", "config-error", "./trainer is nothing", "file ./trainer"),
        ("exec /srv/start.sh: exec format error", "config-error", "/srv/start.sh is nothing", "bash /srv/start.sh"),
        (f"{POPEN}FileNotFoundError: [Errno 2] No such file or directory: 'train.py'", "config-error", "not on the PATH", "ls -la ."),
        (f"{POPEN}PermissionError: [Errno 13] Permission denied: './train.sh'", "config-error", "./train.sh was started", "bash ./train.sh"),
        (f"{POPEN}OSError: [Errno 8] Exec format error: './train'", "config-error", "./train is nothing", "head -1 ./train"),
    ],
)
@for_each("behind", ["", TEARDOWN + ENDED.format(1, 1)])
def test_what_cannot_be_started_is_named(judge, line, cause, told, remedy, behind):
    found = judge(f"{line}\n{behind}")
    assert (found.primary.cause, found.primary.standing) == (cause, "established")
    assert told in found.primary.says and not found.contributing and found.primary.where is None
    assert remedy in (found.primary.remedies[0].command or "")


@pytest.mark.parametrize(
    "line",
    [
        "grep: src/model.py: No such file or directory",
        "cat: env.sh: Permission denied",
        "bash: line 3: module: command not found",
        "see https://example.org/train.py: not found",
    ],
)
def test_what_tells_of_other_files_starts_nothing(judge, line):
    assert judge(f"{line}\nstep 1\n").primary is None


def test_a_batch_script_that_goes_on_without_a_helper(judge):
    steps = "".join(f"step {n} loss 0.5\n" for n in range(60))
    assert judge(f"job.sh: line 3: ./notify.sh: No such file or directory\n{steps}").primary is None


HELPERS = (
    "./run.sh: line 3: ./tools/prep.py: Permission denied\n",
    "./run.sh: line 3: ./tools/prep.sh: No such file or directory\n",
    "python: can't open file '/srv/tools/prep.py': [Errno 2] No such file or directory\n",
    "python: can't find '__main__' module in '/srv/tools'\n",
)
NO_MEMORY = (
    'Traceback (most recent call last):\n  File "/srv/train.py", line 88, in <module>\n    loss.backward()\ntorch.OutOfMemoryError: CUDA out of '
    "memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. 70.00 GiB is allocated by PyTorch\n"
)
OF_A_RANK = "".join(f"[rank0]: {line}\n" for line in NO_MEMORY.splitlines())


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_that_was_missed_is_not_why_the_training_failed(judge, helper):
    found = judge(f"{helper}***** Running training *****\n{OF_A_RANK}{TEARDOWN}{ENDED.format(1, -15)}")
    assert found.primary.cause == "gpu-oom" and not found.contributing
    # Nothing tells whose a traceback without a rank is: both are told.
    found = judge(f"{helper}***** Running training *****\n{NO_MEMORY}")
    assert found.primary.cause == "gpu-oom" and [(c.cause, c.standing) for c in found.contributing] == [("config-error", "possible")]
    # Behind the failure it is as little.
    found = judge(f"step 7\n{OF_A_RANK}{helper}")
    assert found.primary.cause == "gpu-oom" and "established" not in [c.standing for c in found.contributing]


TIMED_OUT = (
    "[rank3]:[E1103 10:10:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, "
    "OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("step", ["step 100 loss 2.31\n", "loading\n"])
def test_a_helper_that_was_missed_is_not_why_a_rank_waited(judge, helper, step):
    found = judge(f"{helper}{step}{TIMED_OUT}")
    assert found.primary.cause == "collective-timeout" and not found.contributing


MISSED = "python: can't open file '/srv/train.py': [Errno 2] No such file or directory\n"


@pytest.mark.parametrize("others", ["DistStoreError: timed out after 60 clients", "DistNetworkError: The client socket has timed out"])
def test_ranks_that_wait_for_one_that_was_not_started_are_no_training(judge, others):
    waiting = f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "/srv/train.py", line 7, in main\n[rank0]:     x()\n[rank0]: {others}\n'
    found = judge(MISSED * 2 + waiting).primary
    assert (found.cause, found.standing) == ("config-error", "established")
    agent = '  File "/opt/env/lib/python3.11/site-packages/torch/distributed/run.py", line 923, in main\n    run(args)\n'
    found = judge(f"{MISSED * 2}Traceback (most recent call last):\n{agent}RuntimeError: the agent failed\n").primary
    assert (found.cause, found.standing) == ("config-error", "established")


def test_a_script_that_one_host_misses_is_of_its_file_system(judge):
    found = judge("node8: /usr/bin/python3: can't open file '/srv/u/train.py': [Errno 2] No such file or directory\n")
    assert found.primary.cause == "filesystem-shared"


BROKEN = '  File "/srv/job/train.py", line 2\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'


@pytest.mark.parametrize("before", ["", "".join(f"W1122 setting {n}\n" for n in range(20))])
def test_a_script_that_python_cannot_take_apart(judge, before):
    found = judge(f"{before}{BROKEN}{BROKEN}{TEARDOWN}{ENDED.format(1, 1)}").primary
    assert found.cause == "rank-exception" and found.where == "/srv/job/train.py:2 in <module>"
    assert found.says.startswith("2 processes raised the same SyntaxError: invalid syntax")
    assert [r.id for r in found.remedies] == ["correct-the-line", "parse-it"]
    assert found.remedies[1].command == "python -m py_compile /srv/job/train.py"


def test_a_module_that_python_cannot_take_apart_is_one_failure(judge):
    head = 'Traceback (most recent call last):\n  File "/srv/job/train.py", line 1, in <module>\n    import data\n'
    found = judge(head + BROKEN.replace("train.py", "data.py")).primary
    assert found.says.startswith("a process raised SyntaxError") and found.where == "/srv/job/data.py:2 in <module>"


@pytest.mark.parametrize(
    ("kind", "skips"), [("ValueError: bad sample 17", True), ("ModuleNotFoundError: No module named 'einops'", False), ("NameError: name 'x'", False)]
)
def test_only_what_a_sample_may_bring_about_is_to_be_skipped(judge, kind, skips):
    text = f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/train.py", line 7, in main\n[rank1]:     x()\n[rank1]: {kind}\n'
    found = judge(text).primary
    assert found.cause == "rank-exception" and ("agree-on-failure" in [r.id for r in found.remedies]) == skips


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ap.py: error: unrecognized arguments: --lrr", "python ap.py --help"),
        ("torchrun: error: unrecognized arguments: --nproc", "torchrun --help"),
        ("accelerate <command> [<args>] launch: error: ambiguous option: --mix could match --mixed_precision", "accelerate launch --help"),
        ("ap.py: error: the following arguments are required: --lr", "python ap.py --help"),
    ],
)
def test_help_is_asked_of_the_program_that_refused(judge, line, command):
    assert judge(f"usage: x [-h]\n{line}\n").primary.remedies[0].command == command


def test_help_is_not_asked_of_a_sentence(judge):
    command = judge("DETR training script: error: unrecognized arguments: --lrr\n").primary.remedies[0].command
    assert "torchrun --help" in command and "script --help" not in command


# Gloo, torch 2.13.


def waited(rank, file="/srv/job/train.py", line=5, says="unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"):
    frames = (
        f'  File "{file}", line {line}, in <module>\n    dist.all_reduce(x)\n'
        '  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n    work.wait()\n'
    )
    text = f"Traceback (most recent call last):\n{frames}RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/{says}\n"
    return "".join(f"[rank{rank}]: {row}\n" for row in text.splitlines())


LOST = "pair.cc:537] Read error [127.0.0.1]:18355: Connection reset by peer."


def test_who_was_silent_is_named_and_not_who_waited(judge):
    found = judge(waited(0) + TEARDOWN + ENDED.format(1, -15))
    assert (found.primary.cause, found.primary.standing, found.primary.ranks) == ("collective-timeout", "not-established", (1,))
    assert found.primary.says.startswith(
        "rank 0 waited 5.0 s in all_reduce (/srv/job/train.py:5 in <module>); rank 1 printed nothing about it and was ended by the launcher; why is"
    )
    assert [s.cause for s in found.symptoms] == ["launcher-teardown"]


def test_messages_of_nccl_are_not_asked_of_a_job_on_gloo(judge):
    for text in (waited(0) + TEARDOWN + ENDED.format(1, -15), waited(0), waited(0, says=LOST)):
        env = {name for r in judge(text).primary.remedies for name in r.env}
        assert "NCCL_DEBUG" not in env and "TORCH_CPP_LOG_LEVEL" in env


def test_who_lost_a_peer_had_come(judge):
    four = "".join(f"[{r}]:\n  rank      : {r} (local_rank: {r})\n  exitcode  : {c} (pid: {r + 9})\n" for r, c in enumerate((1, 1, -15, -15)))
    found = judge(waited(0) + waited(3, says=LOST) + TEARDOWN + four).primary
    # Rank 1 ended by itself: that is no riddle of who came.
    assert found.ranks == (2,) and "rank 0 waited" in found.says


def test_where_most_ranks_were_ended_before_they_could_speak_nobody_is_named(judge):
    eight = "".join(f"[{r}]:\n  rank      : {r} (local_rank: {r})\n  exitcode  : {-15 if r else 1} (pid: {r + 9})\n" for r in range(8))
    found = judge(waited(0) + TEARDOWN + eight).primary
    assert found.ranks == () and "who was missing is not in the logs" in found.says


SIZES = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/"
    "pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a distributed collective "
    "mismatch in your code?\n"
)


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ({1: 3}, None),
        ({1: 3, 2: 3, 3: 3}, None),
        ({1: 3, 2: 3, 3: 8}, "/srv/job/train.py:8 in <module>"),
        ({1: 3, 2: 8}, None),
        ({}, None),
    ],
)
def test_a_size_mismatch_is_where_one_survivor_stood_alone(judge, lines, where):
    """Where they agree, it is most likely the line of the innocent."""
    survivors = "".join(waited(r, line=n, says=LOST) for r, n in lines.items())
    found = judge(SIZES + survivors + TEARDOWN).primary
    assert (found.cause, found.where) == ("collective-mismatch", where)


# Slurm

OUT = "srun: error: node3: task 5: Out Of Memory\n"
STEP = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=71.0 cgroup. Some of your processes may have been killed.\n"


@pytest.mark.parametrize("before", ["", STEP])
def test_a_task_of_srun_is_a_rank_of_a_host(judge, before):
    found = judge(before + OUT).primary
    assert (found.cause, found.ranks, found.hosts) == ("host-oom-or-killed", (5,), ("node3",))
    assert "task 5 on node3" in found.says


def test_a_task_that_starts_ranks_is_none(judge):
    found = judge(STEP + TEARDOWN + OUT).primary
    assert (found.cause, found.ranks, found.hosts) == ("host-oom-or-killed", (), ("node3",))


def test_tasks_of_many_hosts_name_no_host(judge):
    found = judge("srun: error: node[3-4]: tasks 5,9: Out Of Memory\n").primary
    assert (found.ranks, found.hosts) == ((5, 9), ())
