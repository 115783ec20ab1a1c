"""The pages of ``metrics.listener``: ``/metrics`` for Prometheus, and the pages for probes (``PROBES``).

Rules of this module:

* The pages are served in a separate thread (``http_server``) and never block the broker's event loop, which only copies
  numbers, once per scrape. Threads of a pool write the text of the metrics.
* If the event loop does not respond in time, all pages return status 503 and give the reason. Time during which the
  whole process is suspended (for example with its machine) does not count.
* If users are configured, the probe pages show their status to everyone but their details only to users. Everything
  else requires a login. The response to a wrong password is delayed, so that guessing takes time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from importlib import import_module
from ssl import SSLContext
from typing import Any, Final, TypeVar

from parley.broker.metrics.access import AccessRules, MetricsAccess
from parley.broker.metrics.health import Health
from parley.broker.metrics.http_messages import PLAIN_TEXT, HttpRequest, HttpResponse, Stage, error_page
from parley.broker.metrics.http_server import LARGE_ANSWERS_MAX, HttpServer
from parley.broker.metrics.registry import Metrics, Snapshot
from parley.broker.runtime.clock import Clock
from parley.protocol.security.passwords import basic_credentials

_log = logging.getLogger(__name__)

LOOP_TIMEOUT_S = 2.0
"""The time that the event loop may take to respond before it counts as stuck."""
LOOP_WAITS = 20
"""The number of parts into which a wait of ``LOOP_TIMEOUT_S`` is divided. If the whole process is suspended, only one
part elapses."""

LIVENESS = "/livez"
IN_SYNC = "/insyncz"
MAY_STOP = "/stopz"
PROBES = ("/healthz", "/readyz", LIVENESS, IN_SYNC, MAY_STOP)

NAMES_MAX = 20
"""The maximum number of partitions that a page names."""

T = TypeVar("T")


class LoopStuck(Exception):
    """Raised if the event loop does not respond within ``LOOP_TIMEOUT_S``, or is closed."""


class Exporter:
    """Serves the metrics and the health of one broker until ``close``."""

    def __init__(
        self,
        metrics: Metrics,
        health: Health,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        host: str,
        port: int,
        access: MetricsAccess | None = None,
        out_of_sync: Callable[[], Sequence[str]] = tuple,
        needed: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Open the address and serve it. With port 0, any free port is used; see ``port``.

        Raises OSError, whose message contains the address.

        ``access`` returns the access rules; None means that every client has access. ``out_of_sync`` and ``needed``
        name the partitions that a rolling restart waits for (``parley.broker.replication.rolling_restart``); they run
        in the event loop.
        """
        self._access = access
        self._waited_for = {IN_SYNC: out_of_sync, MAY_STOP: needed}
        self._metrics = metrics
        self._health = health
        self._loop = loop
        self._clock = clock
        self._threads = ThreadPoolExecutor(LARGE_ANSWERS_MAX, "metrics-text")
        try:
            self._server = HttpServer(host, port, self._answer, tls=self._tls, handshake_failed=self._refused)
        except OSError as error:
            kind = socket.gaierror if isinstance(error, socket.gaierror) else OSError
            reason = f"cannot listen on {host}:{port} for metrics.listener: {error.strerror}"
            raise kind(error.errno, reason) from error
        self.port: int = self._server.port

    def prepare(self) -> None:
        """Import prometheus_client in a thread. Call this once the broker serves clients, so that the import does not
        delay the start."""
        self._threads.submit(import_module, "parley.broker.metrics.metrics_page")

    def close(self) -> None:
        """Stop serving. May be called in the event loop's thread, because it does not wait for the loop."""
        self._server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _rules(self) -> AccessRules:
        return AccessRules() if self._access is None else self._access.current()

    def _tls(self) -> SSLContext | None:
        tls = self._rules().tls
        return None if tls is None else tls.context

    def _refused(self, address: str, reason: str, user: str = "") -> None:
        if self._access is not None:
            self._access.refused(address, reason, user=user)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        is_probe = request.path in PROBES
        is_user = await self._is_user(request, must_be=not is_probe)
        if is_probe:
            return await self._answer_probe(request.path, is_user)
        if not is_user:
            return _UNAUTHORIZED
        if request.path == "/metrics":
            request.enter(Stage.LARGE_ANSWER)
            return await self._answer_metrics(request)
        return _text(HTTPStatus.NOT_FOUND, f"Unknown path. Available: /metrics, {', '.join(PROBES)}.")

    async def _is_user(self, request: HttpRequest, *, must_be: bool) -> bool:
        """Return True if no login is required, or the client has sent a valid name and password.

        Waits before it returns False for a wrong password, so that guessing takes time. With ``must_be``, it also waits
        before it returns False for a client that has sent no password.
        """
        rules = self._rules()
        if rules.users is None:
            return True
        name, password = basic_credentials(request.authorization)
        if rules.users.verify(name, password):
            return True
        if must_be or request.authorization:
            if name:
                self._refused(request.address, "wrong user or password", name)
            request.enter(Stage.REFUSED)
            await asyncio.sleep(rules.refusal_delay_s)
            request.enter(Stage.ANSWER)
        return False

    async def _answer_metrics(self, request: HttpRequest) -> HttpResponse:
        scheduled = self._clock.monotonic()

        def snapshot() -> Snapshot:
            self._metrics.process.loop_delay_seconds = self._clock.monotonic() - scheduled
            return self._metrics.snapshot()

        try:
            found = await self._in_loop(snapshot)
            return await asyncio.get_running_loop().run_in_executor(self._threads, _metrics_page, request, found)
        except LoopStuck as stuck:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(stuck))
        except (RuntimeError, MemoryError):  # no memory, or none for a thread
            raise
        except Exception:
            _log.exception("the metrics could not be collected")
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "The metrics could not be collected: see the broker's log.")

    async def _answer_probe(self, path: str, has_facts: bool) -> HttpResponse:
        if path == LIVENESS:
            return await self._answer_liveness()
        if path in self._waited_for:
            return await self._answer_waited_for(path, has_facts)
        return await self._answer_health(has_facts)

    async def _answer_liveness(self) -> HttpResponse:
        """Report only whether the event loop responds: a stuck loop is the only problem that requires a restart of the
        broker."""
        try:
            await self._in_loop(lambda: None)
        except LoopStuck as stuck:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(stuck))
        return _text(HTTPStatus.OK, "The event loop responds.")

    async def _answer_health(self, has_facts: bool) -> HttpResponse:
        fine, body = self._health.report()
        try:
            await self._in_loop(lambda: None)
        except LoopStuck as stuck:
            fine = False
            body.setdefault("problems", {})["event loop"] = str(stuck)
        return _json(fine, body if has_facts else {"status": body["status"]})

    async def _answer_waited_for(self, path: str, has_facts: bool) -> HttpResponse:
        """Report whether a rolling restart may continue after this broker (``/insyncz``), or may stop it
        (``/stopz``)."""
        serves, health = self._health.report()
        body: dict[str, Any] = {"status": health["status"]}
        fine = serves or path == MAY_STOP
        try:
            names = await self._in_loop(self._waited_for[path])
        except LoopStuck as stuck:
            fine, body["problem"] = False, str(stuck)
        else:
            fine = fine and not names
            body["partitions"] = len(names)
            if has_facts and names:
                body["first"] = list(names[:NAMES_MAX])
        return _json(fine, body)

    async def _in_loop(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` in the broker's event loop and return its result. Raises LoopStuck."""
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller has stopped waiting
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        waiting = asyncio.wrap_future(answer)
        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError as closed:
            raise LoopStuck("the event loop is closed") from closed
        try:
            for _ in range(LOOP_WAITS):
                if (await asyncio.wait([waiting], timeout=LOOP_TIMEOUT_S / LOOP_WAITS))[0]:
                    return waiting.result()
        finally:
            waiting.cancel()
        raise LoopStuck(f"the event loop has not responded within {LOOP_TIMEOUT_S:g} s")


def _metrics_page(request: HttpRequest, snapshot: Snapshot) -> HttpResponse:
    from parley.broker.metrics.metrics_page import metrics_page  # imports prometheus_client, which is slow

    return metrics_page(request, snapshot)


def _text(status: HTTPStatus, line: str) -> HttpResponse:
    return replace(error_page(status), body=f"{line}\n".encode())


def _json(fine: bool, body: dict[str, Any]) -> HttpResponse:
    status = "200 OK" if fine else "503 Service Unavailable"
    return HttpResponse(status, json.dumps(body).encode() + b"\n", [("Content-Type", "application/json")])


_UNAUTHORIZED: Final = HttpResponse(
    "401 Unauthorized",
    b"A user of the metrics listener must log in.\n",
    (*PLAIN_TEXT, ("WWW-Authenticate", 'Basic realm="parley"')),
)
