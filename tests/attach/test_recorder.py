"""The flight recorders of builds that are not at hand: a CUDA build has two, torch 2.4 one without JSON."""

import json
import pickle
from datetime import timedelta
from types import SimpleNamespace

import pytest

from unhang.attach.recorder import Recorders
from unhang.attach.torch_distributed import _timeout_s


def status(**groups):
    return {
        pg[1:]: {"last_enqueued_collective": str(e), "last_started_collective": "-1", "last_completed_collective": str(c)}
        for pg, (e, c) in groups.items()
    }


class C10d:
    def __init__(self, **recorders):
        self.recorders, self.full_reads = recorders, 0
        for kind in recorders:
            setattr(self, f"_dump_{kind}_trace_json", lambda collectives, active, kind=kind: self.json(kind, collectives))
            setattr(self, f"_dump_{kind}_trace", lambda collectives, stacks, active, kind=kind: pickle.dumps({**self.recorders[kind], "kind": kind}))

    def json(self, kind, collectives):
        self.full_reads += collectives
        return json.dumps({k: v for k, v in self.recorders[kind].items() if collectives or k != "entries"}).encode()


def distributed(**uids):
    names = {name: name[1:] for name in uids}
    return SimpleNamespace(_get_process_group_uid=lambda pg: uids[pg], _world=SimpleNamespace(pg_names=names))


def entry(pg_id, name):
    return {"pg_id": pg_id, "process_group": [name, "desc"]}


def test_nccl_groups_go_by_name_and_no_event_is_touched():
    c10d = C10d(nccl={"pg_status": status(_0=(7, 6), _1=(3, 3))}, fr={"pg_status": {}})
    # This rank is in the groups "0" and "5" only, so they are its numbers 0 and 1.
    assert Recorders(distributed(_0=0, _5=1), c10d).groups() == {"0": [7, 6], "5": [3, 3]}
    assert c10d.full_reads == 0


def test_both_backends_in_one_group():
    c10d = C10d(nccl={"pg_status": status(_0=(7, 6))}, fr={"pg_status": status(_0=(2, 1)), "entries": [entry(0, "0")]})
    assert Recorders(distributed(_0=0), c10d).groups() == {"0": [7, 6], "cpu:0": [2, 1]}


def test_a_name_is_looked_for_a_few_times_only():
    c10d = C10d(fr={"pg_status": status(_3=(2, 2))})
    recorders = Recorders(SimpleNamespace(), c10d)
    assert [recorders.groups() for _ in range(9)] == [{"#3": [2, 2]}] * 9
    assert c10d.full_reads == 3


def test_a_call_of_gloo_that_has_ended_and_was_not_counted():
    """Two threads note the ends of two calls in the other order: the counter stays one behind."""
    ended = [entry(0, "0") | {"retired": True}] * 5
    c10d = C10d(fr={"pg_status": status(_0=(5, 4)), "entries": ended})
    recorders = Recorders(SimpleNamespace(), c10d)
    assert [recorders.groups()["0"] for _ in range(20)] == [[5, 4]] * 3 + [[5, 5]] * 17
    assert c10d.full_reads == 2
    # The next call is looked up for itself, and one that is really waited in stays pending.
    c10d.recorders["fr"] = {
        "pg_status": status(_0=(6, 4)),
        "entries": [*ended, entry(0, "0") | {"retired": False}, entry(1, "1") | {"retired": True}],
    }
    assert [recorders.groups()["0"] for _ in range(20)] == [[6, 4]] * 20
    assert c10d.full_reads == 3


def test_groups_of_the_past_are_forgotten():
    c10d = C10d(fr={"pg_status": status(_0=(2, 1)), "entries": [entry(0, "0"), entry(1, "0")]})
    recorders = Recorders(SimpleNamespace(), c10d)
    assert recorders.groups() == {"0": [2, 1]}
    recorders.forget()
    assert recorders.groups() == {}
    c10d.recorders["fr"]["pg_status"] |= status(_1=(1, 1))
    assert recorders.groups() == {"0": [1, 1]}


def test_torch_without_json():
    c10d = SimpleNamespace(_dump_nccl_trace=lambda collectives, stacks, active: pickle.dumps({"pg_status": status(_0=(4, 3))}))
    assert Recorders(distributed(_0=0), c10d).groups() == {"0": [4, 3]}


def test_no_recorder_for_the_backend(tmp_path):
    recorders = Recorders(SimpleNamespace(), SimpleNamespace())
    assert recorders.groups() == {}
    with pytest.raises(RuntimeError, match="no flight recorder"):
        recorders.dump(str(tmp_path / "rank_0"))


@pytest.mark.parametrize(
    ("used", "files"),
    [(("nccl",), {"rank_0": "nccl"}), (("fr",), {"rank_0": "fr"}), (("nccl", "fr"), {"rank_0": "nccl", "cpu/rank_0": "fr"}), ((), {"rank_0": "fr"})],
)
def test_the_recorder_that_was_used_is_dumped(tmp_path, used, files):
    c10d = C10d(**{kind: {"pg_status": status(_0=(1, 1)) if kind in used else {}} for kind in ("nccl", "fr")})
    Recorders(SimpleNamespace(), c10d).dump(str(tmp_path / "rank_0"))
    found = {str(path.relative_to(tmp_path)): pickle.loads(path.read_bytes())["kind"] for path in tmp_path.rglob("*") if path.is_file()}
    assert found == files


@pytest.mark.parametrize(
    "world", [{}, {"pg_names": {"a": "0", "b": "1"}, "pg_group_ranks": {"a": {0: 0, 1: 1, 2: 2}, "b": {2: 0, 1: 1}, "gone": {0: 0}}}]
)
def test_the_members_of_the_groups_follow_the_dump(tmp_path, world):
    c10d = C10d(fr={"pg_status": status(_0=(1, 1))})
    Recorders(SimpleNamespace(_world=SimpleNamespace(**world)), c10d).dump(str(tmp_path / "rank_0"))
    with (tmp_path / "rank_0").open("rb") as file:
        assert pickle.load(file)["kind"] == "fr"
        assert json.load(file) == {"members": {"0": [0, 1, 2], "1": [1, 2]} if world else {}}


def test_the_timeout_of_the_accelerator_counts():
    def backend(device):
        return SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds={"cpu": 1800, "cuda": 600}[device.type])))

    devices = [SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")]
    module = SimpleNamespace(_get_default_group=lambda: SimpleNamespace(_device_types=devices, _get_backend=backend))
    assert _timeout_s(module, (), {}) == 600.0
    # What was asked for is not always what the group got.
    assert _timeout_s(module, ("nccl", None, timedelta(seconds=5)), {}) == 600.0
    assert _timeout_s(SimpleNamespace(), ("nccl", None, timedelta(seconds=5)), {}) == 5.0
    assert _timeout_s(SimpleNamespace(), (), {}) is None
