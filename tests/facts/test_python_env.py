"""Real environments, made, moved and broken; and layouts of machines that are only a directory."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from unhang.facts import python_env, snapshot, snapshot_file
from unhang.facts.host import Host, NotHere

PYTHON = sys.executable
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def venv(place, *more):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", *more, str(place)], check=True)
    return place


def site(prefix, version=VERSION):
    return prefix / "lib" / f"python{version}" / "site-packages"


def install(directory, *packages):
    for package in packages:
        (directory / f"{package}.dist-info").mkdir(parents=True)


def script(path, interpreter):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\nprint()\n")
    path.chmod(0o755)


@pytest.fixture
def look(monkeypatch):
    def at(*directories, **environ):
        host = Host(environ={"PATH": ":".join(str(d) for d in (*directories, "/usr/bin", "/bin"))} | {k: str(v) for k, v in environ.items()})
        return python_env.collect(host)

    monkeypatch.setattr(sys, "executable", "/no/such/python")
    return at


def test_a_venv(tmp_path, look):
    env = venv(tmp_path / "env")
    install(site(env), "torch-2.8.0", "accelerate-1.0")
    script(env / "bin" / "torchrun", env / "bin" / "python")
    seen = look(env / "bin")
    assert (seen.training.prefix, seen.training.kind, seen.chosen_by) == (str(env), "venv", "python on the PATH")
    assert seen.training.version.startswith(VERSION)
    assert seen.training.packages == {"torch": "2.8.0", "accelerate": "1.0"}
    assert seen.program("torchrun").prefix == str(env)
    assert (seen.training.broken_scripts, seen.training.foreign_scripts, seen.training.recorded, seen.training.python_gone) == ((), (), None, False)
    assert "torch 2.8.0" in python_env.SUBJECT.summary(seen)


def test_it_agrees_with_the_interpreter_itself(tmp_path, look):
    env = venv(tmp_path / "env")
    (tmp_path / "bin").mkdir()
    # A link to a venv's python from elsewhere is not that venv.
    (tmp_path / "bin" / "python").symlink_to(env / "bin" / "python")
    for place in (env / "bin", tmp_path / "bin"):
        asked = subprocess.run([place / "python", "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
        assert look(place).training.prefix == asked.stdout.strip()


def test_a_venv_that_was_moved(tmp_path, look):
    old, new = venv(tmp_path / "old"), tmp_path / "new"
    script(old / "bin" / "torchrun", old / "bin" / "python")
    old.rename(new)
    seen = look(new / "bin")
    assert seen.training.recorded == str(old)
    assert [(s.path, s.interpreter, s.fault) for s in seen.training.broken_scripts] == [(f"{new}/bin/torchrun", f"{old}/bin/python", "gone")]
    assert seen.program("torchrun").fault == "gone"


def test_a_venv_that_was_copied(tmp_path, look):
    old = venv(tmp_path / "old")
    script(old / "bin" / "torchrun", old / "bin" / "python")
    subprocess.run(["cp", "-a", str(old), str(tmp_path / "new")], check=True)
    seen = look(tmp_path / "new" / "bin")
    assert [(s.path, s.prefix) for s in seen.training.foreign_scripts] == [(f"{tmp_path}/new/bin/torchrun", str(old))]


def test_a_venv_behind_a_link_is_where_it_says(tmp_path, look):
    env = venv(tmp_path / "env")
    script(env / "bin" / "torchrun", env / "bin" / "python")
    (tmp_path / "link").symlink_to(env)
    seen = look(tmp_path / "link" / "bin", VIRTUAL_ENV=tmp_path / "link")
    assert (seen.training.recorded, seen.training.foreign_scripts) == (None, ())
    assert seen.program("torchrun").prefix == seen.program("python").prefix == seen.virtual_env


@pytest.mark.parametrize("environ", [{}, {"VIRTUAL_ENV": "env"}])
def test_a_venv_whose_base_is_gone(tmp_path, look, environ):
    env = venv(tmp_path / "env")
    install(site(env), "torch-2.8.0")
    for name in ("python", "python3", f"python{VERSION}"):
        (env / "bin" / name).unlink()
        (env / "bin" / name).symlink_to("/opt/python/removed/bin/python3")
    seen = look(env / "bin", **{k: tmp_path / v for k, v in environ.items()})
    assert (seen.training.prefix, seen.training.python_gone) == (str(env), True)
    assert seen.training.python_target == "/opt/python/removed/bin/python3"
    assert seen.training.packages == {"torch": "2.8.0"}


def test_a_home_that_is_gone_is_no_fault_while_the_link_holds(tmp_path, look):
    env = venv(tmp_path / "env")
    (env / "pyvenv.cfg").write_text("home = /no/such/bin\nversion = " + sys.version.split()[0] + "\n")
    assert subprocess.run([env / "bin" / "python", "-c", "import json"], check=False).returncode == 0
    assert not look(env / "bin").training.python_gone


def test_a_base_that_is_another_release_now(tmp_path, look):
    env = venv(tmp_path / "env")
    site(env).rename(env / "kept")
    install(site(env, "3.7"), "torch-1.13.0")
    assert look(env / "bin").training.left_behind == ("3.7",)
    install(site(env), "torch-2.8.0")
    assert look(env / "bin").training.left_behind == ()


def test_launchers_of_another_environment(tmp_path, look):
    env, other = venv(tmp_path / "env"), venv(tmp_path / "other")
    script(tmp_path / "home" / ".local" / "bin" / "torchrun", other / "bin" / "python3")
    script(env / "bin" / "torchrun", env / "bin" / "python3")
    seen = look(tmp_path / "home" / ".local" / "bin", env / "bin")
    assert seen.program("torchrun").path == f"{tmp_path}/home/.local/bin/torchrun"
    assert (seen.program("torchrun").prefix, seen.program("python").prefix) == (str(other), str(env))


def test_what_the_path_passes_over(tmp_path, look):
    env = venv(tmp_path / "env")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/sh\n")  # not executable
    script(env / "bin" / "torchrun", "/usr/bin/env python")
    seen = look("relative", tmp_path / "bin", env / "bin")
    assert (seen.program("torchrun").path, seen.program("torchrun").prefix) == (f"{env}/bin/torchrun", str(env))


def test_the_users_own_packages(tmp_path, look):
    base = tmp_path / "base"
    install(site(base), "torch-2.1.0", "requests-3", "numpy-2.0")
    plain, open_ = venv(tmp_path / "plain"), venv(tmp_path / "open", "--system-site-packages")
    install(site(plain), "torch-2.8.0", "requests-2", "numpy-2.0")
    assert look(plain / "bin", PYTHONUSERBASE=base).training.shadows == ()
    # Even there a venv's own packages come before the user's.
    install(site(open_), "torch-2.8.0")
    seen = look(open_ / "bin", PYTHONUSERBASE=base)
    assert "torch" not in {s.name for s in seen.training.shadows}
    asked = subprocess.run(
        [open_ / "bin" / "python", "-c", "import sys; print(sys.path)"], capture_output=True, text=True, check=True, env={"PYTHONUSERBASE": str(base)}
    )
    order = [p for p in json.loads(asked.stdout.replace("'", '"')) if p in seen.training.places]
    assert order == list(seen.training.places)


def test_a_conda_environment_and_the_user_site(tmp_path, look):
    env, base = tmp_path / "conda", tmp_path / "home" / ".local"
    (env / "conda-meta").mkdir(parents=True)
    (env / "bin").mkdir()
    (env / "bin" / f"python{VERSION}").write_text("\x7fELF")
    (env / "bin" / f"python{VERSION}").chmod(0o755)
    (env / "bin" / "python").symlink_to(f"python{VERSION}")
    install(site(env), "torch-2.8.0", "requests-2", "numpy-2.0")
    install(site(base), "torch-2.1.0", "requests-3", "numpy-2.0")
    seen = look(env / "bin", HOME=tmp_path / "home")
    assert (seen.training.kind, seen.training.version, seen.training.packages["torch"]) == ("conda", VERSION, "2.8.0")
    assert [(s.name, s.version, s.hidden) for s in seen.training.shadows] == [("torch", "2.1.0", "2.8.0")]
    assert look(env / "bin", HOME=tmp_path / "home", PYTHONNOUSERSITE=1).training.shadows == ()
    (path,) = look(env / "bin", PYTHONPATH=f"{site(base)}:/no/such").training.shadows
    assert path.place == str(site(base))


def test_pythonhome(tmp_path, look):
    env = venv(tmp_path / "env")
    assert not look(env / "bin").python_home_wrong
    assert not look(env / "bin", PYTHONHOME=sys.base_prefix).python_home_wrong
    assert look(env / "bin", PYTHONHOME=tmp_path).python_home_wrong


def test_pyenv_hands_over(tmp_path, look):
    root = tmp_path / "pyenv"
    inside = root / "versions" / "3.12.1" / "bin"
    inside.mkdir(parents=True)
    script(inside / "python", "/bin/true")
    script(inside / "torchrun", inside / "python")
    for name in ("python", "torchrun"):
        script(root / "shims" / name, f'/bin/sh\nexec "{root}/libexec/pyenv" exec "$program" "$@"')
    script(root / "bin" / "pyenv", f'/bin/sh\n[ "$1" = which ] && echo "{inside}/$2"\nexit')
    assert look(root / "shims").program("torchrun").path == f"{inside}/torchrun"
    assert look(root / "shims").program("torchrun").shim == f"{root}/shims/torchrun"
    script(root / "bin" / "pyenv", "/bin/sh\nexit 1")
    assert look(root / "shims").program("torchrun") is None


def test_a_wrapper_is_asked(tmp_path, look):
    env = venv(tmp_path / "env")
    script(tmp_path / "bin" / "python", f'/bin/sh\nexec {env}/bin/python "$@"\n')
    assert look(tmp_path / "bin").training.prefix == str(env)
    script(tmp_path / "bin" / "python", "/bin/sh\nexit 3\n")
    assert look(tmp_path / "bin", VIRTUAL_ENV=env).unread == (f"what {tmp_path}/bin/python starts, which is a wrapper",)


DEBIAN = {
    "/usr/bin/python3.11": "\x7fELF",
    "/usr/bin/python3": "-> python3.11",
    "/usr/lib/python3.11/os.py": "",
    "/usr/lib/python3/dist-packages/requests-2.28.1.egg-info": "",
    "/usr/lib/python3/dist-packages/numpy-1.24.2.egg-info": "",
    "/usr/local/lib/python3.11/dist-packages/torch-2.8.0.dist-info/METADATA": "",
    "/home/u/.local/lib/python3.11/site-packages/requests-2.32.0.dist-info/METADATA": "",
    "/bin": "-> usr/bin",
}


def test_a_debian_system(machine):
    host = machine(DEBIAN, environ={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/u"})
    host.path("/usr/bin/python3.11").chmod(0o755)
    seen = python_env.collect(host)
    assert (seen.training.prefix, seen.training.kind, seen.chosen_by) == ("/usr", "system", "python3 on the PATH")
    assert seen.training.packages == {"torch": "2.8.0", "numpy": "1.24.2", "requests": "2.28.1"}
    # The user's newer requests is how pip --user is meant.
    assert seen.training.shadows == ()
    assert seen.training.version == "3.11"


def test_absolute_links_stay_on_the_machine_that_is_looked_at(machine):
    host = machine(
        {"/opt/py/bin/python3.12": "\x7fELF", "/env/bin/python": "-> /opt/py/bin/python3.12", "/env/pyvenv.cfg": "home = /opt/py/bin\n"},
        environ={"PATH": "/env/bin"},
    )
    host.path("/opt/py/bin/python3.12").chmod(0o755)
    seen = python_env.collect(host).training
    assert (seen.prefix, seen.base, seen.version, seen.python_gone) == ("/env", "/opt/py", "3.12", False)


def test_no_python_at_all(machine):
    with pytest.raises(NotHere):
        python_env.collect(machine({}, environ={"PATH": "/usr/bin"}))


def test_odd_files_are_survived(machine):
    files = {
        "/env/bin/python": "-> /env/bin/python",
        "/env/bin/torchrun": "#!\0\n",
        "/env/pyvenv.cfg": "\0\xff===",
        "/env/lib/python3.x/site-packages/a-b-c.dist-info": "",
        "/env/lib/python3.11/site-packages/-1.dist-info": None,
        "/env/bin/activate": "VIRTUAL_ENV=$(rm)\n",
    }
    host = machine(files, environ={"PATH": ":relative:/env/bin:/env/bin/python", "VIRTUAL_ENV": "/env", "PYTHONPATH": ":x:/env/bin/python"})
    host.path("/env/bin/torchrun").chmod(0o755)
    with contextlib.suppress(OSError, ValueError, NotHere):
        python_env.collect(host)


def test_this_machine():
    seen = snapshot.take(Host(), only=["python_env"])
    assert seen.parts["python_env"].state == "read"
    assert snapshot_file.decode(snapshot_file.encode(seen), name="it").parts["python_env"].facts == seen.parts["python_env"].facts
    assert os.path.realpath(sys.prefix) in [e.prefix for e in (seen.get(python_env.SUBJECT).training, seen.get(python_env.SUBJECT).own) if e]
