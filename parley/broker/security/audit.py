"""The audit log: which operations clients were allowed or denied, from which address, and why.

A denied operation is logged at the level INFO, an allowed one at DEBUG, each with the rule that decided. A probe (which
of these topics may the client see?) does not attempt an operation, so it is not logged.

No client can fill the disk, or suppress the lines about another client: at most ``LINES_PER_S`` lines per second are
written, at most ``LINES_OF_CLIENT_PER_S`` of them about one principal at one address, and long names are truncated. The
next line contains the number of omitted lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.broker.security.authorizer import AuthorizationDecision
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession

_log = logging.getLogger(__name__)

LINES_PER_S = 100
"""The sustained rate of log lines, per second: enough to reveal an attack, and little work for a disk. Unused lines
accumulate for up to ``BURST_S`` seconds."""
BURST_S = 10
LINES_OF_CLIENT_PER_S = 10
CLIENTS_MAX = 1000
"""The number of clients whose lines are counted individually. If there are more, counting starts over."""
TEXT_MAX = 256
"""The maximum length, in characters, of a name in a line."""


class _Allowance:
    """The number of lines that may currently be written. Unused lines accumulate for up to ``BURST_S``."""

    __slots__ = ("_lines", "_per_s", "_refilled_s")

    def __init__(self, per_s: int, now_s: float) -> None:
        self._per_s = per_s
        self._lines = float(per_s * BURST_S)
        self._refilled_s = now_s

    def has_line(self, now_s: float) -> bool:
        """Return True if a line may be written."""
        self._lines = min(self._lines + (now_s - self._refilled_s) * self._per_s, float(self._per_s * BURST_S))
        self._refilled_s = now_s
        return self._lines >= 1

    def take(self) -> None:
        """Count one written line."""
        self._lines -= 1


class AuditLog:
    """Writes the audit log of one broker."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._all = _Allowance(LINES_PER_S, monotonic())
        self._clients: dict[tuple[str, str], _Allowance] = {}
        self._not_logged = 0
        self.allowed = 0
        self.denied = 0

    def record(
        self,
        client: ClientSession,
        api: str,
        operation: Operation,
        type: ResourceType,
        name: str,
        decision: AuthorizationDecision,
    ) -> None:
        """Count a decision about an operation that a client attempted, and log it if the log level and the limits on
        lines allow that. ``api`` is the name of the request's API."""
        if decision.is_allowed:
            self.allowed += 1
            level, event = logging.DEBUG, "allowed"
        else:
            self.denied += 1
            level, event = logging.INFO, "denied"
        if not _log.isEnabledFor(level) or not self._take_line(client):
            return
        facts: dict[str, object] = {
            "principal": _cut(str(client.principal)),
            "host": client.host,
            "listener": client.listener,
            "operation": operation.name,
            "resource": f"{type.name}:{_cut(name)}",
            "api": api,
            "reason": _cut(decision.reason),
        }
        if self._not_logged:
            facts["not_logged"], self._not_logged = self._not_logged, 0
        _log.log(level, event, extra=facts)

    def _take_line(self, client: ClientSession) -> bool:
        now_s = self._monotonic()
        key = (client.principal.name, client.host)
        of_client = self._clients.get(key)
        if of_client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.clear()
            of_client = self._clients[key] = _Allowance(LINES_OF_CLIENT_PER_S, now_s)
        if not of_client.has_line(now_s) or not self._all.has_line(now_s):
            self._not_logged += 1
            return False
        of_client.take()
        self._all.take()
        return True


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"
