"""Records of topics to a web service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from parley.pipeline.connect.connectors.http import HttpSinkConnector, HttpSinkTask
from parley.pipeline.connect.data import INT32, Struct, struct
from parley.pipeline.connect.errors import ConnectError, RetriableError
from tests.pipeline.connect.connectors.tasks import record, started

SHAPE = struct({"a": INT32})


class Service(ThreadingHTTPServer):
    """Keeps what it gets; answers with the statuses it was told, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/in"


class Answering(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.got.append((self.command, headers, body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"said")

    do_PUT = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def test_a_request_for_each_record(service: Service) -> None:
    props = {"http.url": service.url, "http.headers.X-From": "parley", "http.authorization": "Bearer secret"}
    task = started(HttpSinkTask(), props)
    task.put([record(0, "text"), record(1, b"bytes"), record(2, Struct(SHAPE, {"a": 1})), record(3, {"b": [None]})])
    task.stop()
    assert [body for _, _, body in service.got] == [b"text", b"bytes", b'{"a": 1}', b'{"b": [null]}']
    kinds = [headers["content-type"] for _, headers, _ in service.got]
    assert kinds == ["text/plain; charset=utf-8", "application/octet-stream", "application/json", "application/json"]
    assert {headers["x-from"] for _, headers, _ in service.got} == {"parley"}
    assert {headers["authorization"] for _, headers, _ in service.got} == {"Bearer secret"}
    assert [headers["idempotency-key"] for _, headers, _ in service.got][:2] == ["t-0-0-1", "t-0-1-1"]


def test_bytes_in_json_are_base64(service: Service) -> None:
    task = started(HttpSinkTask(), {"http.url": service.url})
    task.put([record(0, {"a": b"\xff\x00", "b": [b"x"]})])
    task.stop()
    assert [json.loads(body) for _, _, body in service.got] == [{"a": "/wA=", "b": ["eA=="]}]


def test_batches_are_of_one_partition(service: Service) -> None:
    task = started(HttpSinkTask(), {"http.url": service.url, "batch.max.size": "2", "http.method": "PUT"})
    task.put([record(0, 1), record(1, 2), record(2, 3), record(0, 4, partition=1)])
    task.stop()
    assert [(method, json.loads(body)) for method, _, body in service.got] == [
        ("PUT", [1, 2]),
        ("PUT", [3]),
        ("PUT", [4]),
    ]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_may_pass_is_sent_again(service: Service, status: int) -> None:
    service.statuses = [200, status]
    task = started(HttpSinkTask(), {"http.url": service.url, "retry.backoff.ms": "7"})
    records = [record(0, "a"), record(1, "b")]
    with pytest.raises(RetriableError, match=str(status)):
        task.put(records)
    assert task.context.retry_ms == 7
    task.put(records)
    task.stop()
    assert [headers["idempotency-key"] for _, headers, _ in service.got] == ["t-0-0-1", "t-0-1-1", "t-0-0-1", "t-0-1-1"]


def test_no_service_may_pass() -> None:
    task = started(HttpSinkTask(), {"http.url": "http://127.0.0.1:9/"})
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:9"):
        task.put([record(0, "a")])
    task.stop()


def test_what_is_refused_for_good_is_reported_or_fails(service: Service) -> None:
    service.statuses = [404, 400]
    reported: list[Any] = []

    class Reporter:
        def report(self, record: Any, error: BaseException) -> None:
            reported.append((record.kafka_offset, str(error)))

    task = started(HttpSinkTask(), {"http.url": service.url}, errant_records=Reporter())
    task.put([record(0, "a"), record(1, "b"), record(2, "c")])
    assert [offset for offset, _ in reported] == [0, 1]
    assert "answers 404: said" in reported[0][1]
    task.stop()
    service.statuses = [404]
    task = started(HttpSinkTask(), {"http.url": service.url})
    with pytest.raises(ConnectError, match="404"):
        task.put([record(0, "a")])
    task.stop()


def test_addresses_are_checked() -> None:
    for url in ("", "ftp://x", "http://", "nothing"):
        errors = {one.name: one.errors for one in HttpSinkConnector().validate({"http.url": url})}
        assert errors["http.url"], url
