"""The HTTP sink, which sends the records of topics to a web service."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from parley.pipeline.connect.connectors.http import HttpSinkConnector, HttpSinkTask
from parley.pipeline.connect.data import INT32, Struct, struct
from parley.pipeline.connect.errors import ConnectError, RetriableError
from tests.pipeline.connect.connectors.tasks import record, started

SHAPE = struct({"a": INT32})


class Service(ThreadingHTTPServer):
    """Stores requests. Responds with the given statuses in turn, then with 200."""

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


def test_values_in_json_are_exact(service: Service) -> None:
    task = started(HttpSinkTask(), {"http.url": service.url})
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    task.put([record(0, {"a": Decimal("12345678901234567890.10"), "b": moment, "c": {1: 2}})])
    task.stop()
    expected = b'{"a": 12345678901234567890.10, "b": "2026-01-02T03:04:05+00:00", "c": [[1, 2]]}'
    assert [body for _, _, body in service.got] == [expected]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [1.5, {"b": math.nan}]}, "t-0 offset 1: the field a[1].b has NaN, for which JSON has no value"),
        ({"a": math.inf}, "t-0 offset 1: the field a has infinity, for which JSON has no value"),
        (-math.inf, "t-0 offset 1: its value has infinity, for which JSON has no value"),
        (
            {"a": Decimal("NaN")},
            "t-0 offset 1: the field a has a decimal that is not a number, for which JSON has no value",
        ),
        ("\ud800", "t-0 offset 1: its value has a text with a lone surrogate, for which JSON has no value"),
    ],
)
def test_a_value_that_json_does_not_have_is_refused_by_name(
    service: Service, size: int, value: Any, reason: str
) -> None:
    reported: list[Any] = []

    class Reporter:
        def report(self, record: Any, error: BaseException) -> None:
            reported.append((record.kafka_offset, str(error)))

    records = [record(0, {"a": 1}), record(1, value), record(2, {"a": 2})]
    props = {"http.url": service.url, "batch.max.size": str(size)}
    task = started(HttpSinkTask(), props, errant_records=Reporter())
    task.put(records)
    task.stop()
    assert reported == [(1, reason)]
    bodies = [json.loads(body) for _, _, body in service.got]
    assert bodies == ([{"a": 1}, {"a": 2}] if size == 1 else [[{"a": 1}, {"a": 2}]])
    task = started(HttpSinkTask(), props)
    with pytest.raises(ConnectError, match=re.escape(reason)):
        task.put(records)
    task.stop()
    assert len(service.got) == len(bodies), "nothing of the range is sent if it fails"


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
def test_requests_are_sent_again_after_temporary_errors(service: Service, status: int) -> None:
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


def test_permanent_refusals_are_reported_or_fail(service: Service) -> None:
    service.statuses = [404, 400]
    reported: list[Any] = []

    class Reporter:
        def report(self, record: Any, error: BaseException) -> None:
            reported.append((record.kafka_offset, str(error)))

    task = started(HttpSinkTask(), {"http.url": service.url}, errant_records=Reporter())
    task.put([record(0, "a"), record(1, "b"), record(2, "c")])
    assert [offset for offset, _ in reported] == [0, 1]
    assert "responds with 404: said" in reported[0][1]
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
