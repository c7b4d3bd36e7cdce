"""`dataclass` as the standard library has it, put together in a fifth of the time where it is frozen and keyword-only, as ours are.

The standard library's compiles six functions for each class, which takes a millisecond, and a command imports a hundred classes. Here `__init__`
alone is compiled; the others are closures over the names of the fields, and as quick to call. `fields`, `replace`, `is_dataclass`, pickling and
msgspec see a dataclass, for that is what it is; only one of the same kind can be derived from it.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass

T = TypeVar("T")

_OURS = {"frozen": True, "kw_only": True}
# As `object.__init__` sees it: a field without a value of its own.
_ABSENT: Any = object()


def _dataclass(cls: type[Any] | None = None, /, **how: bool) -> Any:
    if cls is None and how == _OURS:
        return _put_together
    return dataclasses.dataclass(cls, **how)


if not TYPE_CHECKING:
    dataclass = _dataclass


def _put_together(cls: type[T]) -> type[T]:
    # Where there is none, the standard library writes the signature into it, and takes its time for that.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
    fields = dataclasses.fields(made)
    members = {
        "__init__": _init(made, fields),
        "__repr__": _repr(tuple(f.name for f in fields if f.repr)),
        **_compared(tuple(f.name for f in fields if f.compare)),
    }
    for name, function in members.items():
        if name not in made.__dict__:
            function.__qualname__ = f"{made.__qualname__}.{name}"
            setattr(made, name, function)
    made.__setattr__, made.__delattr__ = _refuse_to_assign, _refuse_to_delete
    return cls


def _init(cls: type[Any], fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Fields are set by `object.__setattr__`: writing into `__dict__` would make every later look at them slower."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_ABSENT": _ABSENT}
    defaults: dict[str, Any] = {}
    body = []
    for f in fields:
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            known[f"_new_{f.name}"], defaults[f.name] = f.default_factory, _ABSENT
            value = f"_new_{f.name}() if {f.name} is _ABSENT else {f.name}"
        elif f.default is not dataclasses.MISSING:
            defaults[f.name] = f.default
        body.append(f"_set(self, '{f.name}', {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    taken = ", ".join(["self", *(["*"] if fields else []), *(f.name for f in fields)])
    exec(f"def __init__({taken}):\n  " + "\n  ".join(body or ["pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__kwdefaults__ = defaults
    init.__annotations__ = {f.name: f.type for f in fields} | {"return": None}
    return init


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _compared(names: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    # Of one name, or none, attrgetter makes no tuple.
    key: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)

    def __eq__(self: Any, other: object) -> bool:
        return key(self) == key(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(key(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _refuse_to_assign(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
