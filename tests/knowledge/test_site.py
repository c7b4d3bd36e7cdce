"""Causes that a site adds: drafted, checked and used by the commands, as in a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from unhang.knowledge import site

LINE = "ERROR lustre: OST 12 evicted client 10.2.3.4 at /scratch/run7 (code 0x1f)"
OTHER = "[rank1]: ERROR lustre: OST 7 evicted client 10.9.9.9:80 at /scratch/x/y (code 0x2)"
TITLE = 'title = "The file server evicted a client"\n'
SIGNATURE = '[[signature]]\nneedle = "evicted client"\n'


def unhang(*words, folder, **environ):
    environ = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "UNHANG_LANG": "en", **environ}
    words = [sys.executable, "-m", "unhang", *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environ)


def written(folder, text, name="evicted.toml"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_draft_is_checked_completed_and_used(tmp_path):
    draft = unhang("explain", "--new", LINE, "--new", OTHER, folder=tmp_path).stdout
    path = written(tmp_path, draft, "config/unhang/causes/evicted.toml")
    # Both lines are of one kind.
    assert draft.count("[[signature]]") == 1
    unfinished = unhang("explain", "--check", path, folder=tmp_path)
    assert unfinished.returncode == 1 and unfinished.stdout.count("still to be written") == unfinished.stdout.count("\n") == 3
    written(tmp_path, draft.replace("TODO: ", ""), path.relative_to(tmp_path))
    finished = unhang("explain", "--check", path, folder=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "") and "site/evicted" in finished.stdout
    log = written(tmp_path, f"step 1\n{OTHER}\n", "train.log")
    primary = json.loads(unhang("why", "--json", log, folder=tmp_path).stdout)["primary"]
    assert (primary["cause"], primary["ranks"]) == ("site/evicted", [1])
    assert "10.9.9.9:80" in primary["says"] and "what to do" in primary["remedies"][0]["says"]
    explained = unhang("explain", "site/evicted", "--lang", "zh", folder=tmp_path)
    assert explained.returncode == 0 and LINE in explained.stdout


@pytest.mark.parametrize("way", ["--causes", "UNHANG_CAUSES", "unhang.toml"])
def test_where_they_are_looked_for(tmp_path, way):
    written(tmp_path, TITLE + SIGNATURE, "mine/evicted.toml")
    written(tmp_path, TITLE + SIGNATURE + "wrong = 1\n", "mine/other.toml")
    log = written(tmp_path, LINE, "train.log")
    words, environ = (("--causes", "mine"), {}) if way == "--causes" else ((), {"UNHANG_CAUSES": "mine"} if way == "UNHANG_CAUSES" else {})
    if way == "unhang.toml":
        written(tmp_path, '[knowledge]\ncauses = ["mine"]\n', "unhang.toml")
    done = unhang("why", log, *words, folder=tmp_path, **environ)
    assert "site/evicted" in done.stdout and "The file server evicted a client" in done.stdout
    assert "other.toml:4: unknown key 'wrong'" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TITLE + SIGNATURE + 'says = "{n} times"\n', "evicted.toml:4: no pattern captures {n}"),
        (TITLE + SIGNATURE + 'remedies = ["none"]\n', "evicted.toml:4: unknown remedy 'none'"),
        (TITLE + SIGNATURE + "pattern = '('\n", "evicted.toml:4: missing )"),
        (TITLE + SIGNATURE + "pattern = '(?:evicted|\\w|\\d)+!'\n", "ever more time"),
        (TITLE + '[[signature]]\nneedle = "OST"\n', "so short"),
        (TITLE + '[[signature]]\nneedle = "master_addr"\n', "healthy training"),
        (TITLE, "nothing would find it"),
        ('title = "t"\nsignature = 1\n', "evicted.toml:2: 'signature' is no list of tables"),
        (TITLE + "patterns = 1\n", "'patterns' is no table"),
        (TITLE + 'role = "other"\n' + SIGNATURE, "evicted.toml:2: role = 'other': root, symptom"),
        (TITLE + SIGNATURE + 'standing = "sure"\n', "evicted.toml:4: standing = 'sure'"),
        (TITLE + SIGNATURE + 'says = "{"\n', "not the form of a cause"),
        (TITLE + SIGNATURE + "pattern = '%(a)s'\n[patterns]\na = '%(a)s'\n", "not the form of a cause"),
        (TITLE + '[[signature]]\nneedle = ""\n', "the needle is empty"),
        (TITLE + SIGNATURE + "[variable.x]\n", "evicted.toml:4: unknown key 'variable'"),
        (TITLE + SIGNATURE + "pattern = '(?P<n>.) evicted'\n[remedy.ask]\nsays = 'ask'\ncommand = 'show {n}'\n", "{n} in it is no value"),
        ("title = \n", "evicted.toml: Invalid value"),
        (SIGNATURE, "'title' is missing"),
        (TITLE + SIGNATURE + "[tests]\nhits = ['evicted']\nnear-misses = []\n", "no signature finds 'evicted'"),
        (TITLE + SIGNATURE + "[tests]\nhits = []\nnear-misses = ['evicted client']\n", "a signature finds 'evicted client'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, says):
    problems = list(site.check(written(tmp_path, text)))
    assert any(says in problem for problem in problems), problems


def test_what_others_can_write_is_not_read(tmp_path):
    path = written(tmp_path, TITLE + SIGNATURE)
    path.chmod(0o666)
    (problem,) = site.check(path)
    assert "anyone can write" in problem
