"""``parley.light_dataclasses.dataclass`` makes the same classes as the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any

import pytest

from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Light:
    """A frozen class with all kinds of fields."""

    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, compare=False)
    secret: str = field(default="hidden", repr=False)
    derived: int = field(default=7, init=False)
    late: int = field(default=1, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Heavy:
    """The same, made by the standard library."""

    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, compare=False)
    secret: str = field(default="hidden", repr=False)
    derived: int = field(default=7, init=False)
    late: int = field(default=1, kw_only=True)


@dataclass(slots=True)
class Changing:
    """A class whose fields may change, with a field that ``__post_init__`` sets."""

    a: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.a


@dataclass(frozen=True, slots=True)
class Inherits(Light):
    """A subclass with one more field."""

    more: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class ByIdentity:
    a: int


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class WithOwnMethods:
    a: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "own"


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, "x", [2]), {"late": 9}), ((), {"a": 3, "secret": "s"})],
    ids=["defaults", "positions", "names"],
)
def test_objects_equal_hash_and_show_as_those_of_the_standard_library(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    light, heavy = Light(*values, **named), Heavy(*values, **named)
    assert dataclasses.asdict(light) == dataclasses.asdict(heavy)
    assert repr(light) == repr(heavy).replace("Heavy", "Light")
    assert light == Light(*values, **named)
    assert hash(light) == hash(heavy)
    other: object = heavy
    assert light != other
    assert dataclasses.replace(light, a=5) == Light(5, light.b, light.c, light.secret, late=light.late)


@pytest.mark.parametrize("wrong", [{}, {"a": 1, "unknown": 2}, {"a": 1, "derived": 2}])
def test_a_wrong_call_is_refused_even_if_it_is_the_first(wrong: dict[str, Any]) -> None:
    @dataclass(frozen=True, slots=True)
    class New:
        a: int
        derived: int = field(default=7, init=False)

    with pytest.raises(TypeError, match=r"New\.__init__\(\)"):
        New(**wrong)


def test_each_object_has_its_own_default() -> None:
    first, second = Light(1), Light(1)
    first.c.append(1)
    assert second.c == []


def test_a_frozen_object_refuses_changes_and_another_does_not() -> None:
    light, changing = Light(1), Changing(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        light.a = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del light.a
    changing.a = 5
    assert (changing.a, changing.twice) == (5, 2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)


def test_a_subclass_has_the_fields_of_both() -> None:
    made = Inherits(1, more=(1, 2))
    assert [each.name for each in dataclasses.fields(made)] == ["a", "b", "c", "secret", "derived", "late", "more"]
    assert (made.b, made.more) == ("b", (1, 2))
    assert made != Light(1)
    assert hash(Light(1)) != hash(made)


def test_other_forms() -> None:
    assert ByIdentity(1) != ByIdentity(1)
    assert len({ByIdentity(1), ByIdentity(1)}) == 2
    assert Empty() == Empty()
    assert (repr(Empty()), hash(Empty())) == ("Empty()", hash(()))
    assert WithOwnMethods(1) == WithOwnMethods(2)
    assert (hash(WithOwnMethods(1)), repr(WithOwnMethods(1))) == (3, "own")
    match Light(1):
        case Light(a, b):
            assert (a, b) == (1, "b")


@pytest.mark.parametrize("value", [Light(1, c=[1]), Changing(3), Inherits(1, more=(2,)), Empty()])
def test_objects_are_copied_and_pickled(value: object) -> None:
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_slots_hold_the_values() -> None:
    assert not hasattr(Light(1), "__dict__")
    assert set(Changing.__slots__) == {"a", "twice"}


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient_threads")
def test_threads_that_use_a_class_first_at_the_same_time_see_the_same_fields() -> None:
    threads = 4
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(50):

            @dataclass(frozen=True, slots=True)
            class New:
                a: int = 1
                b: list[int] = field(default_factory=list)
                c: dict[int, int] = field(default_factory=dict, repr=False)

            together = threading.Barrier(threads)

            def use(cls: type[New], together: threading.Barrier) -> str:
                together.wait()
                return repr(cls())

            for used in [executor.submit(use, New, together) for _ in range(threads)]:
                assert used.result().endswith("New(a=1, b=[])")
            assert not New().c
