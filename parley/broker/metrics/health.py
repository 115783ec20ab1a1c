"""The health of a broker process, as ``/healthz`` reports it: the state of the process, and its problems.

The states, and the states from which each can be entered::

    STARTING                        the initial state; each step of startup is named
    READY     <- STARTING           the broker serves clients
    STOPPING  <- STARTING, READY    it is stopping, or its start has failed

Problems appear and disappear in any state. A fatal problem means that the broker runs but cannot serve (it is no longer
a member of the cluster). Any other problem means that its service is reduced (a disk has failed, the coordination store
does not respond). A broker that is READY with such a problem is reported as ``degraded``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from parley.broker.runtime.states import IllegalStep


class State(Enum):
    """The states of a broker process, by the names that ``/healthz`` shows."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


DEGRADED: Final = "degraded"
"""The status of a broker that serves clients but has a problem."""

ENTERED_FROM: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.STARTING}),
    State.READY: frozenset({State.STARTING}),
    State.STOPPING: frozenset({State.STARTING, State.READY}),
}


class Trouble(NamedTuple):
    """One problem. A fatal problem prevents the broker from serving."""

    text: str
    fatal: bool


class Health:
    """The state and the problems of one broker. The broker's parts report them. Every method may be called from any
    thread."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self._detail = ""
        self._troubles: dict[str, Trouble] = {}
        self._checks: dict[str, Callable[[], str]] = {}

    @property
    def step(self) -> str:
        """The current startup step; empty before and after startup."""
        return self._detail

    def starting(self, detail: str) -> None:
        """Record that startup has reached this step. Raises IllegalStep if startup has ended."""
        self._enter(State.STARTING, detail)

    def ready(self) -> None:
        """Record that the broker now serves clients. Raises IllegalStep unless the broker is starting."""
        self._enter(State.READY)

    def stopping(self) -> None:
        """Record that the broker is stopping: a probe should direct clients to other brokers. Raises IllegalStep if the
        broker is already stopping."""
        self._enter(State.STOPPING)

    def _enter(self, state: State, detail: str = "") -> None:
        """Change the state. Raises IllegalStep if the table does not allow the transition."""
        if self.state not in ENTERED_FROM[state]:
            raise IllegalStep("broker health", self.state, state)
        self.state, self._detail = state, detail

    def trouble(self, what: str, text: str, *, fatal: bool = False) -> None:
        """Report a problem with ``what``, for example a resource. It replaces an earlier problem with ``what``, and
        remains until ``solved`` is called. A ``fatal`` problem means that the broker cannot serve."""
        self._troubles[what] = Trouble(text, fatal)

    def solved(self, what: str) -> None:
        """Remove the problem with ``what``, if there is one."""
        self._troubles.pop(what, None)

    def check(self, what: str, describe: Callable[[], str]) -> None:
        """Call ``describe()`` for each report. It must return the text of a non-fatal problem with ``what``, or an
        empty string if there is none. ``report`` can call it in any thread."""
        self._checks[what] = describe

    def problem(self, what: str) -> str:
        """Return the text of the problem with ``what``, or an empty string if there is none."""
        trouble = self._troubles.get(what)
        return "" if trouble is None else trouble.text

    def report(self) -> tuple[bool, dict[str, Any]]:
        """Return whether clients should use this broker, and the body of ``/healthz``: the status, the startup step and
        the problems."""
        found = {what: Trouble(describe(), False) for what, describe in self._checks.items()}
        troubles = {what: trouble for what, trouble in found.items() if trouble.text} | dict(self._troubles)
        fatal = any(trouble.fatal for trouble in troubles.values())
        is_degraded = troubles and self.state is State.READY
        body: dict[str, Any] = {"status": DEGRADED if is_degraded else self.state.value}
        if self._detail:
            body["detail"] = self._detail
        if troubles:
            body["problems"] = {what: trouble.text for what, trouble in troubles.items()}
        return self.state is State.READY and not fatal, body
