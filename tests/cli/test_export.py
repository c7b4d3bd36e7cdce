"""unhang export: what it prints and writes, its exit codes, and that every form is documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.chinese import of_document
from tests.tables import for_each
from typer.testing import CliRunner

from unhang.cli import checking, export
from unhang.errors import UnhangError
from unhang.remedies.exports.forms import NAMES
from unhang.report import language


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    export.register(app)
    return lambda *arguments, **more: CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "200", "LANG": "C"}, **more)


def test_it_never_overwrites_unless_forced(run, tmp_path):
    file = tmp_path / "train.sh"
    assert run("torchrun", "-n", 4, "--set", "ib=off", "-o", file, "--", "train.py", "--lr", "1").exit_code == 0
    text = file.read_text()
    assert "--nproc-per-node=4" in text and "train.py --lr 1" in text and "NCCL_IB_DISABLE=1" in text and file.stat().st_mode & 0o100
    again = run("torchrun", "-o", file)
    assert isinstance(again.exception, UnhangError) and file.read_text() == text
    assert run("torchrun", "-o", file, "--force").exit_code == 0 and file.read_text() != text


@pytest.mark.parametrize(("path", "says"), [("no/train.sh", "there is no directory no"), ("file/train.sh", "file is no directory")])
def test_a_directory_that_is_missing_is_refused(run, tmp_path, path, says):
    (tmp_path / "file").touch()
    done = run("torchrun", "-o", path)
    assert isinstance(done.exception, UnhangError) and str(done.exception) == says and done.exception.hint.startswith("mkdir -p")


def test_what_is_there_stays_until_all_of_the_new_is_written(run, tmp_path):
    old = tmp_path / "old.sh"
    old.write_text("important\n")
    old.chmod(0o640)
    refused = run("torchrun", "--force", "-o", old, "--", "train.py", os.fsdecode(b"caf\xe9.txt"))
    assert isinstance(refused.exception, UnhangError) and "is no UTF-8" in str(refused.exception) and old.read_text() == "important\n"
    link = tmp_path / "link.sh"
    link.symlink_to(old)
    assert run("torchrun", "--force", "-o", link).exit_code == 0
    assert link.is_symlink() and "torchrun" in old.read_text() and old.stat().st_mode & 0o777 == 0o750
    new = run("torchrun", "--force", "-o", tmp_path / "new.sh")
    assert new.exit_code == 0 and {p.name for p in tmp_path.iterdir()} == {"old.sh", "link.sh", "new.sh"}
    assert run("torchrun", "--force", "-o", "/dev/null").exit_code == 0 and Path("/dev/null").is_char_device()


@pytest.mark.parametrize("words", [[], ["--force"]])
def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, words):
    """No file may be longer than 64 bytes: the write itself fails, as on a full disk."""
    old = tmp_path / "old.sh"
    if words:
        old.write_text("important\n")
    limited = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
    ran = subprocess.run(
        [sys.executable, "-c", limited + "from unhang.cli.main import entry; entry()", "export", "torchrun", *words, "-o", str(old)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 2 and "cannot write" in ran.stderr, ran
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == ([("old.sh", "important\n")] if words else [])


def test_a_companion_is_written_beside(run, tmp_path):
    assert run("deepspeed", "-o", tmp_path / "a.json").exit_code == 0
    assert json.loads((tmp_path / "a.json").read_text()) and (tmp_path / "a.json.start.sh").exists()


def test_what_cannot_be_carried_is_said_or_refused(run):
    said = run("torchrun", "--preset", "conservative")
    assert said.exit_code == 0 and "not carried: batch=512" in said.stderr and "NOT carried: batch=512" in said.stdout
    assert isinstance(run("torchrun", "--set", "batch=4").exception, UnhangError)
    assert isinstance(run("torchrun", "--set", "backend=gloo", "--without-unhang").exception, UnhangError)
    assert isinstance(run("nothing").exception, UnhangError)


def test_a_launcher_is_not_put_into_another(run):
    ran = run("torchrun", "--", "torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1")
    assert ran.exit_code == 0 and ran.stdout.count("torchrun \\") == 1 and "--nproc-per-node=4" in ran.stdout and "train.py --lr 1" in ran.stdout
    several = run("slurm", "--", "accelerate", "launch", "--num_machines=2", "--num_processes=8", "train.py")
    assert "#SBATCH --nodes=2" in several.stdout and "--nproc-per-node=4" in several.stdout and "accelerate" not in several.stdout
    assert run("torchrun", "-n", 4, "--", "torchrun", "--nproc-per-node=4", "train.py").exit_code == 0


CONTRADICTIONS = {
    "timeouts": (["--set", "timeout=60", "--timeout", "2h"], "contradict each other: timeout has one value"),
    "values": (["--set", "shm=off", "--set", "shm=on"], "contradict each other: shm has one value"),
    "processes": (["-n", "4", "--set", "processes=2"], "-n 4 and --set processes=2 contradict each other"),
    "unhang": (["--with-unhang", "--without-unhang"], "contradict"),
    "counts": (["-n", "4", "--", "torchrun", "--nproc-per-node=2", "train.py"], "--processes 4, and the command behind -- says 2"),
    "hosts": (["--nodes", "4", "--", "torchrun", "--nnodes=2", "train.py"], "--nodes 4"),
    "masters": (["--master", "a", "--", "torchrun", "--nnodes=2", "--master-addr=b", "train.py"], "--master a"),
    "a master for one host": (["--master", "node0:1234"], "--master has no effect in torchrun for one host"),
    "an image for none": (["--image", "a/b:c"], "--image has no effect in torchrun: its file has no place for it"),
    "a name for none": (["--name", "tune"], "--name has no effect in torchrun: its file has no place for it"),
    "no python": (["--python", "/nosuch"], "--python /nosuch: there is no such program"),
    "another program": (["--python", "/bin/true"], "is no Python"),
    "checking an option": (["--check", "--json", "a.yaml"], "--check takes a file, and --json came after it"),
    "checking and writing": (["--check", "a.yaml", "-o", "b.yaml"], "--check writes nothing"),
}


@for_each(("words", "says"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_in_one_line(run, words, says):
    ran = run(*([] if "--check" in words else ["torchrun"]), *words)
    assert isinstance(ran.exception, UnhangError) and says in str(ran.exception) and not ran.stdout


@for_each("words", CONTRADICTIONS)
def test_refusals_are_said_in_chinese(run, words):
    given, _ = CONTRADICTIONS[words]
    ran = run(*([] if "--check" in given else ["torchrun"]), "--lang", "zh", *given)
    assert any("\u4e00" <= c <= "\u9fff" for c in language.refusal(str(ran.exception)))
    language.chosen("en")


def test_what_one_form_has_no_place_for_another_has(run):
    both = run("slurm", "--master", "node0:12345", "--name", "tune")
    assert both.exit_code == 0 and "MASTER_ADDR=node0" in both.stdout and "12345" in both.stdout and "--job-name=tune" in both.stdout
    refused = run("kubernetes", "--nodes", 2, "--master", "node0").exception
    assert isinstance(refused, UnhangError) and "--master has no effect in kubernetes" in str(refused) and "kubernetes-job" in refused.hint
    # A part of it is told, and so is what the command itself said.
    part = run("skypilot", "--nodes", 2, "--master", "node0:12345")
    assert part.exit_code == 0 and "--master-port=12345" in part.stdout and "not carried: master address=node0" in part.stderr
    taken = run("kubernetes", "--", "torchrun", "--nnodes=2", "--master-addr=node0", "--master-port=1234", "train.py")
    assert taken.exit_code == 0 and "# NOT carried: master port=1234: kubernetes names" in taken.stdout and "master address=node0" in taken.stderr
    # A port behind -- and an address in front of it are no contradiction.
    assert run("torchrun", "--master", "node0", "--", "torchrun", "--nnodes=2", "--master-port=1234", "train.py").stdout.count("1234") == 1


def test_a_preset_is_chosen_by_the_way_to_the_master(run, monkeypatch):
    from unhang.cli import settings

    asked = []
    whole = settings.here
    monkeypatch.setattr(settings, "here", lambda python, **more: asked.append((python, more)) or whole(python, **more))
    ran = run("torchrun", "--nodes", 2, "--master", "127.0.0.1", "--preset", "ethernet")
    assert ran.exit_code == 0 and asked[0][1]["address"] == "127.0.0.1" and asked[0][1]["hosts"] == 2


def test_what_is_chosen_from_the_machine_is_chosen_from_one(run, monkeypatch):
    """The settings of preset auto are those that `unhang presets auto` shows, not those of 8 GPUs that nobody has."""
    from unhang.cli import settings
    from unhang.settings.setting import Installed

    found = {}
    for gpus, nccl in ((0, None), (8, (2, 27, 5))):
        monkeypatch.setattr(settings, "installed", lambda python, g=gpus, n=nccl: Installed(torch=(2, 13), nccl=n, gpus=g))
        found[gpus] = run("torchrun", "--preset", "auto")
        assert found[gpus].exit_code == 0, found[gpus].exception
    assert "--set backend=gloo" in found[0].stdout and "backend=gloo" not in found[8].stdout


def test_the_same_thing_twice_is_no_contradiction(run):
    assert run("torchrun", "--set", "timeout=2h", "--timeout", "120m").exit_code == 0


@pytest.mark.parametrize("form", ["deepspeed", "llamafactory", "lightning"])
def test_a_batch_of_a_preset_is_told_and_not_written(run, tmp_path, form):
    """What fits is a matter of the model: it is written where the user has said it."""

    def written(*words):
        ran = run(form, *words)
        assert ran.exit_code == 0, ran.exception
        return ran

    of_preset = written("--preset", "conservative")
    assert "512" not in "".join(line for line in of_preset.stdout.splitlines(True) if "NOT carried" not in line)
    assert "not carried: batch=512: what fits is a matter of the model" in of_preset.stderr and "--set batch=512" in of_preset.stderr
    assert "512" in written("--preset", "conservative", "--set", "batch=512").stdout
    (tmp_path / "unhang.toml").write_text("[run]\nbatch = 384\n[presets.mine]\nbatch = 192\n")
    assert "384" in written("--preset", "conservative").stdout
    (tmp_path / "unhang.toml").write_text("[presets.mine]\nbatch = 192\n")
    assert "192" in written("--preset", "mine").stdout


def test_check(run, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("distributed_type: 'NO'\nbackend: gloo\n")
    ran = run("--check", file)
    assert ran.exit_code == 1 and "a.yaml:2:" in ran.stdout and "InitProcessGroupKwargs" in ran.stdout
    assert "没有" in run("--check", file, "--lang", "zh").stdout
    assert json.loads(run("--check", file, "--json").stdout)["problems"][0]["line"] == 2
    file.write_text("distributed_type: 'NO'\n")
    assert run("--check", file).exit_code == 0
    assert isinstance(run("--check", tmp_path / "none").exception, UnhangError)


def test_several_files_are_all_read_and_the_worst_counts(run, tmp_path):
    right, wrong, broken = tmp_path / "a.yaml", tmp_path / "b.json", tmp_path / "c.json"
    right.write_text("distributed_type: 'NO'\n")
    wrong.write_text('{"train_batch_size": 0}')
    broken.write_text("{")
    assert run("--check", right, right).exit_code == 0
    ran = run("--check", right, wrong)
    assert ran.exit_code == 1 and "a.yaml: accelerate: nothing wrong" in ran.stdout and "b.json:1: train_batch_size is 0" in ran.stdout
    ran = run("--check", broken, wrong, tmp_path / "none")
    assert ran.exit_code == 2 and "b.json:1:" in ran.stdout and "c.json:1:2 is no JSON" in ran.stderr and "cannot read" in ran.stderr
    listed = json.loads(run("--check", broken, "--check", wrong, "--json").stdout)["files"]
    assert "no JSON" in listed[0]["error"] and listed[0]["form"] is None and listed[1]["problems"][0]["line"] == 1
    alone = run("--check", broken, "--json")
    assert alone.exit_code == 2 and "no JSON" in json.loads(alone.stdout)["error"]
    assert run("--form", "deepspeed", "--check", wrong).exit_code == 1


BY_TORCHRUN = "torchrun --standalone --nproc-per-node 2 train.py\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.sh", "ulimit -n 4096\n./go\n", "torchrun: nothing wrong was found with its variables; no launcher was seen in it"),
        ("a", "export NCCL_DEBUG=INFO\n./go\n", "torchrun: nothing wrong was found with its variables; no launcher was seen in it"),
        ("a", "NCCL_DEBUG=INFO /opt/bin/python3 -u train.py\n", "torchrun: nothing wrong was found with its variables; no launcher was seen in it"),
        ("a", "#!/bin/bash\n./go\n", "torchrun: nothing wrong was found with its variables; no launcher was seen in it"),
        ("a", BY_TORCHRUN, "torchrun: nothing wrong was found in this file"),
        ("a", f'case "$1" in\n1) {BY_TORCHRUN} ;;\nesac\n', "bash: nothing wrong was found in this file"),
        ("a.sh", "export NCCL_SHM_DISABEL=1\n", ":1: NCCL_SHM_DISABEL"),
    ],
)
def test_a_script_of_a_shell_needs_no_first_line_of_its_own(run, tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    said = run("--check", tmp_path / name).stdout
    assert f"{name}: {says}\n" in said or f"{name}{says}" in said
    starts_nothing = json.loads(run("--check", tmp_path / name, "--json").stdout).get("starts_nothing", False)
    assert starts_nothing is ("torchrun --" not in text)
    assert ("没有看到启动器" in run("--check", tmp_path / name, "--lang", "zh").stdout) == ("no launcher" in says)


def test_pods_that_train_nothing_are_not_called_right(run, tmp_path):
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nspec: {containers: [{image: nginx}]}\n")
    ran = run("--check", tmp_path / "a.yaml")
    assert ran.exit_code == 0 and "with its variables; no launcher was seen in it" in ran.stdout


# What the file alone lacks, a command may give; what each has alone, both together may have not.
TWO_HOSTS = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--main_process_ip node0 --machine_rank 1", None),
        ("--num_machines 1 --num_processes 8", None),
        ("", "acc.yaml:2: 2 machines, and no main_process_ip"),
        ("--main_process_ip node0 --num_processes 7", "7 does not divide by 2"),
        ("--main_process_ip node0 --machine_rank 2", "machine_rank is 2"),
        ("--main_process_ip $HOST0 --num_processes $N", None),
    ],
)
def test_a_command_of_accelerate_and_its_file(run, tmp_path, options, says):
    (tmp_path / "acc.yaml").write_text(TWO_HOSTS)
    (tmp_path / "start.sh").write_text(f"#!/bin/bash\naccelerate launch --config_file acc.yaml {options} train.py\n")
    for named in (("start.sh",), ("start.sh", "acc.yaml"), ("acc.yaml", "start.sh")):
        ran = run("--check", *(tmp_path / name for name in named))
        assert ran.exit_code == (says is not None) and (says or "nothing wrong") in ran.stdout
        assert "torchrun" not in ran.stdout


def test_a_note_is_no_fault(run, tmp_path):
    (tmp_path / "ds.json").write_text('{"train_batch_size": "auto"}')
    ran = run("--check", tmp_path / "ds.json", "--form", "deepspeed")
    assert ran.exit_code == 0 and "ds.json:1: note: train_batch_size is auto" in ran.stdout and "nothing wrong was found" in ran.stdout


NO_SHELL = {
    "readme": "Training\n\n    python train.py\n",
    "markdown": "Run it:\n```\npython train.py\n```\n",
    "compose": "services:\n  a:\n    command: |\n      set -e\n      python train.py\n",
    "a list of steps": "steps:\n- run: |\n    export A=1\npython train.py: 1\n",
    "toml": "[train]\nrun = 'x'\nexport A=1\n",
    "fish": "set -x A 1\n",
}


@pytest.mark.parametrize("text", ["hello world\n", "python is a snake\n", "exports of wood\n", *NO_SHELL.values()])
def test_what_is_not_understood_says_what_was_looked_for(run, tmp_path, text):
    (tmp_path / "a").write_text(text)
    refused = run("--check", tmp_path / "a").exception
    assert "no form known here" in str(refused) and "a line for a shell" in refused.cause and refused.hint.startswith("--form torchrun for a script")


def test_what_was_not_carried_is_spelt_as_it_is_set(run):
    ran = run("ray", "--preset", "conservative")
    assert "pin-memory=off: " in ran.stdout and "pin-memory=off: " in ran.stderr and "=False: " not in ran.stdout + ran.stderr
    assert "而这种文件" in run("ray", "--preset", "conservative", "--lang", "zh").stderr


@pytest.mark.parametrize("words", [("--nodes=-2",), ("--processes", "0")])
def test_no_job_has_less_than_one(run, tmp_path, words):
    (tmp_path / "a.json").write_text('{"train_batch_size": 8}')
    ran = run("--check", tmp_path / "a.json", *words)
    assert ran.exit_code == 2 and "x>=1" in ran.stderr


def test_what_is_piped_in(run):
    ran = run("--check", "-", input="distributed_type: 'NO'\nbackend: gloo\n")
    assert ran.exit_code == 1 and ran.stdout.startswith("-:2: ")
    assert isinstance(run("--check", "-", "-", input="").exception, UnhangError)
    empty = run("--check", "-", input="")
    assert "- is empty" in str(empty.exception)
    assert "UTF-16" in str(run("--check", "-", input="a: 1\n".encode("utf-16")).exception)


@pytest.mark.timeout(300)
def test_a_pipe_that_nobody_writes_is_not_waited_for_without_end(run, tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "_PATIENCE_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    assert "nothing came for 0.2 s" in str(run("--check", tmp_path / "pipe").exception)
    assert "Is a directory" in str(run("--check", tmp_path).exception)
    (tmp_path / "large").write_text("x: y\n" * 60_000)
    assert "larger than 256 KiB" in str(run("--check", tmp_path / "large").exception)


@pytest.mark.timeout(60)
def test_what_a_command_writes_is_read(tmp_path):
    """As bash hands it over: a pipe, whose writer takes its time, or is gone."""
    large = "x: " + "y" * 100_000
    for script, code, says in (
        (f"<(echo \"distributed_type: 'NO'\"; read -t 1 <> <(:); printf 'backend: gloo\\n{large}')", 1, "/dev/fd/63:2: accelerate has no key"),
        ("<(:)", 2, "is empty"),
    ):
        ran = subprocess.run(
            ["bash", "-c", f"exec {sys.executable} -m unhang export --check {script}"],
            capture_output=True,
            text=True,
            timeout=30,
            cwd=tmp_path,
            check=False,
        )
        assert ran.returncode == code and says in ran.stdout + ran.stderr, ran


def test_every_form_is_listed_and_documented(run):
    listed = run("--list").stdout
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    for name in NAMES:
        assert f"\n{name} " in f"\n{listed}" and f"`{name}`" in page


@pytest.mark.parametrize(("options", "spelt"), [([], "DETAIL"), (["--cpu"], "INFO"), (["--set", "backend=gloo"], "INFO")])
def test_what_crashes_without_nccl_is_not_written_for_it(run, options, spelt):
    found = run("torchrun", *options, "--set", "detail=on", "--", "train.py")
    assert found.exit_code == 0 and f"TORCH_DISTRIBUTED_DEBUG={spelt}" in found.stdout


def test_what_to_write_in_place_of_a_variable_stands_in_instead_and_is_shown_once(run, tmp_path):
    file = tmp_path / "a.sh"
    file.write_text("export NCCL_TIMEOUT=1800\nexport NCCL_P2P_DISABEL=1\nexport NCCL_ASYNC_ERROR_HANDLING=1\ntorchrun train.py\n")
    document = json.loads(run("--check", file, "--json").stdout)
    timeout, slip, renamed = document["problems"]
    assert "init_process_group(timeout=...)" in timeout["instead"] and of_document(document, timeout["instead"]).startswith("集合通信的超时")
    assert (slip["instead"], renamed["instead"]) == ("NCCL_P2P_DISABLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    for lang in ("en", "zh"):
        shown = run("--check", file, "--lang", lang).stdout
        assert shown.count("init_process_group(timeout=...)") == 1 and shown.count("NCCL_P2P_DISABLE\n") == 1, shown
