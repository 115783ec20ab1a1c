"""Transitions between states. A table lists the legal transitions. Any other transition is a defect of this program."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalStep(AssertionError):
    """An event or a next state that is illegal in the current state: a defect of this program, not a fault
    of a client."""

    def __init__(self, what: str, state: Enum, event: Enum) -> None:
        super().__init__(f"{what}: {event.name} is not legal in the state {state.name}")


def step(what: str, table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """Return the next state. Raises IllegalStep if the table does not contain the transition."""
    following = table.get((state, event))
    if following is None:
        raise IllegalStep(what, state, event)
    return following
