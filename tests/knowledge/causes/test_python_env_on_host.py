"""What is said of Python environments: real ones, broken on purpose."""

import subprocess
import sys

import pytest

from unhang.facts import snapshot
from unhang.facts.host import Host
from unhang.knowledge import catalogue

PYTHON = sys.executable
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def venv(place):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(place)], check=True)
    return place


def install(env, *packages):
    for package in packages:
        (env / SITE / f"{package}.dist-info").mkdir(parents=True)


def script(path, interpreter):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n")
    path.chmod(0o755)


@pytest.fixture
def env(tmp_path):
    """A training's environment as it should be."""
    made = venv(tmp_path / "env")
    install(made, "torch-2.8.0", "accelerate-1.0", "pip-25.0")
    for name in ("torchrun", "accelerate", "pip"):
        script(made / "bin" / name, made / "bin" / "python")
    return made


@pytest.fixture
def judge(monkeypatch):
    def found(*directories, **environ):
        host = Host(environ={"PATH": ":".join(str(d) for d in (*directories, "/usr/bin", "/bin"))} | {k: str(v) for k, v in environ.items()})
        seen = snapshot.take(host, only=["python_env"])
        return [f for c in ("env-relocation", "launcher-wrong-env", "version-mismatch") for f in catalogue.load()[c].on_host(seen)]

    monkeypatch.setattr(sys, "executable", "/no/such/python")
    return found


def test_sane_environments(env, tmp_path, judge):
    (tmp_path / "link").symlink_to(env)
    assert judge(env / "bin", VIRTUAL_ENV=env, HOME=tmp_path) == []
    assert judge(tmp_path / "link" / "bin", VIRTUAL_ENV=tmp_path / "link") == []
    assert judge(env / "bin", CONDA_PREFIX="/no/such/conda-base", VIRTUAL_ENV=env) == []
    assert judge(env / "bin", PYTHONPATH=f"{tmp_path}:/no/such") == []


def test_unhang_in_an_environment_of_its_own(env, tmp_path, judge, monkeypatch):
    own = venv(tmp_path / "pipx" / "venvs" / "unhang")
    monkeypatch.setattr(sys, "executable", str(own / "bin" / "python"))
    assert judge(env / "bin") == []
    install(own, "torch-2.13.0")
    (note,) = judge(env / "bin")
    assert (note.severity, note.cause) == ("note", "launcher-wrong-env")
    assert note.remedies[0].command == f"unhang run --python {env}/bin/python train.py"


def test_a_moved_environment(env, tmp_path, judge):
    new = tmp_path / "new place"
    env.rename(new)
    (one,) = judge(new / "bin")
    assert (one.cause, one.severity, one.area) == ("env-relocation", "error", "python_env")
    assert one.says == f"3 of 3 scripts in {new}/bin begin with an interpreter that is not there; its activate script names {env}"
    commands = {r.id: r.command for r in one.remedies}
    assert commands["through-the-interpreter"] == f"'{new}/bin/python' -m torch.distributed.run ARGS train.py"
    # No first line can hold a space.
    assert "rewrite-the-paths" not in commands


def command_of(finding, remedy):
    return next((r.command for r in finding.remedies if r.id == remedy), None)


def carry_out(command):
    subprocess.run(command, shell=True, check=True)


@pytest.mark.parametrize("place", ["new", "env.new", "en", "env/inner", "srv/env&co[1]"])
def test_what_rewriting_the_paths_leaves(env, tmp_path, judge, place):
    (env / "bin" / "mine.sh").write_text(f"#!/usr/bin/env bash\ncd {env}/data\n")
    (env / "bin" / "long").write_text(f"#!/bin/sh\n'''exec' {env}/bin/python \"$0\" \"$@\"\n' '''\n")
    new, kept = tmp_path / place, tmp_path / "kept"
    env.rename(kept)
    new.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(new)
    command = command_of(judge(new / "bin")[0], "rewrite-the-paths")
    carry_out(command)
    once = {p: p.read_bytes() for p in (new / "bin").iterdir() if not p.is_symlink()}
    assert judge(new / "bin") == []
    assert (new / "bin" / "mine.sh").read_text() == f"#!/usr/bin/env bash\ncd {env}/data\n"
    assert f"exec' {new}/bin/python " in (new / "bin" / "long").read_text()
    assert (new / "bin" / "python").is_symlink()
    told = subprocess.run(["bash", "-c", '. "$0"/bin/activate && echo "$VIRTUAL_ENV"', str(new)], capture_output=True, text=True, check=True)
    assert told.stdout == f"{new}\n"
    carry_out(command)
    assert {p: p.read_bytes() for p in once} == once


@pytest.mark.parametrize("interpreter", ["/usr/bin/python3", "/usr/bin/python3.0", "/usr/local/bin/python3.0", "/bin/python3.0"])
def test_no_prefix_of_the_system_is_rewritten(env, judge, interpreter):
    script(env / "bin" / "torchrun", interpreter)
    told = judge(env / "bin")
    assert not [f for f in told if command_of(f, "rewrite-the-paths")]
    assert all(command_of(f, "rebuild-here") for f in told)


@pytest.mark.integration
def test_rebuilding_leaves_what_is_there(env, tmp_path, judge):
    """Also where no index is within reach."""
    install(env, "torchvision-0.23.0+cu121", "trainer-1.0")
    (env / SITE / "trainer-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {}}')
    (tmp_path / "requirements.lock").write_text("mine")
    new = tmp_path / "new"
    env.rename(new)
    before = sorted(new.rglob("*"))
    command = command_of(judge(new / "bin")[0], "rebuild-here")
    assert command.endswith("   # by hand: torchvision 0.23.0+cu121")
    ran = subprocess.run(f"PIP_NO_INDEX=1; export PIP_NO_INDEX; {command}", shell=True, cwd=tmp_path, capture_output=True, check=False)
    assert ran.returncode
    assert sorted(new.rglob("*")) == before
    assert (tmp_path / "requirements.lock").read_text() == "mine"
    assert (tmp_path / "new.packages.txt").read_text().splitlines() == [
        "accelerate==1.0",
        "pip==25.0",
        "torch==2.8.0",
        "# by hand: torchvision-0.23.0+cu121.dist-info",
        "# by hand: trainer-1.0.dist-info",
    ]
    assert (tmp_path / "new.new" / "bin" / "python").exists()


def test_a_copied_environment(env, tmp_path, judge):
    subprocess.run(["cp", "-a", str(env), str(tmp_path / "new")], check=True)
    told = judge(tmp_path / "new" / "bin")
    assert told[0].says == f"accelerate, pip, torchrun in {tmp_path}/new/bin run the Python of {env}; its activate script names {env}"
    assert {(f.cause, f.severity) for f in told} == {("env-relocation", "error")}


def test_an_activate_script_alone(tmp_path, judge):
    venv(tmp_path / "env").rename(tmp_path / "new")
    (one,) = judge(tmp_path / "new" / "bin")
    assert (one.severity, one.says) == ("warning", f"{tmp_path}/new/bin/activate leads to {tmp_path}/env: the environment was moved or copied")


def test_a_base_that_is_gone(env, judge):
    for link in (env / "bin").glob("python*"):
        link.unlink()
        link.symlink_to("/opt/removed/python3")
    (one, *_) = judge(env / "bin")
    assert (one.severity, one.says) == ("error", f"{env}/bin/python leads to /opt/removed/python3, which is not there")


def test_an_upgraded_base(env, judge):
    (env / SITE).parent.rename(env / "lib" / "python3.7")
    told = judge(env / "bin")
    assert [f.severity for f in told] == ["error"]
    assert told[0].says.startswith(f"{env} holds packages for Python 3.7, and its python is 3.")


def test_scripts_that_are_no_launchers(env, judge):
    script(env / "bin" / "f2py", "/gone/bin/python")
    script(env / "bin" / "python3.11-gdb.py", "/usr/local/bin/python-of-its-author")
    (one,) = judge(env / "bin")
    assert (one.severity, one.says) == ("warning", f"1 of 5 scripts in {env}/bin begin with an interpreter that is not there")


@pytest.mark.parametrize(("name", "severity"), [("trainer", "warning"), ("transformers", "error")])
def test_an_editable_install_without_sources(env, tmp_path, judge, name, severity):
    install(env, f"{name}-1.0")
    record = env / SITE / f"{name}-1.0.dist-info" / "direct_url.json"
    record.write_text(f'{{"dir_info": {{"editable": true}}, "url": "file://{tmp_path}/src"}}')
    (env / SITE / f"_{name}.pth").write_text(f"{tmp_path}/src\n")
    (one,) = judge(env / "bin")
    assert (one.cause, one.severity) == ("env-relocation", severity)
    assert one.says == f"1 editable install leads to sources that are gone: {name} ({tmp_path}/src)"
    (tmp_path / "src").mkdir()
    assert judge(env / "bin") == []


def test_a_line_that_leads_nowhere_is_a_note(env, judge):
    (env / SITE / "conda.pth").write_text("/src/old-project\n")
    assert [f.severity for f in judge(env / "bin")] == ["note"]


def test_pythonhome(env, tmp_path, judge):
    assert judge(env / "bin", PYTHONHOME=sys.base_prefix) == []
    (one,) = judge(env / "bin", PYTHONHOME=tmp_path)
    assert one.severity == "error" and one.says.startswith(f"PYTHONHOME is {tmp_path}")


def test_a_launcher_of_another_environment(env, tmp_path, judge):
    other = venv(tmp_path / "other")
    script(tmp_path / "bin" / "torchrun", other / "bin" / "python")
    (one,) = judge(tmp_path / "bin", env / "bin")
    assert (one.cause, one.severity) == ("launcher-wrong-env", "warning")
    assert one.says == f"torchrun on the PATH is {tmp_path}/bin/torchrun and runs {other}/bin/python; python is {env}/bin/python"
    assert one.remedies[0].command == f"{env}/bin/python -m torch.distributed.run ARGS train.py"


def test_a_launcher_that_cannot_start_elsewhere(env, tmp_path, judge):
    script(tmp_path / "bin" / "torchrun", "/usr/bin/python3.6")
    (one,) = judge(tmp_path / "bin", env / "bin")
    assert (one.cause, one.severity) == ("env-relocation", "error")
    assert one.says == f"torchrun on the PATH is {tmp_path}/bin/torchrun, which begins with an interpreter that is not there: /usr/bin/python3.6"


def test_tools_that_stand_apart_are_meant_so(env, tmp_path, judge):
    tool = venv(tmp_path / "uv" / "tools" / "deepspeed")
    script(tmp_path / "bin" / "deepspeed", tool / "bin" / "python")
    script(tmp_path / "bin" / "torchrun", "/bin/sh")
    assert judge(tmp_path / "bin", env / "bin") == []
    # Where the environment has it too, the wrong one answers.
    install(env, "deepspeed-0.17")
    assert [f.cause for f in judge(tmp_path / "bin", env / "bin")] == ["launcher-wrong-env"]


def test_a_launcher_is_all_right_where_python_has_no_torch(env, tmp_path, judge):
    system = venv(tmp_path / "system")
    script(tmp_path / "bin" / "torchrun", env / "bin" / "python")
    assert judge(tmp_path / "bin", system / "bin") == []


def test_a_python_that_is_not_the_activated_one(env, tmp_path, judge):
    other = venv(tmp_path / "other")
    (one,) = judge(other / "bin", env / "bin", VIRTUAL_ENV=env)
    assert (one.severity, one.says) == ("warning", f"VIRTUAL_ENV is {env}, and python on the PATH is {other}/bin/python")
    (base := tmp_path / "conda" / "condabin").mkdir(parents=True)
    assert judge(other / "bin", CONDA_PREFIX=base.parent) == []
    assert [f.severity for f in judge(other / "bin", CONDA_PREFIX=env)] == ["warning"]


def test_pip_of_another_environment(env, tmp_path, judge):
    other = venv(tmp_path / "other")
    script(tmp_path / "bin" / "pip", other / "bin" / "python")
    assert [f.severity for f in judge(tmp_path / "bin", env / "bin")] == ["note"]
    # uv's environments have no pip.
    (env / SITE / "pip-25.0.dist-info").rmdir()
    assert judge(tmp_path / "bin", env / "bin") == []


def test_packages_that_come_before(env, tmp_path, judge):
    other = tmp_path / "old" / SITE
    for package in ("torch-2.1.0", "accelerate-1.0", "requests-1.0"):
        (other / f"{package}.dist-info").mkdir(parents=True)
    (one,) = judge(env / "bin", PYTHONPATH=other)
    assert one.says == f"PYTHONPATH {other} comes before the packages of {env}: torch 2.1.0 before 2.8.0"
    assert [r.id for r in one.remedies] == ["no-python-path"]
    # The user site does not count in a venv.
    assert judge(env / "bin", PYTHONUSERBASE=tmp_path / "old") == []


def test_two_records_of_one_package(env, judge):
    install(env, "torch-2.4.1", "idna-3.1", "idna-3.2")
    (one,) = judge(env / "bin")
    assert (one.cause, one.severity) == ("version-mismatch", "warning")
    assert one.says == f"{env} has records of two releases of one package: torch 2.4.1 and 2.8.0"
