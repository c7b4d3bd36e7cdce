"""What is remembered, by whom, and what becomes of a file that is damaged."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unhang import encoding
from unhang.model import Outcome
from unhang.remedies import outcome_store
from unhang.remedies.outcome_store import Key, Memory, job

KEY = Key(place="a", versions="torch 2.13")
FOUND = Outcome(chosen={"interface": "lo"}, rungs=(), confirmed=True, environment={"GLOO_SOCKET_IFNAME": "lo"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / outcome_store.FILE


def test_what_was_found_is_found_again(path):
    assert Memory(path).keep(KEY, FOUND, command="train.py", now_s=5.0)
    again = Memory(path).recall(KEY)
    assert again.outcome.chosen == {"interface": "lo"} and again.outcome.remembered and again.found_s == 5.0
    assert Memory(path).recall(Key(place="b", versions="torch 2.13")).outcome is None


@pytest.mark.parametrize("chosen", [None, {}])
def test_what_changes_nothing_is_not_kept(path, chosen):
    assert not Memory(path).keep(KEY, Outcome(chosen=chosen, rungs=(), confirmed=True), command="")
    assert not Memory(path).keep(KEY, Outcome(chosen={"shm": False}, rungs=(), confirmed=False), command="")


def test_it_expires_with_the_versions(path):
    Memory(path).keep(KEY, FOUND, command="")
    newer = Key(place="a", versions="torch 2.14")
    found = Memory(path).recall(newer)
    assert found.outcome is None and "torch 2.13" in found.expired and "torch 2.14" in found.expired
    assert Memory(path).recall(KEY).outcome is None


def test_a_row_that_is_none_of_ours_is_forgotten(path):
    """Of a table that somebody has made otherwise: ours takes no NULL, and a time."""
    path.parent.mkdir()
    for found_s, outcome in ((5.0, None), ("yesterday", b"{}"), (1e300, FOUND), (None, FOUND)):
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE outcomes (place TEXT PRIMARY KEY, versions TEXT, command TEXT, found_s, outcome)")
            data = encoding.encode(outcome) if outcome is FOUND else outcome
            db.execute("INSERT INTO outcomes VALUES (?, ?, '', ?, ?)", (KEY.place, KEY.versions, found_s, data))
        found = Memory(path).recall(KEY)
        assert found.outcome is None and found.expired, (found_s, outcome)
        assert not Memory(path).recall(KEY).expired


def test_it_can_be_forgotten(path):
    Memory(path).keep(KEY, FOUND, command="")
    assert Memory(path).forget(KEY) and not Memory(path).forget(KEY)
    assert Memory(path).recall(KEY).outcome is None


@pytest.mark.parametrize("damage", [b"this is no database, and long enough to be taken for one" * 40, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_set_aside_and_told(path, damage):
    path.parent.mkdir()
    path.write_bytes(damage)
    told = []
    mind = Memory(path, trouble=told.append)
    assert mind.recall(KEY).outcome is None
    assert "damaged" in told[0] and len(told) == 1
    (aside,) = path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == damage
    assert mind.keep(KEY, FOUND, command="") and mind.recall(KEY).outcome is not None


@contextlib.contextmanager
def locked(path):
    other = sqlite3.connect(path, isolation_level=None)
    with contextlib.closing(other):
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def test_a_file_that_is_locked_is_left_alone_and_nothing_false_is_said_of_it(path, monkeypatch):
    monkeypatch.setattr(outcome_store, "_BUSY_S", 0.05)
    Memory(path).keep(KEY, FOUND, command="")
    told = []
    mind = Memory(path, trouble=told.append)
    with locked(path):
        assert mind.recall(KEY).outcome is None
        assert mind.keep(KEY, FOUND, command="") is False
        assert mind.forget(KEY) is None
    assert [t.partition(":")[0] for t in told] == [
        "what earlier runs found is not used",
        "what was found is not remembered",
        "what earlier runs found is not forgotten",
    ]
    assert all("locked" in t for t in told) and not list(path.parent.glob("*.damaged-*"))
    assert Memory(path).recall(KEY).outcome is not None


def test_the_file_of_a_later_version_is_left_alone(path):
    Memory(path).keep(KEY, FOUND, command="")
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE outcomes ADD COLUMN later TEXT NOT NULL DEFAULT ''")
    told = []
    assert not Memory(path, trouble=told.append).keep(KEY, FOUND, command="")
    assert told[0].startswith("what was found is not remembered") and not list(path.parent.glob("*.damaged-*"))


def test_a_damaged_file_that_cannot_be_set_aside_is_told(path, monkeypatch):
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1000)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    told = []
    assert Memory(path, trouble=told.append).forget(KEY) is None
    assert "not forgotten" in told[0] and "cannot be set aside: Permission denied" in told[0]


def test_without_a_place_nothing_is_remembered():
    assert Memory(None).forget(KEY) is False
    assert not Memory(None).keep(KEY, FOUND, command="") and Memory(None).recall(KEY).outcome is None


def test_what_another_version_wrote_is_no_error(path):
    Memory(path).keep(KEY, FOUND, command="")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE outcomes SET outcome = ?", (b'{"other": 1}',))
    db.close()
    assert "another version" in Memory(path).recall(KEY).expired


WRITER = """
import sys
from pathlib import Path
from unhang.model import Outcome
from unhang.remedies.outcome_store import Key
from unhang.remedies.outcome_store import Memory
troubles = []
for n in range(20):
    key = Key(place=f"{sys.argv[2]}-{n}", versions="v")
    assert Memory(Path(sys.argv[1]), trouble=troubles.append).keep(key, Outcome(chosen={"p2p": False}, rungs=(), confirmed=True), command="")
assert not troubles, troubles
"""


def test_several_may_write_at_once(path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)]) for n in range(3)]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM outcomes").fetchone() == (60,)
    db.close()


@pytest.mark.parametrize(
    "other",
    [
        ["train.py", "--lr", "1e-4", "--output_dir", "runs/8"],
        ["train.py", "--lr", "1e-4", "--output-dir=elsewhere"],
        ["train.py", "--lr", "1e-4", "--run-name", "b", "--logging_dir", "/x"],
    ],
)
def test_where_output_goes_makes_no_other_job(other):
    here = Path("/project")
    expected = job(["train.py", "--lr", "1e-4"], here)
    assert [w for w in job(other, here) if "logging" not in w and w != "/x"] == expected


def test_another_script_is_another_job():
    assert job(["train.py"], Path("/a")) != job(["train.py"], Path("/b"))
    assert job(["train.py", "--lr", "1"], Path("/a")) != job(["train.py", "--lr", "2"], Path("/a"))


def test_what_it_trains_on_is_no_output():
    here = Path("/a")
    assert job(["t.py", "--model_name", "a"], here) != job(["t.py", "--model_name", "b"], here)
    assert job(["t.py", "--no-save", "data"], here) != job(["t.py", "--no-save", "more"], here)


def test_another_configuration_by_the_same_name_is_another_job(tmp_path):
    (tmp_path / "train.yaml").write_text("a: 1")
    first, option = job(["train.yaml"], tmp_path), job(["--config_file=train.yaml"], tmp_path)
    (tmp_path / "train.yaml").write_text("a: 2")
    assert job(["train.yaml"], tmp_path) != first and job(["--config_file=train.yaml"], tmp_path) != option


@pytest.mark.parametrize(("kind", "counts"), [("bare", True), ("slurm", True), ("docker", False)])
def test_the_name_of_a_host_counts_and_that_of_a_container_does_not(monkeypatch, kind, counts):
    box = SimpleNamespace(kind=kind, capabilities=())
    seen = SimpleNamespace(get=lambda subject: box if subject is outcome_store.container.SUBJECT else None)
    found = []
    for name in ("node1", "node2"):
        monkeypatch.setattr(outcome_store.platform, "node", lambda name=name: name)
        found.append(outcome_store.machine(seen))
    assert (found[0] != found[1]) is counts
