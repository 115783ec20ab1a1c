"""Checks, before a task changes anything, that the task is still allowed to act.

A task that does not stop in time is abandoned: its thread may continue, in a call that cannot be interrupted. Therefore
the runtime checks before each call that writes, and before it reports, stores or commits anything for the task. An
abandoned task may still have written to its target: exactly-once sinks notice it by the offsets in the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.connect import groups
from parley.pipeline.connect.distributed.offset_topic import TopicOffsetStore
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder_results import State
from parley.pipeline.connect.offset_stores import ConnectorOffsets, OffsetStore, SourceOffset
from parley.pipeline.connect.tasks.spec import TaskSpec, WorkerEvents


class Guard:
    """Reports a task's events, and stores and commits its offsets, while the task is allowed to act.

    ``store`` returns the store of its source offsets.
    """

    def __init__(self, spec: TaskSpec, events: WorkerEvents, store: Callable[[], OffsetStore]) -> None:
        self.offsets = ConnectorOffsets(spec.id.connector, store)
        self._spec = spec
        self._events = events
        self._store = store
        self._is_abandoned = False

    def abandon(self) -> None:
        """Reject everything that the task tries to write, report or commit from now on."""
        self._is_abandoned = True

    @property
    def may_act(self) -> bool:
        return not self._is_abandoned

    def check(self) -> None:
        """Raise ConnectError if the task has been abandoned."""
        if not self.may_act:
            raise ConnectError("the task was abandoned: another task may have replaced it")

    def state(self, state: State, trace: str | None) -> None:
        if self.may_act:
            self._events.task_state(self._spec.id, state, trace)

    def topic_used(self, topic: str) -> None:
        if self.may_act:
            self._events.topic_used(self._spec.id, topic)

    def fence(self) -> None:
        """Fence all older tasks of the connector (KIP-618). Blocks. Raises ConnectError."""
        self.check()
        self._events.fence(self._spec.id)

    def verify(self) -> None:
        """Raise ConnectError if newer tasks of the connector were committed, if another worker runs the task, or if the
        task has been abandoned.
        """
        if self._spec.exactly_once is not None:
            self._events.verify(self._spec.id, self._spec.exactly_once.generation)
        self.check()

    def store(self, offsets: Sequence[SourceOffset]) -> None:
        """Store source offsets. They are durable when this returns. Raises ConnectError if they may not be, or if the
        task has been abandoned.
        """
        self.check()
        self._store().store(self._spec.id.connector, offsets)

    def encoded(self, offsets: Sequence[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        """Return source offsets as records of their topic, in pairs of key and value; the value is None to delete an
        offset. Raises ConnectError if the task has been abandoned.
        """
        self.check()
        return cast(TopicOffsetStore, self._store()).encoded(self._spec.id.connector, offsets)

    def commit(self, cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a sink's offsets. Raises KafkaError, or ConnectError if the task has been abandoned."""
        groups.commit(cluster, group, offsets, self.check)
