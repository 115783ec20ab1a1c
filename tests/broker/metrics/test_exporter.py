"""``/metrics`` and ``/healthz`` over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from parley.broker.metrics import exporter as exporter_module
from parley.broker.metrics import http_server
from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.catalogue.clients import RequestMetrics
from parley.broker.metrics.exporter import NAMES_MAX, Exporter
from parley.broker.metrics.health import Health
from parley.broker.metrics.http_messages import Stage
from parley.broker.metrics.http_server import (
    CONNECTIONS_PER_ADDRESS_MAX,
    LARGE_ANSWERS_MAX,
    REFUSED_MAX,
    HttpConnection,
    HttpServer,
    to_be_cut,
)
from parley.broker.metrics.registry import Metrics
from parley.broker.runtime.clock import SYSTEM_CLOCK
from tests.broker.metrics.conftest import PATIENCE_S
from tests.broker.network.harness import eventually

T = TypeVar("T")


class Served(NamedTuple):
    """An exporter with its metrics and health, and the partitions that a rolling restart waits for."""

    metrics: Metrics
    health: Health
    exporter: Exporter
    loop: asyncio.AbstractEventLoop
    out_of_sync: list[str]
    needed: list[str]

    @property
    def server(self) -> HttpServer:
        return self.exporter._server

    async def in_server(self, call: Callable[[], T]) -> T:
        """Call a function in the server's event loop."""

        async def called() -> T:
            return call()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self.server._loop))

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        return await asyncio.to_thread(_get, self.exporter.port, path, method)


def _get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    metrics, health, loop = Metrics(), Health(), asyncio.get_running_loop()
    out_of_sync, needed = list[str](), list[str]()
    exporter = Exporter(
        metrics, health, loop=loop, clock=SYSTEM_CLOCK, host="127.0.0.1", port=0,
        out_of_sync=lambda: out_of_sync, needed=lambda: needed,
    )  # fmt: skip
    yield Served(metrics, health, exporter, loop, out_of_sync, needed)
    exporter.close()


async def test_every_metric_is_there(served: Served) -> None:
    status, text = await served.get("/metrics")
    assert status == 200
    for instruments in CATALOGUE:
        for instrument in instruments.INSTRUMENTS.values():
            assert f"# TYPE {instrument.exported_name} {instrument.kind}\n" in text
    assert "python_gc_collections_total" in text
    assert "process_resident_memory_bytes" in text


async def test_numbers_arrive(served: Served) -> None:
    served.metrics.topic('a"b').bytes_in += 7
    route = RequestMetrics(requests=2)
    for microseconds in (10, 100, 10**9):
        route.total_time.observe(microseconds)
    served.metrics.watch(RequestMetrics, lambda: [(("Produce",), route)])

    _, text = await served.get("/metrics")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["parley_topic_in_bytes_total", (("topic", 'a"b'),)] == 7
    api = ("api", "Produce")
    assert samples["parley_requests_total", (api,)] == 2
    name = "parley_request_duration_seconds"
    assert samples[f"{name}_count", (api,)] == 3
    assert samples[f"{name}_sum", (api,)] == pytest.approx(1000.00011)
    assert samples[f"{name}_bucket", (api, ("le", "6.4e-05"))] == 1
    assert samples[f"{name}_bucket", (api, ("le", "0.000128"))] == 2
    assert samples[f"{name}_bucket", (api, ("le", "67.108864"))] == 2
    assert samples[f"{name}_bucket", (api, ("le", "+Inf"))] == 3
    assert samples["parley_event_loop_delay_seconds", ()] > 0


async def test_some_metrics_can_be_asked_for_by_name(served: Served) -> None:
    _, text = await served.get("/metrics?name[]=parley_start_time_seconds")
    assert [line for line in text.splitlines() if not line.startswith("#")] == ["parley_start_time_seconds 0.0"]


async def test_health_is_a_status_and_json(served: Served) -> None:
    assert await served.get("/healthz") == (503, '{"status": "starting"}\n')
    served.health.ready()
    served.health.trouble("directory /a", "I/O error")
    status, body = await served.get("/healthz")
    assert (status, json.loads(body)) == (200, {"status": "degraded", "problems": {"directory /a": "I/O error"}})


async def test_a_rolling_restart_waits_until_replicas_are_in_sync(served: Served) -> None:
    assert [(await served.get(page))[0] for page in ("/insyncz", "/stopz")] == [503, 200], "a start may be ended"
    served.health.ready()
    assert await served.get("/insyncz") == (200, '{"status": "ready", "partitions": 0}\n')
    served.out_of_sync.append("orders-1")
    status, body = await served.get("/insyncz")
    assert (status, json.loads(body)) == (503, {"status": "ready", "partitions": 1, "first": ["orders-1"]})
    assert [(await served.get(page))[0] for page in ("/stopz", "/readyz")] == [200, 200]
    served.out_of_sync.clear()
    served.needed.extend(f"orders-{number}" for number in range(100))
    status, body = await served.get("/stopz")
    assert (status, json.loads(body)["partitions"], len(json.loads(body)["first"])) == (503, 100, NAMES_MAX)
    assert (await served.get("/insyncz"))[0] == 200


async def test_a_broker_that_is_not_ready_is_alive(served: Served) -> None:
    assert [(await served.get(page))[0] for page in ("/livez", "/readyz", "/healthz")] == [200, 503, 503]
    served.health.ready()
    assert [(await served.get(page))[0] for page in ("/livez", "/readyz", "/healthz")] == [200, 200, 200]


async def test_other_pages_are_not_there(served: Served) -> None:
    assert (await served.get("/"))[0] == 404
    assert (await served.get("/metrics", "POST"))[0] == 405


async def test_head_is_get_without_a_body(served: Served) -> None:
    for path, status in (("/metrics", 200), ("/livez", 200), ("/nowhere", 404)):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.exporter.port)
        writer.write(f"HEAD {path} HTTP/1.1\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
        assert response.startswith(f"HTTP/1.1 {status} ".encode())
        assert response.endswith(b"\r\n\r\n"), "there is no body"


async def test_a_stuck_loop_is_reported(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "LOOP_TIMEOUT_S", 0.05)
    served.health.ready()
    answers: list[tuple[int, str]] = []
    port = served.exporter.port
    pages = ("/healthz", "/metrics", "/livez")
    asking = threading.Thread(target=lambda: answers.extend(_get(port, page) for page in pages))
    asking.start()
    asking.join()  # the loop is stuck here, in its own thread
    (health_status, body), (metrics_status, text), (liveness, _) = answers
    assert (health_status, metrics_status, liveness) == (503, 503, 503)
    assert json.loads(body)["problems"] == {"event loop": "the event loop has not responded within 0.05 s"}
    assert "has not responded" in text


async def test_a_process_that_stood_still_has_no_stuck_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP and SIGCONT: the time of the thread is over before the loop could run."""
    waits: list[float] = []

    async def first_one_passes_at_once(futures: list[asyncio.Future[Any]], timeout: float) -> Any:
        waits.append(timeout)
        return (set(), set(futures)) if len(waits) == 1 else await wait(futures, timeout=timeout)

    wait = asyncio.wait
    monkeypatch.setattr(asyncio, "wait", first_one_passes_at_once)
    served.health.ready()
    assert (await served.get("/healthz"))[0] == 200
    assert len(waits) > 1


async def test_a_failing_source_costs_its_own_numbers_alone(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    class Halting(RequestMetrics):
        @property
        def failures(self) -> int:
            raise RuntimeError("planted")

        @failures.setter
        def failures(self, value: int) -> None:
            pass

    def broken() -> Iterator[tuple[tuple[str, ...], object]]:
        yield ("Fetch",), Halting(requests=3)
        raise KeyError("x")

    served.metrics.topic("t").bytes_in += 7
    served.metrics.watch(RequestMetrics, broken)
    for _ in range(3):
        status, text = await served.get("/metrics")
        assert status == 200
        assert 'parley_topic_in_bytes_total{topic="t"} 7.0' in text
        assert 'parley_requests_total{api="Fetch"} 3.0' in text
        assert 'parley_request_failures_total{api="Fetch"}' not in text
    assert caplog.messages == ["a metric cannot be read and is left out"] * 2


@pytest.mark.slow
async def test_slow_readers_are_cut_off_for_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        served.metrics.topic(f"{number:0200}").bytes_in += 1  # more than the sockets hold
    address = ("127.0.0.1", served.exporter.port)

    def ask_and_read_nothing() -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address)
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        sock.recv(1)
        return sock

    slow = [await asyncio.to_thread(ask_and_read_nothing) for _ in range(LARGE_ANSWERS_MAX)]
    served.health.ready()
    for _ in range(3):
        assert (await served.get("/healthz"))[0] == 200
    for sock in slow:
        sock.close()


async def test_a_request_without_memory_for_its_thread_ends_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> Future[Any]:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(served.exporter._threads, "submit", no_thread)
        for _ in range(LARGE_ANSWERS_MAX + 1):
            with pytest.raises((ConnectionError, HTTPException)):
                await served.get("/metrics")
    assert (await served.get("/metrics"))[0] == 200


async def test_a_response_has_a_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        served.metrics.topic(f"{number:0200}").bytes_in += 1  # more than the sockets hold
    monkeypatch.setattr(http_server, "CONNECTION_S", 0.2)
    with socket.create_connection(("127.0.0.1", served.exporter.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        await asyncio.to_thread(sock.recv, 1)  # of the response, or its end
        await eventually(lambda: not any(list(served.server.connections(stage)) for stage in Stage))


async def test_a_header_has_a_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEADER_TIMEOUT_S", 0.2)

    def trickle() -> bool:
        with socket.create_connection(("127.0.0.1", served.exporter.port), timeout=PATIENCE_S) as sock:
            for _ in range(1000):
                try:
                    sock.sendall(b"G")
                    sock.settimeout(0.05)
                    if sock.recv(1) == b"":
                        return True
                except TimeoutError:
                    pass
                except ConnectionError:
                    return True
        return False

    assert await asyncio.to_thread(trickle)


async def test_connections_are_bounded_and_silent_ones_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", served.exporter.port)

    def silent() -> list[bytes]:
        count = CONNECTIONS_PER_ADDRESS_MAX + 3
        sockets = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(count)]
        try:
            return [sock.recv(1) for sock in sockets]
        finally:
            for sock in sockets:
                sock.close()

    with monkeypatch.context() as patch:
        patch.setattr(http_server, "HEADER_TIMEOUT_S", 0.2)
        assert set(await asyncio.to_thread(silent)) == {b""}
    assert (await served.get("/metrics"))[0] == 200


def _half(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    sock.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
    return sock


async def test_half_requests_keep_no_whole_one_out(served: Served) -> None:
    port = served.exporter.port
    with ExitStack() as stack:
        first = [stack.enter_context(_half(port)) for _ in range(CONNECTIONS_PER_ADDRESS_MAX - 1)]
        assert (await served.get("/livez"))[0] == 200
        for sock in first:
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        for _ in range(CONNECTIONS_PER_ADDRESS_MAX):
            stack.enter_context(_half(port))
            assert (await served.get("/livez"))[0] == 200
        for sock in first:
            sock.settimeout(PATIENCE_S)
            assert sock.recv(1) == b"", "the oldest are cut off at the limit of their address, and get no response"


def test_which_connection_makes_room() -> None:
    a1, b1, b2 = (cast(HttpConnection, SimpleNamespace(address=address)) for address in "abb")
    assert to_be_cut([a1, b1, b2]) is b1, "the oldest of the address that has most"
    assert to_be_cut([a1, b1]) is a1, "the oldest of all"


async def test_one_address_does_not_fill_the_room_of_the_others(served: Served) -> None:
    server = served.server

    def fill() -> list[HttpConnection]:
        crowd = [HttpConnection(server, "crowd") for _ in range(REFUSED_MAX // 2)]
        others = [HttpConnection(server, f"other {number}") for number in range(REFUSED_MAX - 1)]
        for each in crowd + others:
            server.enter(each, Stage.REFUSED)
        left = list(server.connections(Stage.REFUSED))
        for each in left:
            each.cut()
        return left

    left = await served.in_server(fill)
    assert [each.address for each in left] == ["crowd", *(f"other {number}" for number in range(REFUSED_MAX - 1))]


async def test_scrapes_that_are_not_read_keep_no_probe_out(served: Served) -> None:
    served.health.ready()

    def take_all() -> list[HttpConnection]:
        held = [HttpConnection(served.server, "127.0.0.1") for _ in range(LARGE_ANSWERS_MAX)]
        for each in held:
            served.server.enter(each, Stage.LARGE_ANSWER)
        return held

    held = await served.in_server(take_all)
    assert (await served.get("/healthz"))[0] == 200
    assert set(held) == set(served.server.connections(Stage.LARGE_ANSWER))
    assert (await served.get("/metrics"))[0] == 200
    assert held[0] not in served.server.connections(Stage.LARGE_ANSWER), "the oldest makes room for the next scrape"


async def test_garbage_on_the_port_is_refused(served: Served) -> None:
    def send(garbage: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", served.exporter.port), timeout=PATIENCE_S) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(12)

    for garbage in (
        b"\x00\x00\x00\x12\x00\x03",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics\r\n" * 3,
    ):
        await asyncio.to_thread(send, garbage)
    assert (await served.get("/metrics"))[0] == 200


async def test_an_address_in_use_is_named(served: Served) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{served.exporter.port} for metrics.listener"):
        Exporter(Metrics(), Health(), loop=served.loop, clock=SYSTEM_CLOCK, host="127.0.0.1", port=served.exporter.port)


async def test_nothing_is_left_after_closing() -> None:
    before = set(threading.enumerate())
    exporter = Exporter(
        Metrics(), Health(), loop=asyncio.get_running_loop(), clock=SYSTEM_CLOCK, host="127.0.0.1", port=0
    )
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "metrics"]
    exporter.close()
    assert not thread.is_alive()
    assert exporter._server._socket.fileno() == -1, "its socket is closed"
