"""Handles records that cannot be converted or transformed: retry, skip, or fail the task (KIP-298).

Rules:

1. A ``RetriableError`` is retried for ``errors.retry.timeout``, with pauses that grow up to
   ``errors.retry.delay.max.ms``.
2. A record that still fails ends the task with ``errors.tolerance=none``. With ``all`` it is skipped, after it is
   logged and sent to the dead letter topic, if the connector's configuration requires this.
3. Errors of a connector's own ``put`` or ``poll`` are not tolerated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from parley.pipeline.connect.errors import ConfigError, ConnectError, DataError, RetriableError, stack_trace
from parley.pipeline.connect.herder_results import TaskId
from parley.pipeline.connect.plugins import kafkas_name
from parley.pipeline.connect.transforms import KeyOrValue

PREFIX: Final = "__connect.errors."
"""The prefix of the headers that describe a record's failure."""
_EXCEPTIONS: Final[Mapping[type, str]] = {
    ConnectError: "org.apache.kafka.connect.errors.ConnectException",
    DataError: "org.apache.kafka.connect.errors.DataException",
    RetriableError: "org.apache.kafka.connect.errors.RetriableException",
    ConfigError: "org.apache.kafka.common.config.ConfigException",
}
_FIRST_PAUSE_MS: Final = 300
_log = logging.getLogger(__name__)

T = TypeVar("T")


class Stage(Enum):
    """The stage of processing, by Kafka's names."""

    TASK_PUT = "TASK_PUT"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    KAFKA_PRODUCE = "KAFKA_PRODUCE"
    KAFKA_CONSUME = "KAFKA_CONSUME"


class Raw(NamedTuple):
    """A record as stored in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class LeftOut(Exception):
    """Raised to skip a record, which has already been logged and sent to the dead letter topic as configured."""


@dataclass(slots=True)
class Tolerance:
    """Handles the errors of one task's records by the connector's configuration. Setting ``stopping`` ends pauses."""

    task: TaskId
    settings: Mapping[str, Any]
    send_dead: Callable[[Raw, Mapping[str, str]], None] | None = None
    """Writes a skipped record and the context of its failure to the dead letter topic."""
    stopping: threading.Event = field(default_factory=threading.Event)
    now_ms: Callable[[], int] = field(kw_only=True)

    def run(self, stage: Stage, of: object, work: Callable[[], T], record: object) -> T:
        """Run ``work`` on a record and return its result. Retries it after a RetriableError. ``of`` is the object that
        does the work.

        Raises LeftOut if it fails and the record is skipped, or ConnectError if the failure is not tolerated.
        """
        deadline: int | None = None
        pause_ms = _FIRST_PAUSE_MS
        while True:
            try:
                return work()
            except RetriableError as error:
                timeout_ms = self.settings["errors.retry.timeout"]
                now = self.now_ms()
                deadline = now + timeout_ms if deadline is None else deadline
                if (timeout_ms >= 0 and now >= deadline) or self.stopping.is_set():
                    raise self.failed(stage, of, error, record) from error
            except Exception as error:
                raise self.failed(stage, of, error, record) from error
            self.stopping.wait(min(pause_ms, self.settings["errors.retry.delay.max.ms"]) / 1000)
            pause_ms *= 2

    def failed(self, stage: Stage, of: object, error: BaseException, record: object) -> LeftOut:
        """Log a failure, send the record to the dead letter topic, and return the exception that skips the record.

        Raises ConnectError if the failure is not tolerated, and what ``send_dead`` raises.
        """
        self._log_failure(stage, of, error, record)
        if self.settings["errors.tolerance"] != "all":
            raise ConnectError(
                f"Tolerance exceeded in error handler: {stage.value} of {self.task} by {_class_name(of)}: {error}"
            ) from error
        if self.send_dead is not None and isinstance(record, Raw):
            self.send_dead(record, self._context(stage, of, error, record))
        return LeftOut(str(error))

    def _log_failure(self, stage: Stage, of: object, error: BaseException, record: object) -> None:
        if not self.settings["errors.log.enable"]:
            return
        about = ""
        if self.settings["errors.log.include.messages"] and isinstance(record, Raw):
            about = (
                f", where consumed record is {{topic='{record.topic}', partition={record.partition}, "
                f"offset={record.offset}, timestamp={record.timestamp}}}"
            )
        _log.error(
            "Error encountered in task %s. Executing stage '%s' with class '%s'%s.",
            self.task,
            stage.value,
            _class_name(of),
            about,
            exc_info=error,
        )

    def _context(self, stage: Stage, of: object, error: BaseException, raw: Raw) -> dict[str, str]:
        return {
            "topic": raw.topic,
            "partition": str(raw.partition),
            "offset": str(raw.offset),
            "connector.name": self.task.connector,
            "task.id": str(self.task.task),
            "stage": stage.value,
            "class.name": _class_name(of),
            "exception.class.name": _class_name(error),
            "exception.message": str(error),
            "exception.stacktrace": stack_trace(error),
        }


def _class_name(one: object) -> str:
    """Return the name of an object's class: Kafka's name if it has one, because programs that read dead letters know
    that name.
    """
    kind = type(one)
    side = f"${one.side.value}" if isinstance(one, KeyOrValue) else ""
    return _EXCEPTIONS.get(kind) or kafkas_name(kind) + side
