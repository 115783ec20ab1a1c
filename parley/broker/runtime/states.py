"""Steps between states. A table maps (state, event) to the next state; a step that it lacks is a defect."""

from __future__ import annotations

from enum import Enum


class IllegalStep(AssertionError):
    """An event that the state does not allow: a defect of this program, not a fault of a client."""

    def __init__(self, what: str, state: Enum, event: Enum) -> None:
        super().__init__(f"{what}: {event.name} is not legal in the state {state.name}")
