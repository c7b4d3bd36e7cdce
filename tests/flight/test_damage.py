"""Whatever has happened to a dump: what is left is used, or it is refused in words, and no answer is worse than none."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from tests.flight import jobs
from tests.flight.jobs import parse
from tests.tables import for_each

from unhang.errors import RecordError
from unhang.flight.dump_file import decoded
from unhang.flight.recording import recording_of
from unhang.flight.wait_graph import judge

FORMS = {
    "protocol 2": lambda raw: pickle.dumps(raw, protocol=2),
    "protocol 4": lambda raw: pickle.dumps(raw, protocol=4),
    "JSON": lambda raw: json.dumps(raw).encode(),
}


@for_each("form", FORMS)
@for_each("seed", range(60))
def test_bytes_that_are_others(form, seed):
    rng = random.Random(seed)
    dumps = jobs.run(jobs.Plan(world=3, steps=3))
    found = {}
    for rank, raw in dumps.items():
        data = bytearray(FORMS[form](raw))
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for read in (lambda d: parse(d), lambda d, r=rank: [found.__setitem__(r, recording_of(o, rank=r, source="x")) for o in decoded(d, "x")]):
            try:
                read(bytes(data))
            except RecordError as e:
                assert str(e)
    assert judge(found).kind


def test_a_dump_that_is_cut_off_never_makes_its_rank_the_one_that_never_came():
    dumps = jobs.run(jobs.Plan(world=3, steps=3))
    for raw in dumps.values():
        raw["entries"].append(jobs.entry(999, ("0", "default_pg"), 10, "all_reduce", 4, 20, "started", t=10**9))
    data = pickle.dumps(dumps[1], protocol=2)
    for cut in range(0, len(data), 97):
        found = {r: recording_of(o, rank=r, source="x") for r in (0, 2) for o in decoded(pickle.dumps(dumps[r]), "x")}
        try:
            for o in decoded(data[:cut], "x"):
                found[1] = recording_of(o, rank=1, source="x")
        except RecordError:
            pass
        outcome = judge(found)
        assert outcome.kind == "cannot-tell" and outcome.unseen == (1,)


NESTED = 50_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}(X\x0e\0\0\0profiling_nameK\x01" + b"X\x05\0\0\0ranks}(" * NESTED + b"X\x07\0\0\0entries]" + b"u" * NESTED + b"u.",
        b'{"ranks":' * NESTED + b"[]" + b"}" * NESTED,
        b'{"entries":[{"profiling_name":"x","state":"' + b"[" * NESTED,
    ],
)
def test_what_is_nested_deep_is_refused(data):
    with pytest.raises(RecordError):
        decoded(data, "x")


def test_members_that_are_nested_deep_are_lost_alone():
    data = pickle.dumps(jobs.run(jobs.Plan(world=2, steps=2))[0], protocol=2)
    (opened,) = decoded(data + b'{"members":' + b"[" * NESTED, "x")
    assert opened.raw["entries"] and "members" in opened.cut


@pytest.mark.parametrize("data", [b'{"entries":[' + b"{}," * 300_000 + b"{}]}", b"\x80\x02}X\x07\0\0\0entries](" + b"}" * 300_000 + b"es."])
def test_a_file_of_empty_containers_is_refused_before_it_is_read(data):
    with pytest.raises(RecordError, match="more than its size can hold"):
        decoded(data, "x")


@pytest.mark.parametrize("form", FORMS)
def test_calls_with_hundreds_of_tensors_are_not(form):
    many = jobs.entry(0, ("0", "default_pg"), 1, "allreduce_coalesced", 4, 20, "completed", t=1)
    many |= {name: [[n, 3] for n in range(400)] for name in ("input_sizes", "output_sizes")} | {
        name: ["Float"] * 400 for name in ("input_dtypes", "output_dtypes")
    }
    entries = [json.loads(json.dumps(many | {"record_id": n, "collective_seq_id": n + 1})) for n in range(600)]
    (opened,) = decoded(FORMS[form](jobs.dump(entries)), "x")
    assert len(opened.raw["entries"]) == 600
