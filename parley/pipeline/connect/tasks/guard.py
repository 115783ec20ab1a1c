"""Checks before every change by a task that the task is still allowed to make it.

A task that does not stop in time is abandoned: its thread may continue, in a call that cannot be interrupted. So the
runtime checks before each call that writes, and before it reports, stores or commits anything for the task. An
abandoned task may still have written to its target: exactly-once sinks notice it by the offsets in the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.connect import groups
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder import State
from parley.pipeline.connect.offset_stores import SourceOffset
from parley.pipeline.connect.tasks.spec import Reports, TaskSpec

__all__ = ["Guard"]


class Guard:
    """The reports of one task, and its group's offsets, while it is allowed to act."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._is_abandoned = False

    def abandon(self) -> None:
        """Allow the task nothing more from now on."""
        self._is_abandoned = True

    @property
    def may_act(self) -> bool:
        return not self._is_abandoned

    def check(self) -> None:
        """Raise ConnectError if the task may not continue."""
        if not self.may_act:
            raise ConnectError("the task was abandoned: another task may have replaced it")

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        if self.may_act:
            self._reports.state(spec, state, trace)

    def topic_used(self, spec: TaskSpec, topic: str) -> None:
        if self.may_act:
            self._reports.topic_used(spec, topic)

    def stored(self, spec: TaskSpec, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        return self._reports.stored(spec, partitions)

    def encoded(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        return self._reports.encoded(spec, offsets)

    def fence(self, spec: TaskSpec) -> None:
        """As ``Reports``. Raises ConnectError if the task may not."""
        self.check()
        self._reports.fence(spec)

    def verify(self, spec: TaskSpec) -> None:
        """As ``Reports``. Raises ConnectError if the task may not."""
        self._reports.verify(spec)
        self.check()

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        """As ``Reports``. Raises ConnectError if the task may not."""
        self.check()
        self._reports.store(spec, offsets)

    def commit(self, cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a sink's offsets. Raises KafkaError, and ConnectError if the task may not, or no longer."""
        groups.commit(cluster, group, offsets, self.check)
