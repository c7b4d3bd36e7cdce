"""Digests: the same answer as the dumps themselves, a few kilobytes a rank, and no trust in what a file says."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records.match import jobs
from tests.records.match.test_outcome import injected

from unhang.errors import RecordError, UnhangError
from unhang.records.flight import digest
from unhang.records.flight.recordings import flight, record_all, sum_up
from unhang.records.match.outcome import judge


def write(folder, dumps, *, as_json=()):
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, raw in dumps.items():
        path = folder / f"rank_{rank}"
        if rank in as_json:
            path.write_text(json.dumps(raw))
        else:
            path.write_bytes(pickle.dumps(raw, protocol=2))
        paths.append(path)
    return paths


def compared_of(recording):
    """All but where it stands."""
    places = ("source", "second", "place", "second_place", "bytes", "is_second")
    return [getattr(recording, name) for name in recording.__dataclass_fields__ if name not in places]
