import threading

import pytest

from unhang.errors import UnhangError
from unhang.facts import snapshot, snapshot_file
from unhang.facts.host import Host, NotHere, Subject


@pytest.fixture
def with_subjects(monkeypatch):
    def only(*subjects):
        monkeypatch.setattr(snapshot, "subjects", lambda: {s.id: s for s in subjects})

    return only


def subject(id, collect, **more):
    return Subject(id=id, title=id, facts=int, collect=collect, summary=str, **more)


def test_what_a_collector_raises_is_told_and_hides_nothing(machine, with_subjects):
    def none(host):
        raise NotHere("no such thing")

    def refused(host):
        raise PermissionError(13, "Permission denied", "/proc/1/maps")

    def broken(host):
        raise ValueError("x")

    over = threading.Event()
    with_subjects(
        subject("one", lambda host: 1),
        subject("none", none),
        subject("refused", refused),
        subject("broken", broken),
        subject("slow", lambda host: over.wait(), timeout_s=0.05),
    )
    taken = snapshot.take(machine())
    over.set()
    assert taken.host == "node7"
    assert {id: (p.state, p.why, p.facts) for id, p in taken.parts.items()} == {
        "one": ("read", "", 1),
        "none": ("absent", "no such thing", None),
        "refused": ("unknown", "[Errno 13] Permission denied: '/proc/1/maps'", None),
        "broken": ("unknown", "ValueError: x", None),
        "slow": ("unknown", "it did not answer within 0.05 s", None),
    }


def test_it_is_read_back_as_it_was():
    taken = snapshot.take(Host())
    assert snapshot_file.decode(snapshot_file.encode(taken), name="x") == taken
    assert {p.state for p in taken.parts.values()} <= {"read", "absent", "unknown"}


def test_a_part_of_another_shape_is_unknown_and_the_rest_is_read(with_subjects):
    with_subjects(subject("one", lambda host: 1), subject("two", lambda host: 2))
    parts = b'{"one":{"state":"read","facts":"x"},"two":{"state":"read","facts":2},"new":{"state":"read"}}'
    text = b'{"schema":"unhang/host/9","host":"h","taken":"t","parts":' + parts + b"}"
    seen = snapshot_file.decode(text, name="x")
    assert seen.parts["one"].state == "unknown"
    assert "another version" in seen.parts["one"].why
    assert seen.parts["two"].facts == 2
    assert "new" not in seen.parts


@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema":"unhang/verdict/1","host":"h","taken":"t","parts":{}}', b"\xff"])
def test_what_is_no_snapshot_is_refused(text):
    with pytest.raises(UnhangError, match="no snapshot of a host"):
        snapshot_file.decode(text, name="x")


def test_an_unknown_area_names_the_right_ones():
    with pytest.raises(UnhangError, match="no area named 'gpus'"):
        snapshot.chosen(["gpus"])
