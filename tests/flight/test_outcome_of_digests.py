"""Every job of `test_outcome` once more, its dumps summed up on three hosts: nothing that is compared is lost on the way."""

from __future__ import annotations

import dataclasses

import pytest
from tests.flight import test_outcome
from tests.flight.test_digest import compared_of
from tests.flight.test_outcome import *  # noqa: F403

from unhang.flight import digest
from unhang.flight.dump_file import decoded
from unhang.flight.recording import recording_of


@pytest.fixture(autouse=True)
def summed_up(monkeypatch, tmp_path):
    """`recordings` gives those out of digests, and has compared them with those of the dumps."""
    plain = test_outcome.recordings
    count = iter(range(1000))

    def recordings(dumps, **more):
        whole = plain(dumps, **more)
        folder = tmp_path / str(next(count))
        found = {}
        for host in range(3):
            blocks = []
            for rank in sorted(whole)[host::3]:
                (opened,) = decoded(test_outcome.written(dumps[rank], as_json=rank in more.get("as_json", ())), "x")
                blocks.append(digest.summed(opened, where=digest.Name(rank=rank, name=f"rank_{rank}", said=True), clean=str))
            if blocks:
                path = digest.write(folder, f"node{host}", blocks, clean=str)
                read = digest.read(path)
                for place in range(len(read)):
                    dump, name = read.dump(place)
                    found[name.rank] = dataclasses.replace(recording_of(dump, rank=name.rank, source=str(path)), place=place)
        assert {r: compared_of(one) for r, one in found.items()} == {r: compared_of(one) for r, one in whole.items()}
        return {r: dataclasses.replace(found[r], source=whole[r].source) for r in whole}

    monkeypatch.setattr(test_outcome, "recordings", recordings)
