"""A test over a table: `@for_each` runs it for every case as `pytest.mark.parametrize` would, in one item, and reports all cases that fail.

    @for_each(("line", "rank"), [("[rank3]: boom", 3), ("boom", None)])
    def test_the_rank_of_a_line(line, rank): ...

Each case gets a `tmp_path`, a `monkeypatch`, a `capsys` and a `caplog` as if it were alone. All other fixtures are shared by the cases of a test.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from unhang.report.language import chosen

_PARAM = type(pytest.param())
_LONGEST = 60


def for_each(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Callable[[Any], object] | Iterable[object] | None = None
) -> Callable[..., Any]:
    """`names`, `cases` and `ids` as parametrize takes them; `pytest.param` may give an id, but no marks. Raises ValueError for an empty table."""
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    is_single = isinstance(names, str) and len(split) == 1
    given = list(ids) if ids is not None and not callable(ids) else None
    rows = []
    for number, case in enumerate(cases):
        own = None
        if isinstance(case, _PARAM):
            if case.marks:
                raise ValueError(f"case {number} has marks: that takes pytest.mark.parametrize")
            values, own = case.values, case.id
        else:
            values = (case,) if is_single else tuple(case)
        row = dict(zip(split, values, strict=True))
        own = own if own is not None or given is None else given[number]
        words = [_word(name, value, number, ids if callable(ids) else None) for name, value in row.items()]
        rows.append((f"{number}: {'-'.join(words) if own is None else own}", row))
    if not rows:
        raise ValueError("a table without cases proves nothing")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            failed, skipped = [], []
            for number, (id, row) in enumerate(rows):
                chosen(None)
                with contextlib.ExitStack() as stack:
                    fresh = {name: _fresh(name, fixture, number, stack) for name, fixture in fixtures.items()}
                    try:
                        test(*args, **fresh, **row)
                    except pytest.skip.Exception as e:
                        skipped.append(f"{id}: {e}")
                    except (Exception, pytest.fail.Exception) as e:
                        failed.append(f"case {id}\n{''.join(traceback.format_exception(type(e), e, e.__traceback__ and e.__traceback__.tb_next))}")
            if failed:
                pytest.fail("\n".join((f"{len(failed)} of {len(rows)} cases failed", *failed)), pytrace=False)
            if len(skipped) == len(rows):
                pytest.skip(skipped[0])

        parameters = [p for p in signature.parameters.values() if p.name not in split]
        if len(parameters) + len(split) != len(signature.parameters):
            raise ValueError(f"{test.__name__} takes no {', '.join(n for n in split if n not in signature.parameters)}")
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _fresh(name: str, fixture: Any, number: int, stack: contextlib.ExitStack) -> Any:
    if name == "tmp_path":
        fixture = fixture / str(number)
        fixture.mkdir()
    elif name == "monkeypatch":
        fixture = stack.enter_context(pytest.MonkeyPatch.context())
    elif name == "capsys":
        fixture.readouterr()
    elif name == "caplog":
        fixture.clear()
    return fixture


def _word(name: str, value: object, number: int, ids: Callable[[Any], object] | None) -> str:
    said = ids(value) if ids is not None else None
    if said is None:
        named = getattr(value, "__name__", None)
        said = value if value is None or isinstance(value, (str, int, float, bytes)) else named or f"{name}{number}"
    text = str(said) if not isinstance(said, (str, bytes)) or said is not value else repr(said)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
