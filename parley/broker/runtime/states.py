"""Steps between states. A table has the legal steps; any other step is a defect of this program."""

from __future__ import annotations

from enum import Enum


class IllegalStep(AssertionError):
    """An event, or a next state, that the state does not allow: a defect of this program, not a fault of a client."""

    def __init__(self, what: str, state: Enum, event: Enum) -> None:
        super().__init__(f"{what}: {event.name} is not legal in the state {state.name}")
