"""The hook stands in front of whatever sitecustomize there is, and leaves processes alone that are none of its business."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unhang.attach as attach
from unhang.attach import protocol, start

HOOK = str(Path(attach.__file__).parent / "hook")
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
SHOW = """
import sys, json, os
print(json.dumps({
    "ours": any(name.startswith("_unhang_attach.") for name in sys.modules),
    "json": "_unhang_attach.protocol" in sys.modules,
    "path": sys.path, "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None), "pythonpath": os.environ["PYTHONPATH"],
}))
"""


def show(listener, **popen):
    import json

    code, out, err = listener.finish(listener.python(SHOW, **popen))
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_process_that_is_no_rank_pays_for_the_finder_only(listener):
    shown = show(listener)
    assert shown["ours"] and not shown["json"]
    assert HOOK not in shown["path"]
    assert shown["pythonpath"] == HOOK
    assert listener.peers == []


@pytest.mark.parametrize("off", [{protocol.ENV_SWITCH: "0"}, {protocol.ENV_SOCKET: None}])
def test_switched_off(listener, off):
    shown = show(listener, env=listener.env(**RANK, **off))
    assert not shown["ours"]
    assert HOOK not in shown["path"]
    assert listener.peers == []


@pytest.mark.parametrize("off", [{}, {protocol.ENV_SWITCH: "0"}])
def test_the_next_sitecustomize_is_loaded_as_if_it_were_alone(listener, off):
    theirs = listener.directory / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.stdout.write('theirs as ' + __name__ + '\\n'); value = 5\n")
    path = os.pathsep.join((HOOK, str(theirs)))
    code, out, err = listener.finish(
        listener.python("import sitecustomize; print(sitecustomize.value, sitecustomize.__spec__.origin)", env=listener.env(PYTHONPATH=path, **off))
    )
    assert (code, err) == (0, "")
    assert out == f"theirs as sitecustomize\n5 {theirs / 'sitecustomize.py'}\n"


def test_errors_of_the_next_one_are_reported_as_python_does(listener):
    theirs = listener.directory / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import no_such_module\n")
    alone = listener.finish(listener.python("print(1)", env=listener.env(PYTHONPATH=str(theirs))))
    behind = listener.finish(listener.python("print(1)", env=listener.env(PYTHONPATH=os.pathsep.join((HOOK, str(theirs))), **RANK)))
    assert behind == alone
    assert "no_such_module" in behind[2]
    assert listener.peer(rank=1)


def test_a_hook_without_its_package_is_silent(listener):
    lonely = listener.directory / "attach" / "hook"
    shutil.copytree(HOOK, lonely)
    code, out, err = listener.finish(listener.python("print(1)", env=listener.env(PYTHONPATH=str(lonely), **RANK)))
    assert (code, out, err) == (0, "1\n", "")


def test_no_supervisor_there(listener):
    code, out, err = listener.finish(listener.python("print(1)", env=listener.env(UNHANG_SOCKET="/no/such/socket", **RANK)))
    assert (code, out, err) == (0, "1\n", "")


def installed(name):
    """An interpreter that runs: on the PATH, or one of pyenv's."""
    found = [shutil.which(name), *map(str, Path("~/.pyenv/versions").expanduser().glob(f"*/bin/{name}"))]
    return next((path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0), None)


@pytest.mark.parametrize("name", ["python2.7", "python3.8", "python3.10", "python3.12", "python3.13", "python3.14"])
def test_other_pythons(listener, name):
    other = installed(name)
    if other is None:
        pytest.skip(f"{name} is not installed")
    theirs = listener.directory / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.stdout.write('theirs\\n')\n")
    env = listener.env(PYTHONPATH=os.pathsep.join((HOOK, str(theirs))), PYTHONDONTWRITEBYTECODE="1", **RANK)
    process = listener.run([other, "-c", "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"], env=env)
    assert listener.finish(process) == (0, f"theirs\n{name[6:]}", "")
    if name not in ("python2.7", "python3.8"):
        listener.await_message(listener.peer(rank=1), "leaving")


def test_the_name_repeated_in_start():
    assert start.RANK_PID == protocol.ENV_RANK_PID


def test_import_does_no_work():
    code = "import sys, unhang.attach as a, unhang.attach.protocol; print('threading' in sys.modules, len(sys.meta_path))"
    out = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; " + code], capture_output=True, text=True)
    assert out.stdout.split()[0] == "False", out
