from dataclasses import replace

from unhang.diagnosis import differences, doctor
from unhang.facts import container, shm, snapshot
from unhang.facts.host import Space
from unhang.knowledge import catalogue
from unhang.text import same

SHM_EXHAUSTED = catalogue.load()["shm-exhausted"]

MIB = 1024 * 1024


def taken(machine, total=64 * MIB, free=64 * MIB, only=("shm", "container", "memory"), **files):
    host = machine({"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm": None, "/proc/sysvipc/shm": "key\n"} | files)
    for name in ("shmmni", "shmmax", "shmall"):
        host.lay(f"/proc/sys/kernel/{name}", "4096\n")
    host.spaces["/dev/shm"] = Space(total_bytes=total, free_bytes=free, inodes=0, free_inodes=0)
    return snapshot.take(host, only=only)


def test_areas_say_what_stands_against_them_and_what_was_not_seen(machine):
    seen = doctor.examine(taken(machine))
    states = {a.id: a.state for a in seen.areas}
    assert states["shm"] == "found"
    # /proc/meminfo is not there: not healthy, not known.
    assert states["memory"] == "unknown"
    assert [(f.cause, f.severity) for f in seen.findings if f.severity != "note"] == [("shm-exhausted", "error")]


def test_what_a_subject_could_not_see_of_itself_makes_it_unknown(machine, monkeypatch):
    without = doctor.examine(taken(machine, total=8192 * MIB, free=8000 * MIB))
    # What is only worth knowing stands against nothing, and is not passed over either.
    assert {a.id: a.state for a in without.areas}["shm"] == "noted" and [f.severity for f in without.findings if f.area == "shm"] == ["note"]
    host = machine({"/proc/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n", "/dev/shm": None})

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host, "space", refuse)
    (area,) = doctor.examine(snapshot.take(host, only=["shm"])).areas
    assert (area.state, area.unread) == ("unknown", ("/dev/shm: Permission denied",))


def test_a_cause_that_fails_is_told_and_hides_nothing(machine, monkeypatch):
    def broken(seen):
        raise KeyError("x")

    other = catalogue.get("limits")
    monkeypatch.setattr(
        catalogue,
        "load",
        lambda: {"limits": other.__class__(**vars(other) | {"on_host": broken}), "shm-exhausted": SHM_EXHAUSTED},
    )
    seen = doctor.examine(taken(machine))
    assert [f.cause for f in seen.findings] == ["shm-exhausted"]
    assert [(n.what, n.why) for n in seen.not_examined] == [("limits", "our own failure: KeyError: 'x'")]
    # Nobody knows of which area it would have spoken.
    room = taken(machine, total=8192 * MIB, free=8000 * MIB, only=("shm",))
    assert [a.state for a in doctor.examine(room).areas] == ["unknown"]
    monkeypatch.setattr(catalogue, "load", lambda: {"shm-exhausted": SHM_EXHAUSTED})
    assert [a.state for a in doctor.examine(room).areas] == ["ok"]


def test_of_one_area_few_judges_are_asked(machine, monkeypatch):
    asked, answer = [], catalogue.answer
    monkeypatch.setattr(catalogue, "answer", lambda id, *given: (asked.append(id), answer(id, *given))[1])
    assert {f.area for f in doctor.examine(taken(machine), only=("shm",)).findings} == {"shm"}
    assert asked == ["shm-exhausted", "shm-permission", "shm-stale-or-missing"]
    assert len(doctor.examine(taken(machine)).areas) == 3 and "container-capability" in asked and "gpu-oom" not in asked


def test_differences(machine):
    here = ("shm", "container")
    a, b = taken(machine, only=here), taken(machine, total=128 * MIB, free=3, only=here)
    assert [(d.area, d.path, d.a, d.b) for d in differences.between(a, b)] == [
        ("shm", "space.total_bytes", str(64 * MIB), str(128 * MIB)),
    ]
    assert differences.between(a, a) == ()


def test_of_differences_without_end_the_first_are_told(machine):
    a = taken(machine, only=("container",))
    facts = a.parts["container"].facts
    more = replace(facts, devices=tuple(container.Device(path=f"/dev/x{n}", usable=True) for n in range(20_000)))
    b = replace(a, parts={"container": replace(a.parts["container"], facts=more)})
    found = differences.between(a, b)
    assert len(found) == 1_001 and found[-1].path.startswith("and ")


def test_a_segment_more_is_one_difference_not_two(machine):
    a = taken(machine, only=("shm",), **{"/dev/shm/nccl-b": "x"})
    b = taken(machine, only=("shm",), **{"/dev/shm/nccl-a": "x", "/dev/shm/nccl-b": "x"})
    paths = {d.path.partition("]")[0] for d in differences.between(a, b)}
    assert paths == {"segments[nccl-a"}


def test_an_area_that_only_one_of_them_has(machine):
    a, b = taken(machine), taken(machine, only=("container",))
    assert {(d.area, d.b) for d in differences.between(a, b) if d.path == ""} == {("shm", "not looked at"), ("memory", "not looked at")}
    assert shm.SUBJECT.id in a.parts


def test_credentials_are_shown_nowhere(machine, monkeypatch):
    secret = "hf_abcdefghijklmnopqrstuvwxyz123456"

    def found(seen):
        yield SHM_EXHAUSTED.host_finding(area="shm", severity="note", says=same(f"token={secret}"), leads_to=same(f"HF_TOKEN={secret} in use"))

    cause = SHM_EXHAUSTED.__class__(**vars(SHM_EXHAUSTED) | {"on_host": found})
    monkeypatch.setattr(catalogue, "load", lambda: {cause.id: cause})
    seen = doctor.examine(taken(machine))
    assert len(seen.findings) == 1
    assert secret not in repr(seen)
