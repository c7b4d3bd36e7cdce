"""Whichever way a verdict leaves, and whatever a run has recorded: no credential in it."""

from __future__ import annotations

import sys
import tarfile

import pytest

from unhang.cli import app
from unhang.records.rundir import RunDir

# One for each thing that may stand between a name and its value.
SHAPES = (
    "--wandb_key={}",
    "--db_password {}",
    "Namespace(db_pass='{}')",
    "  wandb_api_key ................... {}",
    "| api_key   | {} |",
    "('password', '{}')",
    "fs.s3a.secret.key={}",
    "DB_PW={}",
    "https://hub.example/api?key={}",
    "https://chat.example/hooks/{}",
    "pass\x1b[1mword={}",
    "pass\u200bword={}",
    "<password>{}</password>",
    "password:\n  {}",
    "password: |\n  {}",
    r"{{\"password\": \"{}\"}}",
)
PLANTED = [shape.format(f"Kq3vPlanted{n}") for n, shape in enumerate(SHAPES)]
RAISED = """[rank{n}]: Traceback (most recent call last):
[rank{n}]:   File "/job/train.py", line {line}, in main
[rank{n}]:     start("{shape}")
[rank{n}]: RuntimeError: cannot open {shape}
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    log = "\n".join(PLANTED) + "\n" + "".join(RAISED.format(n=n, line=n + 10, shape=shape) for n, shape in enumerate(PLANTED))
    (tmp_path / "train.log").write_text(log, encoding="utf-8")
    run = RunDir.create(tmp_path / "run")
    environ = {"WANDB_KEY": "Kq3vPlanted90", "DB_PW": "Kq3vPlanted91", "HF_TOKEN": "Kq3vPlanted92"}
    argv = ["train.py", "--db-pass", "Kq3vPlanted93", *PLANTED]
    run.write(run.run, {"schema": "unhang/run/1", "command": argv, "environ": environ, "cwd": "/password=Kq3vPlanted94"})
    (run.path / "logs" / "0").mkdir(parents=True)
    (run.path / "logs" / "0" / "rank0.err").write_text(log, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("source", ["train.log", "run"])
@pytest.mark.parametrize("way", [[], ["--all"], ["--json"], ["--markdown"], ["--lang", "zh"], ["--report", "out.html"], ["--bundle", "out.tar.gz"]])
def test_no_way_out_shows_one(planted, monkeypatch, capsys, source, way):
    monkeypatch.setattr(sys, "argv", ["unhang", "why", source, *way])
    with pytest.raises(SystemExit):
        app._answer()
    said = capsys.readouterr()
    shown = {"said": said.out + said.err}
    if (page := planted / "out.html").exists():
        shown["page"] = page.read_text(encoding="utf-8")
    if (archive := planted / "out.tar.gz").exists():
        with tarfile.open(archive) as tar:
            shown |= {m.name: tar.extractfile(m).read().decode() for m in tar.getmembers()}
    assert len(shown) > ("--report" in way or "--bundle" in way) and said.out
    assert [(name, line) for name, text in shown.items() for line in text.splitlines() if "Kq3v" in line] == []
