"""Sends records to a web service: one request for each record, or for a batch of records as a JSON array.

Delivery is at least once. A request without a response is sent again, with the same ``Idempotency-Key``
(``topic-partition-first offset-count``), so that the service can detect the duplicate. Records that the service rejects
permanently (4xx except 408, 425 and 429), or that JSON cannot express (such as NaN), go to the dead letter topic if
errors are tolerated. Otherwise the task fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx

from parley.pipeline.connect.config import (
    HIGH,
    INT,
    LOW,
    MEDIUM,
    PASSWORD,
    STRING,
    ConfigDef,
    at_least,
    non_empty,
    one_of,
)
from parley.pipeline.connect.connector import SinkConnector, SinkTask
from parley.pipeline.connect.connectors.columns import Refused, place, plain, refusing
from parley.pipeline.connect.errors import ConfigError, ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.values.exact import DoesNotFit, json_value
from parley.pipeline.values.json_text import dumps

_HEADER: Final = "http.headers."
_AGAIN: Final = frozenset({408, 425, 429})
_ANSWER_CHARACTERS_MAX: Final = 500
_VERSION: Final = "1.0"


class _Body(NamedTuple):
    """A record and its value for the body of a request."""

    record: SinkRecord
    value: Any


class HttpSinkTask(SinkTask):
    """Sends all records of a ``put``, in order, before it returns."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        config = HttpSinkConnector.config_def.parse(props)
        self._url: str = config["http.url"]
        self._method: str = config["http.method"]
        self._batch: int = config["batch.max.size"]
        self._again_ms: int = config["retry.backoff.ms"]
        headers = {key.removeprefix(_HEADER): value for key, value in props.items() if key.startswith(_HEADER)}
        if config["http.authorization"] is not None:
            headers["Authorization"] = config["http.authorization"].value
        self._client = httpx.Client(headers=headers, timeout=config["request.timeout.ms"] / 1000)

    def put(self, records: Sequence[SinkRecord]) -> None:
        for batch in _batches(self._bodies(records), self._batch):
            refused = self._send(batch)
            if refused is not None:
                self._refused([one.record for one in batch], refused)

    def _bodies(self, records: Sequence[SinkRecord]) -> list[_Body]:
        """Return the records to send with their bodies. Refuses records whose value JSON cannot express."""
        refuse, bodies = refusing(self), []
        for record in records:
            try:
                bodies.append(_Body(record, _body_value(record)))
            except Refused as error:
                refuse(record, error)
        return bodies

    def _send(self, batch: Sequence[_Body]) -> ConnectError | None:
        """Send a batch. Returns the error if the service rejects it permanently, otherwise None. Raises RetriableError
        if the service does not respond, or rejects it temporarily.
        """
        first = batch[0].record
        key = f"{first.original_topic}-{first.original_kafka_partition}-{first.original_kafka_offset}-{len(batch)}"
        content, kind = _content(_in_json([one.value for one in batch]) if self._batch > 1 else batch[0].value)
        headers = {"Content-Type": kind, "Idempotency-Key": key}
        try:
            answer = self._client.request(self._method, self._url, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise self._later(f"{self._url}: {error!r}") from error
        if answer.is_success:
            return None
        text = f"{self._url} responds with {answer.status_code}: {answer.text[:_ANSWER_CHARACTERS_MAX]}"
        if answer.is_server_error or answer.status_code in _AGAIN:
            raise self._later(text)
        return ConnectError(text)

    def _later(self, text: str) -> RetriableError:
        self.context.timeout(self._again_ms)
        return RetriableError(text)

    def _refused(self, batch: Sequence[SinkRecord], error: ConnectError) -> None:
        reporter = self.context.errant_records
        if reporter is None:
            raise error
        for record in batch:
            reporter.report(record, error)

    def stop(self) -> None:
        self._client.close()


def _batches(bodies: Sequence[_Body], size: int) -> Iterator[list[_Body]]:
    """Split the records into batches of one partition each, up to the given size."""
    batch: list[_Body] = []
    for one in bodies:
        is_other = batch and _partition(batch[0].record) != _partition(one.record)
        if is_other or len(batch) == size:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _partition(record: SinkRecord) -> tuple[str, int]:
    return record.original_topic, record.original_kafka_partition


def _body_value(record: SinkRecord) -> Any:
    """Return the value of a record: text and bytes unchanged, anything else in JSON's types. Raises Refused."""
    value = plain(record.value)
    if isinstance(value, bytes):
        return value
    try:
        return json_value(value)
    except DoesNotFit as error:
        where = f"the field {error.path}" if error.path else "its value"
        raise Refused(f"{place(record)}: {where} has {error.given}, for which JSON has no value") from None


def _in_json(values: Sequence[Any]) -> list[Any]:
    return [json_value(value) if isinstance(value, bytes) else value for value in values]


def _content(value: Any) -> tuple[bytes, str]:
    """Return the body of a request and its content type."""
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return dumps(value).encode(), "application/json"


def _web_address(name: str, value: Any) -> None:
    non_empty(name, value)
    try:
        url = httpx.URL(value)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError(f"Invalid value {value} for configuration {name}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"Invalid value {value} for configuration {name}: it must begin with http:// or https://")


class HttpSinkConnector(SinkConnector):
    """A sink for a web service (see the module docstring). Configs ``http.headers.<name>`` are headers of every
    request."""

    version = _VERSION
    task_class = HttpSinkTask
    config_def = (
        ConfigDef()
        .define("http.url", STRING, importance=HIGH, validator=_web_address)
        .doc("The URL to which requests are sent.")
        .define("http.method", STRING, "POST", MEDIUM, validator=one_of("POST", "PUT", "PATCH"))
        .doc("The HTTP method of the requests: POST, PUT or PATCH.")
        .define("http.authorization", PASSWORD, None, MEDIUM)
        .doc("The value of the Authorization header, such as 'Bearer abc'.")
        .define("batch.max.size", INT, 1, MEDIUM, validator=at_least(1))
        .doc("The largest number of records in a request. If it is more than 1, the body is a JSON array.")
        .define("request.timeout.ms", INT, 30_000, LOW, validator=at_least(1))
        .doc("How long a request may take, in ms.")
        .define("retry.backoff.ms", INT, 3_000, LOW, validator=at_least(0))
        .doc("How long the connector waits before it sends a failed request again, in ms.")
    )

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        return True
