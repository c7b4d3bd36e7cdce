"""A frozen dataclass of ours is one of the standard library's in all that can be seen of it."""

import copy
import dataclasses
import pickle
import re
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from functools import cached_property

import msgspec
import pytest

from unhang import frozen


@frozen.dataclass(frozen=True, kw_only=True)
class Place:
    """Where it stands."""

    file: str
    line: int | None = None
    marks: dict[str, int] = field(default_factory=dict)
    seen: list[int] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def shown(self):
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standard:
    file: str
    line: int | None = None
    marks: dict[str, int] = field(default_factory=dict)
    seen: list[int] | None = field(default=None, repr=False, compare=False)


@frozen.dataclass(frozen=True, kw_only=True)
class Named(Place):
    name: str

    def __post_init__(self):
        object.__setattr__(self, "name", self.name.upper())


@frozen.dataclass(frozen=True, kw_only=True)
class One:
    value: float


@frozen.dataclass(frozen=True, kw_only=True)
class Nothing:
    pass


GIVEN = [{"file": "a.py"}, {"file": "a.py", "line": 3}, {"file": "b", "marks": {"x": 1}}, {"file": "a.py", "seen": [1]}]


def test_it_is_a_dataclass_with_the_same_fields():
    assert is_dataclass(Place) and is_dataclass(Place(file="a"))
    ours, theirs = fields(Place), fields(Standard)
    assert [(f.name, f.type, f.default, f.default_factory) for f in ours] == [(f.name, f.type, f.default, f.default_factory) for f in theirs]
    assert Place.__doc__ == "Where it stands." and Place.line is None and not hasattr(Place, "marks")
    assert Place.__init__.__qualname__ == "Place.__init__"


@pytest.mark.parametrize("given", GIVEN)
def test_values_are_taken_and_shown_alike(given):
    ours, theirs = Place(**given), Standard(**given)
    assert vars(ours) == vars(theirs) and dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Standard", "Place")
    assert Place(file="a").marks is not Place(file="a").marks


@pytest.mark.parametrize("a", GIVEN)
@pytest.mark.parametrize("b", GIVEN)
def test_equal_where_what_is_compared_is(a, b):
    assert (Place(**a) == Place(**b)) is (Standard(**a) == Standard(**b))
    assert Place(**a) != Standard(**a) and Place(**a) != Named(**a, name="n")


def test_hashed_by_what_is_compared():
    made = {Place(file="a", line=n % 2, marks=()) for n in range(4)} | {Place(file="a", line=1, marks=(), seen=[1])}
    assert len(made) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Place(file="a"))
    assert len({Nothing(), Nothing()}) == 1
    # By identity first, as tuples are.
    nan = float("nan")
    assert One(value=nan) == One(value=nan) and One(value=nan) != One(value=float("nan")) and len({One(value=nan), One(value=nan)}) == 1


@pytest.mark.parametrize("wrong", [{}, {"file": "a", "other": 1}])
def test_what_does_not_fit_is_refused_as_it_is_there(wrong):
    said = []
    for cls in (Place, Standard):
        with pytest.raises(TypeError) as e:
            cls(**wrong)
        said.append(re.sub(r"^\w+\.", "", str(e.value)))
    assert said[0] == said[1]
    with pytest.raises(TypeError, match="positional"):
        Place("a")


def test_nothing_can_be_assigned_or_deleted():
    place = Place(file="a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'file'"):
        place.file = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'file'"):
        del place.file
    assert place.file == "a" and place.shown == "a:None" and place == Place(file="a")


def test_derived_from_one_of_its_kind():
    named = Named(file="a", name="n")
    assert named.name == "N" and replace(named, line=2) == Named(file="a", line=2, name="n")
    assert [f.name for f in fields(Named)] == ["file", "line", "marks", "seen", "name"]


def test_copied_replaced_pickled_and_decoded():
    place = Place(file="a", line=1, seen=[1])
    for again in (copy.copy(place), copy.deepcopy(place), pickle.loads(pickle.dumps(place)), replace(place, line=1)):
        assert again == place and again.seen == [1] and type(again) is Place
    assert replace(place, line=2).line == 2
    read = msgspec.json.decode(msgspec.json.encode(Place(file="a", marks={"x": 1})), type=Place)
    assert read == Place(file="a", marks={"x": 1})
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"file": 1}, Place)


def test_other_kinds_are_the_standard_librarys():
    @frozen.dataclass
    class Open:
        a: int

    @frozen.dataclass(frozen=True, kw_only=True, slots=True)
    class Slotted:
        a: int = 1

    opened = Open(1)
    opened.a = 2
    assert opened == Open(2) and not hasattr(Slotted(), "__dict__") and Slotted(a=2) != Slotted()
