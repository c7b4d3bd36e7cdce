"""unhang vars: what it prints, its exit codes, files, names, other environments, and that no credential leaves."""

from __future__ import annotations

import json
import os

import pytest
import typer
from tests.chinese import of_document
from typer.testing import CliRunner

from unhang.cli import vars
from unhang.errors import UnhangError


@pytest.fixture
def site(tmp_path):
    """Somebody's site-packages."""
    folder = tmp_path / "site-packages"
    for name in ("torch-2.9.1", "nvidia_nccl_cu12-2.27.5", "accelerate-1.15.0"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch, site):
    monkeypatch.setattr("unhang.facts.host.os.environ", {"HOME": str(tmp_path), "PATH": "/usr/bin"})
    app = typer.Typer()
    app.callback()(lambda: None)
    vars.register(app)

    def run(*arguments, environ=None, libs=True):
        monkeypatch.setattr("unhang.facts.host.os.environ", {"HOME": str(tmp_path), "PATH": "/usr/bin", **(environ or {})})
        chosen = ["--libs", str(site)] if libs else []
        env = {"COLUMNS": "200", "NO_COLOR": "1", "XDG_CACHE_HOME": str(tmp_path / "cache"), "LANG": "C"}
        return CliRunner().invoke(app, ["vars", *chosen, *map(str, arguments)], env=env)

    return run


def test_environment(run):
    ran = run(environ={"NCCL_TIMEOUT": "1800", "NCCL_DEBUG": "INFO"})
    assert ran.exit_code == 1
    assert "NCCL_TIMEOUT=1800  environment" in ran.stdout and "init_process_group(timeout=...)" in ran.stdout
    assert "read by nccl 2.27.5 (checked table)" in ran.stdout
    chinese = run("--lang", "zh", environ={"NCCL_TIMEOUT": "1800"})
    assert "任何版本都不读取它" in chinese.stdout and "no release" not in chinese.stdout


@pytest.mark.parametrize(
    ("lang", "first", "then"),
    [
        ("en", "no such variable is known; the nearest real name is NCCL_P2P_DISABLE", "whether anything here reads the name as it stands"),
        ("zh", "没有这样的变量", "此处是否有程序读取这个名称本身，未能查明"),
    ],
)
def test_that_a_name_does_not_exist_is_said_before_what_is_not_known_of_it(run, lang, first, then):
    said = run("NCCL_P2P_DISABEL", "--lang", lang).stdout
    assert 0 < said.find(first) < said.find(then), said


def test_nothing_wrong(run):
    assert run(environ={"NCCL_DEBUG": "INFO"}).exit_code == 0
    ran = run()
    assert ran.exit_code == 0 and "no setting of a variable that touches communication was found" in ran.stdout


def test_names_of_other_programs_fail_nothing(run, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("export LORA_RANK=64 MASTER_HOST=a WOLRD_SIZE=8 NCCL_ROOT=/opt/nccl\n")
    for ran in (run(script), run(environ={"LORA_RANK": "64", "WOLRD_SIZE": "8", "NCCL_ROOT": "/opt/nccl"}), run("LORA_RANK")):
        assert ran.exit_code == 0 and "nearest" not in ran.stdout
    assert "if WORLD_SIZE was meant" in run(script).stdout


def test_json(run, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\nexport ACCELERATE_USE_GLOO=1\ntorchrun x.py\n")
    ran = run(script, "--json")
    seen = json.loads(ran.stdout)
    assert ran.exit_code == 1 and seen["schema"] == "unhang/vars/1" and seen["libraries"]["nccl"] == "2.27.5"
    (one,) = seen["variables"]
    assert (one["name"], one["value"], one["line"], one["state"]) == ("ACCELERATE_USE_GLOO", "1", 2, "not-read")
    assert one["remarks"][0]["kind"] == "not-read" and of_document(seen, one["remarks"][0]["says"]).startswith("NCCL、torch")


def test_values_that_are_no_text(run):
    ran = run("--json", environ={"NCCL_SOCKET_IFNAME": "\udcffa"})
    assert [v["value"] for v in json.loads(ran.stdout)["variables"]] == ["?a"], ran.exception


def test_names_and_all(run):
    assert "4.096" in run("NCCL_IB_TIMEOUT").stdout
    assert run("NCCL_TIMEOUT").exit_code == 1
    everything = run("--all")
    assert "NCCL_DEBUG\n" in everything.stdout and everything.exit_code == 0


@pytest.mark.parametrize(
    ("first", "state"),
    [
        ("", "not-read"),
        ("export LD_PRELOAD=/opt/libjemalloc.so", "not-read"),
        ("export LD_PRELOAD=/opt/nccl/lib/libnccl.so.2", "unknown"),
        ('export LD_PRELOAD="$NCCL_HOME/libnccl.so $LD_PRELOAD"', "unknown"),
        ("LD_AUDIT=/opt/libmscclpp_audit_nccl.so torchrun a.py", "unknown"),
    ],
)
def test_a_script_that_brings_its_own_nccl(run, tmp_path, first, state):
    script = tmp_path / "run.sh"
    script.write_text(f"{first}\nexport NCCL_GIN_TYPE=3\n")
    (one,) = (v for v in json.loads(run("--json", script).stdout)["variables"] if v["name"] == "NCCL_GIN_TYPE")
    assert one["state"] == state


@pytest.mark.parametrize(
    ("name", "exit_code", "said"),
    [
        ("NCCL_IB_TIMEUT", 1, "no such variable is known; the nearest real name is NCCL_IB_TIMEOUT"),
        ("NCCL_SOMETHING_OF_A_PLUGIN", 0, "nccl 2.27.5 does not read it, a plugin or another build of NCCL may"),
        ("NCCL_IBEXT_DISABLE", 0, ""),
        ("RCCL_MSCCL_ENABLE", 0, ""),
    ],
)
def test_what_a_plugin_may_read_is_not_called_unread(run, tmp_path, name, exit_code, said):
    script = tmp_path / "run.sh"
    script.write_text(f"export {name}=1\n")
    ran = run(script)
    assert ran.exit_code == exit_code and said in ran.stdout and "nothing installed here reads it" not in ran.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "export NCCL_DEBUG=INFO\ncat <<E\nexport NCCL_TIMEOUT=5\n",
            "a.sh behind line 2 was not looked at: a here-document that begins there is not closed",
        ),
        ("echo 'a\nexport NCCL_TIMEOUT=5\n", "a.sh behind line 1 was not looked at: a quote that begins there is not closed"),
    ],
)
def test_a_file_that_could_not_be_followed(run, tmp_path, text, said):
    script = tmp_path / "a.sh"
    script.write_text(text)
    ran = run("--json", script)
    assert ran.exit_code == 2
    missed = json.loads(ran.stdout)["not_examined"]
    assert [f"{one['what']} was not looked at: {one['why']}" for one in missed] == [f"{tmp_path}/{said}"]
    assert "not looked at" in run(script).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.sh"], "cannot read missing.sh"),
        (["--lang", "fr"], "one of en, zh"),
    ],
)
def test_bad_input(run, arguments, words):
    failed = run(*arguments).exception
    assert isinstance(failed, UnhangError) and words in str(failed)


def test_bad_files(run, tmp_path):
    for name, data, words in (
        ("a.bin", b"\0\1", "no text"),
        ("a.yaml", b"a: [", "no YAML"),
        ("a.sh", b"A=b\n" * 70_000, "larger than 256 KiB"),
        ("b.sh", b"NCCL_ALGO=b\n" * 2_001, "more than 2000 variables"),
    ):
        (tmp_path / name).write_bytes(data)
        assert words in str(run(tmp_path / name).exception)
    assert "no directory" in str(run("--libs", tmp_path / "none", libs=False).exception)
    (tmp_path / "empty").mkdir()
    assert "none of the libraries" in str(run("--libs", tmp_path / "empty", libs=False).exception)


def test_no_credential_leaves(run, tmp_path):
    secrets = ("hunter2hunter2", "s3cretpassw0rd")
    environ = {"NCCL_PSK": secrets[0], "NCCL_RAS_ADDR": f"http://u:{secrets[1]}@h/", "ACCELERATE_API_KEY": secrets[0], "HF_TOKEN": secrets[0]}
    script = tmp_path / "a.sh"
    script.write_text("".join(f"export {n}='{v}'\n" for n, v in environ.items()))
    for ran in (run(environ=environ), run("--json", environ=environ), run(script), run(script, "--json")):
        assert "NCCL_PSK" in ran.stdout
        assert not [s for s in secrets if s in ran.stdout]


def test_control_characters_are_not_shown(run):
    assert "\x1b" not in run(environ={"NCCL_ALGO": "\x1b[31mRing"}).stdout


def test_other_releases_are_searched_once(run, tmp_path, site):
    (site / "torch-2.9.1.dist-info").rmdir()
    (site / "torch-2.99.0.dist-info").mkdir()
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch" / "lib" / "libtorch_cpu.so").write_bytes(b"..\0TORCH_NCCL_OF_THE_FUTURE\0")
    (site / "torch" / "distributed.py").write_text("os.environ['RANK']")
    ran = run(environ={"TORCH_NCCL_OF_THE_FUTURE": "1", "TORCH_NCCL_OF_NO_TIME": "1", "RANK": "0"})
    assert "stands in torch 2.99.0 (found in libtorch_cpu.so)" in ran.stdout and "found in distributed.py" in ran.stdout
    assert "nothing installed here reads it" in ran.stdout
    assert (tmp_path / "cache" / "unhang").exists()


def test_one_bad_file_does_not_take_the_report_of_the_others(run, tmp_path):
    good, binary = tmp_path / "good.sh", tmp_path / "bad.sh"
    good.write_text("export NCCL_TIMEOUT=3\n")
    binary.write_bytes(b"\0\0")
    ran = run(good, binary, tmp_path / "gone.sh")
    assert ran.exit_code == 2 and "NCCL_TIMEOUT=3" in ran.stdout
    said = " ".join(ran.stdout.split())
    assert "bad.sh is no text" in said and "gone.sh: No such file" in said
    assert "none of the files" in str(run(binary, tmp_path / "gone.sh").exception)


def test_a_setting_as_it_would_be_written_on_a_command_line(run):
    ran = run("NCCL_DEBUG=LOUD", "NCCL_IB_TIMEOUT=22")
    assert ran.exit_code == 1 and "NCCL_DEBUG=LOUD  command line" in ran.stdout and "'LOUD' is none of" in ran.stdout


def test_names_in_small_letters_are_hinted_at(run):
    with pytest.raises(UnhangError) as error:
        raise run("nccl_debug").exception
    assert error.value.hint == "unhang vars NCCL_DEBUG"


def test_all_of_them_and_some_of_them_at_once_is_refused(run):
    assert "takes no names" in str(run("--all", "NCCL_DEBUG").exception)


def test_what_nothing_here_reads_gets_no_tick(run, site):
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").rmdir()
    assert run("DEEPSPEED_TIMEOUT").stdout.splitlines()[1].startswith("- DEEPSPEED_TIMEOUT")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", 'echo "NCCL_DEBUG=$NCCL_DEBUG" >&2\n[ -z "$NCCL_DEBUG" ] && unset NCCL_ALGO || true\n'),
        ("a.sh", "for name in NCCL_DEBUG NCCL_ALGO; do echo ${!name}; done\n"),
        ("a.sh", "mpirun -x NCCL_DEBUG -x PATH a; docker run -e NCCL_DEBUG --env=NCCL_ALGO b; srun --export=ALL,NCCL_DEBUG c\n"),
        ("a.sh", "# NCCL_DEBUG=INFO\ngrep -q NCCL_DEBUG=INFO a.log\ntorchrun --master_addr $MASTER_ADDR a.py\n"),
        ("a.yaml", "environment:\n  - NCCL_DEBUG\n# NCCL_ALGO=Ring\n"),
        ("a.py", 'import os\n"""NCCL_DEBUG=INFO helps."""\nx = os.environ.get("NCCL_DEBUG") or os.environ["NCCL_ALGO"]\nprint("NCCL_DEBUG=INFO")\n'),
        (
            "a.py",
            "for name in ('NCCL_DEBUG', 'NCCL_ALGO'):\n    if name in os.environ or 'NCCL_DEBUG' in os.environ:\n        pass  # NCCL_DEBUG=1\n",
        ),
        ("Dockerfile", "FROM a\n# NCCL_DEBUG=INFO\nRUN echo $NCCL_DEBUG\n"),
        ("a.sh", "cat > job.sh <<E\nexport NCCL_DEBUG=INFO\nE\necho NCCL_ALGO=Ring >> /etc/nccl.conf\n"),
        ("a.py", "os.system('NCCL_DEBUG=INFO torchrun a.py')\nset_variable('NCCL_ALGO', 'Ring')\n"),
    ],
)
def test_a_name_that_is_only_used_or_stands_in_data_is_no_setting(run, tmp_path, name, text):
    script = tmp_path / name
    script.write_text(text)
    ran = run(script, "--json")
    found = json.loads(ran.stdout)
    assert (ran.exit_code, found["variables"], found["not_examined"]) == (0, [], []), ran.stdout
    # Not that none is set: what other forms set is not read.
    assert "no setting of a variable that touches communication was found" in run(script, "--lang", "en").stdout


def test_what_is_set_while_an_image_is_built_holds_nowhere_else(run, tmp_path):
    script = tmp_path / "Dockerfile"
    script.write_text("FROM a\nARG NCCL_ALGO=Ring\nRUN export NCCL_DEBUG=INFO && make\nCMD NCCL_BUFFSIZE=4194304 torchrun a.py\n")
    ran = run(script)
    assert ran.exit_code == 1 and ran.stdout.count("while the image is built") == 2
    assert "while the image" not in ran.stdout[ran.stdout.index("NCCL_BUFFSIZE") :]


def test_the_file_that_nccl_is_told_to_read(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.conf").write_text("NCCL_IB_TIMEOUT=true\n")
    ran = run(environ={"NCCL_CONF_FILE": "my.conf"})
    assert ran.exit_code == 1 and f"NCCL_IB_TIMEOUT=true  {tmp_path}/my.conf:1" in ran.stdout and "that each process is started in" in ran.stdout
    gone = run(environ={"NCCL_CONF_FILE": "gone.conf"})
    assert gone.exit_code == 1 and f"there is no file {tmp_path}/gone.conf" in gone.stdout
    (tmp_path / "a.sh").write_text("export NCCL_CONF_FILE=gone.conf\n")
    assert "was not looked at: unhang vars FILE" in run(tmp_path / "a.sh").stdout


def test_what_only_looks_like_a_credential_is_shown(run):
    assert "TOKENIZERS_PARALLELISM=false" in run(environ={"TOKENIZERS_PARALLELISM": "false"}).stdout


def test_a_pipe_is_not_waited_for(run, tmp_path):
    os.mkfifo(tmp_path / "ff")
    ran = run(str(tmp_path / "ff"))
    assert isinstance(ran.exception, UnhangError) and "is a FIFO, not a file" in str(ran.exception)


def test_a_long_value_is_no_file(run):
    adapters = ",".join(f"mlx5_{n}" for n in range(800))
    ran = run(f"NCCL_IB_HCA={adapters}", "--json")
    assert not isinstance(ran.exception, UnhangError) and json.loads(ran.stdout)["variables"]


def test_what_reaches_no_program_has_no_effect(run, tmp_path):
    (tmp_path / "p.sh").write_text("NCCL_P2P_DISABLE=1\ntorchrun t.py\n")
    said = run(str(tmp_path / "p.sh"), "--lang", "en").stdout
    assert "set without export" in said and "copies are off" not in said
