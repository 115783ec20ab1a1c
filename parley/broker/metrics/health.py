"""Whether a broker can do its work, as a probe wants to know it.

States follow one another: starting, ready, stopping. Problems come and go: a fatal one means that the broker cannot
serve though it runs (the store is out of reach), any other that it serves less than it should (a disk has failed).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class State(Enum):
    """Where a broker is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Trouble(NamedTuple):
    """One thing that is wrong."""

    text: str
    fatal: bool


class Health:
    """Told by the parts of a broker, asked by ``/healthz``. Every method may be called in any thread."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self._detail = ""
        self._troubles: dict[str, Trouble] = {}

    @property
    def step(self) -> str:
        """The step that the start has come to; nothing before it and after it."""
        return self._detail

    def starting(self, detail: str) -> None:
        """The start has come to this step."""
        self._detail = detail

    def ready(self) -> None:
        """Clients are served from now on."""
        self.state, self._detail = State.READY, ""

    def stopping(self) -> None:
        """Clients are asked to go elsewhere from now on."""
        self.state, self._detail = State.STOPPING, ""

    def trouble(self, what: str, text: str, *, fatal: bool = False) -> None:
        """Something is wrong with ``what``, until ``solved`` says otherwise."""
        self._troubles[what] = Trouble(text, fatal)

    def solved(self, what: str) -> None:
        """Nothing is wrong with ``what`` any more."""
        self._troubles.pop(what, None)

    def problem(self, what: str) -> str:
        """What is wrong with ``what``; empty if nothing is."""
        trouble = self._troubles.get(what)
        return "" if trouble is None else trouble.text

    def report(self) -> tuple[bool, dict[str, Any]]:
        """Whether to send clients here, and what to tell a person about it."""
        troubles = dict(self._troubles)
        fatal = any(trouble.fatal for trouble in troubles.values())
        body: dict[str, Any] = {"status": self.state.value}
        if self._detail:
            body["detail"] = self._detail
        if troubles:
            body["problems"] = {what: trouble.text for what, trouble in troubles.items()}
        return self.state is State.READY and not fatal, body
