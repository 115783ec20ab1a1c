"""Converts fetched batches to records for tasks, and records from tasks to records for topics: converters,
transforms, tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, cast

import pyarrow as pa

from parley.pipeline.client.decode import decode
from parley.pipeline.client.fetching import Fetched
from parley.pipeline.connect.connector_config import stage_names
from parley.pipeline.connect.converters import Converter, HeaderConverter
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.records import ConnectRecord, Header, SinkRecord, SourceRecord, TimestampType
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.tasks.tolerance import LeftOut, Raw, Stage, Tolerance
from parley.pipeline.connect.transforms import Predicate, Transform
from parley.pipeline.connect.worker_config import WorkerConfig, with_prefix

_CONVERTERS: Final = ("key.converter", "value.converter", "header.converter")
_MICROS_PER_MS: Final = 1000
_OFFSET_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
R = TypeVar("R", bound=ConnectRecord)


def read_rows(fetched: Fetched, start: int, end: int = _OFFSET_MAX) -> list[Raw]:
    """Return the visible records with offsets in [``start``, ``end``). Raises BadBatch."""
    rows: list[Raw] = []
    topic, partition = fetched.partition
    for batch in decode(fetched, start, end, include_headers=True):
        key, value, _, _, offset, timestamp, kind, headers = batch.columns
        millis = timestamp.cast(pa.int64()).to_numpy() // _MICROS_PER_MS
        listed: Any = zip(
            offset.to_pylist(),
            millis.tolist(),
            kind.to_pylist(),
            key.to_pylist(),
            value.to_pylist(),
            _headers(headers),
            strict=True,
        )
        rows += [Raw(topic, partition, *row) for row in listed]
    return rows


def _headers(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    if column.null_count == len(column):
        return [()] * len(column)
    return [tuple((one["key"], one["value"]) for one in row or ()) for row in column.to_pylist()]


class Outgoing(NamedTuple):
    """A record to be written to a topic. If ``partition`` is None, the key decides."""

    topic: str
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    transform: Transform
    predicate: Predicate | None
    negate: bool

    def concerns(self, record: ConnectRecord) -> bool:
        return self.predicate is None or self.predicate.test(record) is not self.negate


class TransformChain:
    """The transforms of a connector, in their order, each with its predicate (KIP-66, KIP-585)."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps = steps

    @classmethod
    def of(cls, config: Mapping[str, str], plugins: Plugins) -> TransformChain:
        """Create the transforms. Raises ConfigError if one is unknown or configured wrongly."""
        predicates = {
            name: _configured(plugins, cast(Any, Predicate), config, f"predicates.{name}.")
            for name in stage_names(config, "predicates")
        }
        steps = []
        for name in stage_names(config, "transforms"):
            prefix = f"transforms.{name}."
            used = config.get(prefix + "predicate")
            if used and used not in predicates:
                raise ConfigError(f"Invalid value {used} for configuration {prefix}predicate: Unknown predicate")
            steps.append(
                _Step(
                    _configured(plugins, cast(Any, Transform), config, prefix, leave=("predicate", "negate")),
                    predicates[used] if used else None,
                    config.get(prefix + "negate", "false").strip().lower() == "true",
                )
            )
        return cls(steps)

    def apply(self, record: R, tolerance: Tolerance, about: object) -> R | None:
        """Return the record after all transforms; None if one of them drops it. ``about`` is the original record, for
        error reports.

        Raises LeftOut if an error is tolerated, and ConnectError if not.
        """
        for step in self._steps:
            done = tolerance.run(Stage.TRANSFORMATION, step.transform, _applied(step, record), about)
            if done is None:
                return None
            record = done
        return record

    def close(self) -> None:
        for step in self._steps:
            step.transform.close()
            if step.predicate is not None:
                step.predicate.close()


def _applied(step: _Step, record: R) -> Callable[[], R | None]:
    return lambda: step.transform.apply(record) if step.concerns(record) else record


def _configured(
    plugins: Plugins, base: type[Any], config: Mapping[str, str], prefix: str, leave: Sequence[str] = ()
) -> Any:
    given = {key: value for key, value in with_prefix(config, prefix).items() if key not in leave}
    if "type" not in given:
        raise ConfigError(f'Missing required configuration "{prefix}type" which has no default value.')
    made = plugins.make(given.pop("type"), base)
    made.configure(given)
    return made


class Conversion:
    """A task's converters and transforms, created from its configuration. Raises ConfigError."""

    def __init__(self, spec: TaskSpec, worker: WorkerConfig, plugins: Plugins) -> None:
        self._key, self._value, self._headers = _converters(spec.connector_config, worker, plugins)
        self._chain = TransformChain.of(spec.connector_config, plugins)

    def incoming(self, raw: Raw, tolerance: Tolerance) -> SinkRecord | None:
        """Return the record for a sink task; None if a transform drops it, or if an error in it is tolerated.

        Raises ConnectError if an error is not tolerated.
        """
        topic = raw.topic
        try:
            key = tolerance.run(Stage.KEY_CONVERTER, self._key, lambda: self._key.to_connect(topic, raw.key), raw)
            value = tolerance.run(
                Stage.VALUE_CONVERTER, self._value, lambda: self._value.to_connect(topic, raw.value), raw
            )
            record = SinkRecord(
                topic=topic,
                kafka_partition=raw.partition,
                key_schema=key.schema,
                key=key.value,
                value_schema=value.schema,
                value=value.value,
                timestamp=raw.timestamp if raw.timestamp >= 0 else None,
                headers=self._read_headers(raw, tolerance) if raw.headers else (),
                kafka_offset=raw.offset,
                timestamp_type=TimestampType(raw.timestamp_type),
                original_topic=topic,
                original_kafka_partition=raw.partition,
                original_kafka_offset=raw.offset,
                raw=raw,
            )
            return self._chain.apply(record, tolerance, raw)
        except LeftOut:
            return None

    def _read_headers(self, raw: Raw, tolerance: Tolerance) -> tuple[Header, ...]:
        def read() -> tuple[Header, ...]:
            return tuple(self._headers.to_header(raw.topic, name, value) for name, value in raw.headers)

        return tolerance.run(Stage.HEADER_CONVERTER, self._headers, read, raw)

    def outgoing(self, polled: SourceRecord, tolerance: Tolerance) -> Outgoing | None:
        """Return the record to be written for a record of a source task; None if a transform drops it, or if an error
        in it is tolerated.

        Raises ConnectError if an error is not tolerated.
        """
        try:
            record = self._chain.apply(polled, tolerance, polled)
            if record is None:
                return None
            return self._written(record, tolerance, polled)
        except LeftOut:
            return None

    def _written(self, one: SourceRecord, tolerance: Tolerance, polled: SourceRecord) -> Outgoing:
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if one.headers:
            headers = tolerance.run(Stage.HEADER_CONVERTER, self._headers, lambda: self._write_headers(one), polled)
        key = tolerance.run(
            Stage.KEY_CONVERTER,
            self._key,
            lambda: self._key.from_connect(one.topic, one.key_schema, one.key),
            polled,
        )
        value = tolerance.run(
            Stage.VALUE_CONVERTER,
            self._value,
            lambda: self._value.from_connect(one.topic, one.value_schema, one.value),
            polled,
        )
        return Outgoing(one.topic, one.kafka_partition, one.timestamp, key, value, headers)

    def _write_headers(self, record: SourceRecord) -> tuple[tuple[str, bytes | None], ...]:
        return tuple((one.key, self._headers.from_header(record.topic, one)) for one in record.headers)

    def close(self) -> None:
        self._chain.close()
        for converter in (self._key, self._value, self._headers):
            converter.close()


def _converters(
    config: Mapping[str, str], worker: WorkerConfig, plugins: Plugins
) -> tuple[Converter, Converter, HeaderConverter]:
    """Return the converters of keys, values and headers: the connector's own, or the worker's. Raises ConfigError."""
    made: list[Any] = []
    for name in _CONVERTERS:
        own = config.get(name)
        base: Any = HeaderConverter if name == "header.converter" else Converter
        converter = plugins.make(own or worker[name], base)
        converter.configure(with_prefix(config if own else worker.given, name + "."), name == "key.converter")
        made.append(converter)
    return made[0], made[1], made[2]
