"""The common part of simulated consumers of all group protocols: find the coordinator, and read partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

from parley.protocol.errors import KafkaError
from parley.protocol.messages.group_offsets import OffsetCommitRequest
from parley.protocol.schema import Request
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.clients import REQUEST_TIMEOUT_S, Reader

COMMIT_CHANCE: Final = 0.5
"""The probability that a member commits after it has polled its partitions."""


class GroupReader(Reader):
    """A process of a consumer in a group."""

    def __init__(
        self, group: str, name: str, bootstrap: Iterable[tuple[str, int]], ledger: Ledger, rng: Random
    ) -> None:
        super().__init__(name, bootstrap, ledger, rng)
        self.is_newest = True
        """False once another process has replaced this one."""
        self.is_settled = False
        """True once the faults have ended, so that the group must make progress."""
        self.group = group
        self.positions: dict[int, int] = {}
        """The next offset to read of each partition of the member."""
        self.coordinator: int | None = None
        self.leader_epochs: dict[int, int] = {}
        """The newest known leader epochs of partitions (KIP-320)."""
        self._leaders: dict[int, tuple[int, int]] = {}
        """The leaders of partitions with their epochs, until a fetch fails."""

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or until another process has replaced this one."""
        raise NotImplementedError

    async def ask_coordinator(self, request: Request, version: int, limit_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send a request to the coordinator, and return the response, which may contain an error code. Raises
        KafkaError if there is no response. The next request then looks up the coordinator again."""
        try:
            if self.coordinator is None:
                self.coordinator = await self.client.coordinator(self.group)
            return await self.client.send(request, node=self.coordinator, version=version, timeout=limit_s)
        except KafkaError:
            self.coordinator = None
            raise

    def begin_at(self, found: Any) -> int:
        """Set a partition's position from its part of an OffsetFetch response. Returns the position, 0 if no offset is
        committed."""
        partition = found.partition_index
        self.leader_epochs[partition] = max(self.leader_epochs.get(partition, -1), found.committed_leader_epoch)
        offset: int = max(found.committed_offset, 0)
        self.positions[partition] = offset
        return offset

    async def poll(self, topic: str, partition: int) -> None:
        """Read some records of a partition from the member's position, and advance it. If that fails, pause."""
        position = self.positions[partition]
        try:
            if partition not in self._leaders:
                known_epoch = self.leader_epochs.get(partition, -1)
                self._leaders[partition] = await self._leader(topic, partition, known_epoch)
            node, self.leader_epochs[partition] = self._leaders[partition]
            after = await self._fetch(topic, partition, position, node, self.leader_epochs[partition])
        except KafkaError as error:
            self._leaders.pop(partition, None)
            await self.retry_later(f"poll {topic}-{partition}", error)
            return
        if partition in self.positions:
            self.positions[partition] = after

    def to_commit(self, topic: str, offsets: dict[int, int]) -> list[OffsetCommitRequest.OffsetCommitRequestTopic]:
        """Return the offsets as the topics of an OffsetCommit request."""
        partitions = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=self.leader_epochs.get(partition, -1),
                committed_metadata=None,
            )
            for partition, offset in offsets.items()
        ]
        return [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)]


def commit_code(answer: Any) -> int:
    """Return the first error code in the response to an OffsetCommit of one topic, or 0."""
    return next((each.error_code for each in answer.topics[0].partitions if each.error_code), 0)
