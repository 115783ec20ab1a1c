"""The wanted connectors, their tasks and their target states, in a log of one partition.

The records are Kafka Connect's (``config.storage.topic``), keys as text and values as JSON:

====================================  ==================================================================
``connector-NAME``                    ``{"properties": {...}}``; no value: the connector is deleted
``task-NAME-N``                       ``{"properties": {...}}``; takes effect with the next commit
``commit-NAME``                       ``{"tasks": n}``: the tasks before it are now the connector's
``target-state-NAME``                 ``{"state": "PAUSED", "state.v2": "STOPPED"}``; for old workers, PAUSED
``restart-connector-NAME``            ``{"include-tasks": true, "only-failed": false}``: applied once, when read
``logger-cluster-NAME``               ``{"level": "INFO"}``: applied once, when read
``session-key``                       the key that signs requests between workers (KIP-507)
``tasks-fencing-NAME``                ``{"task-count": n}``: older tasks are fenced, n may write (KIP-618)
====================================  ==================================================================

``ConfigState`` is the state that these records define. Only ``ConfigState.apply`` changes it, so workers that have read
the same records have the same state. An invalid record is skipped with a log line.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from parley.pipeline.connect.distributed.leader_writes import TransactionalWrites
from parley.pipeline.connect.distributed.log import Keyed, Log
from parley.pipeline.connect.herder_results import TargetState, TaskId
from parley.pipeline.values.json_text import packed

_CONNECTOR: Final = "connector-"
_TASK: Final = "task-"
_COMMIT: Final = "commit-"
_TARGET: Final = "target-state-"
_RESTART: Final = "restart-connector-"
_LOGGER: Final = "logger-cluster-"
_SESSION_KEY: Final = "session-key"
_FENCING: Final = "tasks-fencing-"
_log = logging.getLogger(__name__)


class SessionKey(NamedTuple):
    """The key with which workers sign requests to each other. ``created_ms`` is in ms since 1970."""

    key: bytes
    algorithm: str
    created_ms: int


class Change(StrEnum):
    """The kinds of changes that a record can cause."""

    CONNECTOR = "connector"
    DELETED = "deleted"
    TASKS = "tasks"
    TARGET = "target"
    RESTART = "restart"
    LOGGER = "logger"
    SESSION_KEY = "session key"


class Changed(NamedTuple):
    """A change that a record made: its kind, the connector or logger, and the restart's options or the level."""

    what: Change
    name: str
    value: Any = None


@dataclass(slots=True)
class ConfigState:
    """The state after all records before ``offset``."""

    offset: int = -1
    connectors: dict[str, dict[str, str]] = field(default_factory=dict)
    tasks: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    """The task configurations of each connector that has tasks."""
    targets: dict[str, TargetState] = field(default_factory=dict)
    session_key: SessionKey | None = None
    fenced_counts: dict[str, int] = field(default_factory=dict)
    """For each connector, the number of tasks that have been allowed to write in transactions since its last round of
    fencing.

    It is kept after the connector is deleted: a new connector with the same name must fence them.
    """
    unfenced: set[str] = field(default_factory=set)
    """Connectors whose tasks were committed after their last round of fencing."""
    generations: dict[str, int] = field(default_factory=dict)
    """The number of times that the tasks of each connector were committed."""
    _deferred: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    """Task configurations that have not been committed yet."""
    inconsistent: set[str] = field(default_factory=set)
    """Connectors whose last commit lacks some task configurations: the leader must compute them again."""

    def target(self, name: str) -> TargetState:
        """Return the target state of a connector; STARTED if none is stored."""
        return self.targets.get(name, TargetState.STARTED)

    def task_ids(self, name: str) -> list[TaskId]:
        """Return the tasks of a connector."""
        return [TaskId(name, number) for number in range(len(self.tasks.get(name, ())))]

    def task_config(self, task: TaskId) -> dict[str, str] | None:
        """Return the configuration of a task; None if there is none."""
        configs = self.tasks.get(task.connector, ())
        return configs[task.task] if 0 <= task.task < len(configs) else None

    def apply(self, record: Keyed) -> Changed | None:
        """Apply a record. Returns what it changed; None if it changes nothing that workers must act on, or
        is invalid.
        """
        self.offset = record.offset + 1
        try:
            key = record.key.decode()
            value = None if record.value is None else json.loads(record.value)
            for prefix, take in _TAKES.items():
                if key.startswith(prefix):
                    return take(self, key[len(prefix) :], value)
            _log.debug("a configuration record has an unknown key: %r", key)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("the configuration record at offset %d cannot be parsed: %r", record.offset, error)
        return None

    def _connector(self, name: str, value: Any) -> Changed:
        if value is None:
            for known in (self.connectors, self.tasks, self._deferred, self.targets):
                known.pop(name, None)
            self.inconsistent.discard(name)
            return Changed(Change.DELETED, name)
        self.connectors[name] = _texts(value["properties"])
        return Changed(Change.CONNECTOR, name)

    def _task(self, name: str, value: Any) -> None:
        connector, _, number = name.rpartition("-")
        if value is not None:
            self._deferred.setdefault(connector, {})[int(number)] = _texts(value["properties"])

    def _commit(self, name: str, value: Any) -> Changed | None:
        deferred = self._deferred.pop(name, {})
        if value is None:
            return None
        self.unfenced.add(name)
        count = int(value["tasks"])
        # A task configuration may be older than the previous commit, because the log is compacted.
        known = dict(enumerate(self.tasks.get(name, ())))
        found = {number: config for number, config in {**known, **deferred}.items() if number < count}
        if len(found) < count:
            self.inconsistent.add(name)
            return None
        self.inconsistent.discard(name)
        self.tasks[name] = [found[number] for number in range(count)]
        self.generations[name] = self.generations.get(name, 0) + 1
        return Changed(Change.TASKS, name)

    def _target(self, name: str, value: Any) -> Changed | None:
        if value is None:
            self.targets.pop(name, None)
            return None
        self.targets[name] = TargetState(value.get("state.v2") or value["state"])
        return Changed(Change.TARGET, name)

    def _restart(self, name: str, value: Any) -> Changed | None:
        if value is None:
            return None
        return Changed(Change.RESTART, name, (bool(value["include-tasks"]), bool(value["only-failed"])))

    def _logger(self, name: str, value: Any) -> Changed | None:
        return None if value is None else Changed(Change.LOGGER, name, str(value["level"]))

    def _fencing(self, name: str, value: Any) -> None:
        if value is not None:
            self.fenced_counts[name] = int(value["task-count"])
            self.unfenced.discard(name)

    def _session(self, name: str, value: Any) -> Changed | None:
        if value is None or name:
            return None
        try:
            key = base64.b64decode(value["key"], validate=True)
        except binascii.Error:
            raise ValueError("the session key is not base64") from None
        self.session_key = SessionKey(key, str(value["algorithm"]), int(value["creation-timestamp"]))
        return Changed(Change.SESSION_KEY, "")


_TAKES: Final[Mapping[str, Callable[[ConfigState, str, Any], Changed | None]]] = {
    _CONNECTOR: ConfigState._connector,
    _TASK: ConfigState._task,
    _COMMIT: ConfigState._commit,
    _TARGET: ConfigState._target,
    _RESTART: ConfigState._restart,
    _LOGGER: ConfigState._logger,
    _SESSION_KEY: ConfigState._session,
    _FENCING: ConfigState._fencing,
}


def _texts(properties: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in properties.items() if value is not None}


class ConfigStore:
    """The store of the configurations: their state, and the writes that change it.

    Only the leader of the group may write, except for target states and levels of loggers. With ``leader_writes``, it
    must first call ``claim``, after which no earlier leader can write. Each write returns once its records have been
    read back, so ``state`` contains them. Raises KafkaError if a write fails.
    """

    def __init__(self, log: Log, leader_writes: TransactionalWrites | None = None) -> None:
        self._log = log
        self._leader_writes = leader_writes
        self.state = ConfigState()
        self._on_change: Callable[[Changed], None] | None = None

    async def start(self, on_change: Callable[[Changed], None]) -> None:
        """Read the log to its end, and follow it. Calls ``on_change`` only with later changes, in order. Raises
        ConnectError if the log's topic cannot be used.
        """
        await self._log.start(self._take)
        self._on_change = on_change

    async def stop(self) -> None:
        """Stop following the log."""
        if self._leader_writes is not None:
            await self._leader_writes.stop()
        await self._log.stop()

    async def claim(self) -> None:
        """Fence earlier leaders, if the leader writes in transactions (KIP-618). Raises KafkaError."""
        if self._leader_writes is not None:
            await self._leader_writes.claim()

    def _take(self, record: Keyed) -> None:
        changed = self.state.apply(record)
        if changed is not None and self._on_change is not None:
            self._on_change(changed)

    async def refresh(self) -> None:
        """Wait until everything that the log contains now has been read."""
        await self._log.read_to_end()

    async def put_connector(self, name: str, config: Mapping[str, str], target: TargetState | None) -> None:
        """Store a connector's configuration, and its target state if one is given."""
        records = [] if target is None else [_target_record(name, target)]
        await self._lead([*records, (_CONNECTOR + name, {"properties": dict(config)})])

    async def delete_connector(self, name: str) -> None:
        """Delete a connector and its target state."""
        await self._lead([(_CONNECTOR + name, None), (_TARGET + name, None)])

    async def put_tasks(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Store the configurations of all tasks of a connector. They take effect together."""
        records: list[tuple[str, Any]] = [
            (f"{_TASK}{name}-{number}", {"properties": dict(config)}) for number, config in enumerate(configs)
        ]
        await self._lead([*records, (_COMMIT + name, {"tasks": len(configs)})])

    async def put_fenced(self, name: str, count: int) -> None:
        """Record that a connector's older tasks are fenced, and that ``count`` tasks of its current commit
        may write.
        """
        await self._lead([(_FENCING + name, {"task-count": count})])

    async def put_target(self, name: str, target: TargetState) -> None:
        """Set the target state of a connector. STOPPED also removes its tasks, so only the leader may write it."""
        record = _target_record(name, target)
        if target is TargetState.STOPPED:
            await self._lead([(_COMMIT + name, {"tasks": 0}), record])
        else:
            await self._write([record])

    async def put_restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> None:
        """Request that the workers restart the connector and, with ``include_tasks``, its tasks; with ``only_failed``,
        only those that have failed.
        """
        await self._lead([(_RESTART + name, {"include-tasks": include_tasks, "only-failed": only_failed})])

    async def put_logger(self, name: str, level: str) -> None:
        """Set the level of a logger in every worker."""
        await self._write([(_LOGGER + name, {"level": level})])

    async def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new signing key to all workers."""
        text = base64.b64encode(key.key).decode()
        await self._lead(
            [(_SESSION_KEY, {"key": text, "algorithm": key.algorithm, "creation-timestamp": key.created_ms})]
        )

    async def _write(self, records: Sequence[tuple[str, Any]]) -> None:
        await self._log.send(_encoded(records))
        await self._log.read_to_end()

    async def _lead(self, records: Sequence[tuple[str, Any]]) -> None:
        """Write records that only the leader may write, and read them back."""
        await (self._leader_writes or self._log).send(_encoded(records))
        await self._log.read_to_end()


def _encoded(records: Sequence[tuple[str, Any]]) -> list[tuple[bytes, bytes | None]]:
    return [(key.encode(), None if value is None else packed(value)) for key, value in records]


def _target_record(name: str, target: TargetState) -> tuple[str, Any]:
    old = "PAUSED" if target is TargetState.STOPPED else target.value
    return _TARGET + name, {"state": old, "state.v2": target.value}
