"""Errors as they reach another process: launchers and pools hand them on pickled."""

from __future__ import annotations

import pickle

import pytest

from unhang.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, EvaluationFailed, LatePeer, OutOfSync, StoreLost

ERRORS = [
    CollectiveError("a"),
    CollectiveTimeout("b", missing=(1,), closed={"number": 3}),
    LatePeer("c", missing=(0, 2)),
    CollectiveMismatch("d", calls={0: "x", 1: "y"}, odd=(1,)),
    OutOfSync("e", ranks=(2,)),
    EvaluationFailed("f"),
    StoreLost("g"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_all_that_an_error_says_arrives(error):
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert (str(there), there.args) == (str(error), error.args)
    assert {k: v for k, v in vars(there).items() if k != "_resume"} == {k: v for k, v in vars(error).items() if k != "_resume"}


def test_what_a_call_would_go_on_with_stays_where_it_is():
    error = CollectiveTimeout("b", resume=lambda deadline: 1)
    assert error.resumable and error.resume() == 1
    there = pickle.loads(pickle.dumps(error))
    assert not there.resumable
    with pytest.raises(CollectiveError, match="cannot go on"):
        there.resume()
