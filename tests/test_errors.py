"""Errors are carried between processes and threads: pickled, copied, with what they know."""

from __future__ import annotations

import copy
import inspect
import pickle

from tests.tables import for_each

from unhang import errors

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
# What each can be made with, beside its message.
KNOWS = {
    "CollectiveTimeout": {"missing": (2,), "closed": {"number": 7}},
    "LatePeer": {"missing": (2,), "closed": {"number": 7}},
    "PeerFailed": {"ranks": (1,), "missing": (2,), "closed": {"number": 7}},
    "CollectiveMismatch": {"calls": {0: "barrier", 1: "all_reduce"}, "odd": (1,), "missing": (2,), "closed": {"number": 7}},
    "OutOfSync": {"ranks": (0, 1)},
    **{kind.__name__: {"cause": "a", "hint": "b"} for kind in ALL if issubclass(kind, errors.UnhangError)},
}


@for_each("carried", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copied", "deep", "pickled"])
@for_each("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_arrives_with_what_it_knows(kind, carried):
    known = KNOWS.get(kind.__name__, {})
    found = carried(kind("what failed", **known))
    assert type(found) is kind and str(found) == "what failed"
    assert {name: getattr(found, name) for name in known} == known


def test_a_call_goes_on_only_where_it_was_made():
    assert not pickle.loads(pickle.dumps(errors.CollectiveTimeout("late", resume=lambda **_: 1))).resumable
