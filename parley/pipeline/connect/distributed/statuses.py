"""The states of connectors and tasks, and the topics that they use, as their workers report them; kept in a log.

The records are Kafka Connect's (``status.storage.topic``):

====================================  ==================================================================
``status-connector-NAME``             ``{"state", "trace", "worker_id", "generation", "version"}``; no value: deleted
``status-task-NAME-N``                the same
``status-topic-TOPIC:connector-NAME`` ``{"topic": {"name", "connector", "task", "discoverTimestamp"}}``; no value: reset
====================================  ==================================================================
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from parley.pipeline.connect.distributed.log import Keyed, Log
from parley.pipeline.connect.herder_results import State, Status, TaskId
from parley.pipeline.values.json_text import packed
from parley.protocol.errors import KafkaError

_CONNECTOR: Final = "status-connector-"
_TASK: Final = "status-task-"
_TOPIC: Final = "status-topic-"
_OF_CONNECTOR: Final = ":connector-"
_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)

Record = tuple[bytes, bytes | None]
Write = Callable[[], Awaitable[None]]


class StatusStore:
    """The last known statuses, and their changes. Writes raise KafkaError."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.connectors: dict[str, Status] = {}
        self.tasks: dict[TaskId, Status] = {}
        self.topics: dict[str, dict[str, TaskId]] = {}
        """The topics that each connector uses, each with the first task that used it."""

    async def start(self) -> None:
        """Read the log to its end, and follow it from then on. Raises ConnectError if the log's topic is not usable,
        for example because it cannot be created.
        """
        await self._log.start(self._take)

    async def stop(self) -> None:
        """Stop following the log."""
        await self._log.stop()

    async def refresh(self) -> None:
        """Wait until everything that the log contains now has been read."""
        await self._log.read_to_end()

    # Reading.

    def tasks_of(self, name: str) -> dict[int, Status]:
        """Return the statuses of a connector's tasks, by number."""
        return {task.task: status for task, status in self.tasks.items() if task.connector == name}

    def _take(self, record: Keyed) -> None:
        try:
            key = record.key.decode()
            value = None if record.value is None else json.loads(record.value)
            if key.startswith(_CONNECTOR):
                _put(self.connectors, key[len(_CONNECTOR) :], None if value is None else _status(value))
            elif key.startswith(_TASK):
                connector, _, number = key[len(_TASK) :].rpartition("-")
                _put(self.tasks, TaskId(connector, int(number)), None if value is None else _status(value))
            elif key.startswith(_TOPIC):
                self._take_topic(key[len(_TOPIC) :], value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("the status record at offset %d cannot be parsed: %r", record.offset, error)

    def _take_topic(self, key: str, value: Any) -> None:
        topic, _, connector = key.partition(_OF_CONNECTOR)  # names of topics have no colon
        used = self.topics.setdefault(connector, {})
        _put(used, topic, None if value is None else TaskId(connector, int(value["topic"]["task"])))

    # Writing.

    async def put(self, of: str | TaskId, status: Status, *, unless_newer: bool = False) -> None:
        """Write the state of a connector (by name) or a task.

        With ``unless_newer``, writes nothing if another worker has written in a newer generation: the work that ends
        here may already run there.
        """
        if unless_newer:
            now = self.tasks.get(of) if isinstance(of, TaskId) else self.connectors.get(of)
            if now is not None and now.worker_id != status.worker_id and now.generation > status.generation:
                return
        await self._log.send([(_key(of), _value(status))])

    async def delete(self, name: str, tasks: Sequence[TaskId], *, whole: bool) -> None:
        """Delete the states of these tasks and, with ``whole``, also the connector's state and topics."""
        gone: list[str | TaskId] = [*tasks, *([name] if whole else [])]
        records: list[Record] = [(_key(one), None) for one in gone]
        if whole:
            records += [(_topic_key(topic, name), None) for topic in self.topics.get(name, ())]
        if records:
            await self._log.send(records)

    async def put_topic(self, task: TaskId, topic: str, now_ms: int) -> None:
        """Record that a task uses a topic."""
        seen = {"name": topic, "connector": task.connector, "task": task.task, "discoverTimestamp": now_ms}
        await self._log.send([(_topic_key(topic, task.connector), packed({"topic": seen}))])

    async def reset_topics(self, name: str) -> None:
        """Forget the topics that a connector has used (KIP-558)."""
        used = self.topics.get(name, {})
        if used:
            await self._log.send([(_topic_key(topic, name), None) for topic in used])


class StatusWriter:
    """Writes the states of connectors and tasks. Only the event loop's thread may call it.

    If a broker is unavailable, states wait and are not lost. A newer state replaces the waiting one, so no more states
    wait than there are connectors, tasks and topics.
    """

    def __init__(self, statuses: StatusStore) -> None:
        self._statuses = statuses
        self._waiting: dict[Hashable, Write] = {}
        self._any_waiting = asyncio.Event()
        self._none_waiting = asyncio.Event()
        self._none_waiting.set()

    def state(self, of: str | TaskId, status: Status, *, unless_newer: bool) -> None:
        """Queue the state of a connector (by name) or a task for writing. ``unless_newer`` is as in
        ``StatusStore.put``.
        """
        self._enqueue(of, lambda: self._statuses.put(of, status, unless_newer=unless_newer))

    def topic(self, task: TaskId, topic: str, now_ms: int) -> None:
        """Queue a record that says that a task uses a topic (``StatusStore.put_topic``)."""
        self._enqueue((task.connector, topic, "topic"), lambda: self._statuses.put_topic(task, topic, now_ms))

    async def drained(self) -> None:
        """Wait until all queued reports are written."""
        await self._none_waiting.wait()

    async def run(self) -> None:
        """Write the queued reports, until cancelled. Retries failed writes."""
        while True:
            await self._any_waiting.wait()
            of, write = next(iter(self._waiting.items()))
            try:
                await write()
            except KafkaError as error:
                _log.warning("the status of %s cannot be written at the moment: %s", of, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if self._waiting.get(of) is write:
                del self._waiting[of]
            if not self._waiting:
                self._any_waiting.clear()
                self._none_waiting.set()

    def _enqueue(self, of: Hashable, write: Write) -> None:
        self._waiting.pop(of, None)
        self._waiting[of] = write
        self._any_waiting.set()
        self._none_waiting.clear()


def _put(known: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def _key(of: str | TaskId) -> bytes:
    return (f"{_TASK}{of}" if isinstance(of, TaskId) else f"{_CONNECTOR}{of}").encode()


def _topic_key(topic: str, connector: str) -> bytes:
    return f"{_TOPIC}{topic}{_OF_CONNECTOR}{connector}".encode()


def _value(status: Status) -> bytes | None:
    if status.state is State.DESTROYED:
        return None
    return packed(
        {
            "state": status.state.value,
            "trace": status.trace,
            "worker_id": status.worker_id,
            "generation": status.generation,
            "version": status.version,
        }
    )


def _status(value: Mapping[str, Any]) -> Status:
    return Status(
        State(value["state"]),
        str(value["worker_id"]),
        int(value.get("generation") or 0),
        value.get("trace"),
        value.get("version"),
    )
