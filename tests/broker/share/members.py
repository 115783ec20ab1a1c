"""Members of share groups without a network: a broker's data path, and an in-memory persister."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parley.broker.api.share_fetch.handler import ShareFetchApi
from parley.broker.coordinators.share_state.persister import (
    NO_CHECK,
    UNINITIALIZED_OFFSET,
    ShareState,
    ShareStateSummary,
    StateBatch,
)
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.replication.partition import Isolation
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.session import anonymous
from parley.broker.share.settings import ShareSettings
from parley.broker.share.share_partition import Limits
from parley.broker.share.share_partitions import SharePartitions
from parley.protocol.codec import decode, encode
from parley.protocol.errors import KafkaError
from parley.protocol.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from parley.protocol.uuids import UUID
from tests.broker.api.bench import NOW_MS, Bench

LOCK_S = 30
GROUP = "group"


class MemoryPersister:
    """Keeps the state of share partitions, record by record.

    ``refuse`` is the error that it raises, ``refuse_write`` the error that only writes raise. ``gate`` delays writes.
    """

    def __init__(self) -> None:
        self.start: dict[Any, int] = {}
        self.records: dict[Any, dict[int, tuple[int, int]]] = {}
        self.refuse: KafkaError | None = None
        self.refuse_write: KafkaError | None = None
        self.gate: asyncio.Event | None = None
        self.writes = 0

    async def initialize(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        state_epoch: int,
        start_offset: int,
        leader_epoch: int = NO_CHECK,
    ) -> None:
        refused = self.refuse_write
        if leader_epoch != NO_CHECK and refused is not None:
            raise refused
        key = (group_id, topic_id, partition)
        self.start[key], self.records[key] = start_offset, {}

    async def read(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        if self.refuse is not None:
            raise self.refuse
        key = (group_id, topic_id, partition)
        batches = tuple(StateBatch(each, each, *kept) for each, kept in sorted(self.records.get(key, {}).items()))
        return ShareState(0, self.start.get(key, UNINITIALIZED_OFFSET), -1, batches)

    async def write(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        if self.gate is not None:
            await self.gate.wait()
        refused = self.refuse_write or self.refuse
        if refused is not None:
            raise refused
        self.writes += 1
        key = (group_id, topic_id, partition)
        self.start[key] = start_offset
        records = self.records.setdefault(key, {})
        for batch in batches:
            for each in range(batch.first_offset, batch.last_offset + 1):
                records[each] = (batch.delivery_state, batch.delivery_count)
        self.records[key] = {each: kept for each, kept in records.items() if each >= start_offset}

    def forget(self) -> None:
        """Forget everything, and raise no more errors."""
        self.start, self.records, self.refuse = {}, {}, None

    async def delete(self, group_id: str, topic_id: UUID, partition: int, state_epoch: int) -> None:
        self.start.pop((group_id, topic_id, partition), None)

    async def summary(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareStateSummary:
        state = await self.read(group_id, topic_id, partition, leader_epoch)
        return ShareStateSummary(0, state.start_offset, -1, leader_epoch)


class ShareBench(Bench):
    """A broker that serves share groups, which all have the same settings."""

    def __init__(self, directory: Path, authorization: Authorization = EVERYONE_MAY) -> None:
        super().__init__(directory)
        self.persister = MemoryPersister()
        self.settings = ShareSettings(LOCK_S * 1000, Limits(2_000, 5), "earliest", Isolation.READ_UNCOMMITTED, True)
        self.sessions_max = 10
        self.share = SharePartitions(
            self.persister, lambda group: self.settings, self.purgatories.fetch, self.tasks, wall_ms=lambda: NOW_MS
        )
        self.api = ShareFetchApi(
            self.share,
            self.partitions,
            self.metadata,
            self.tasks,
            sessions_max=lambda: self.sessions_max,
            is_offered=lambda: True,
            max_bytes=1 << 30,
            authorization=authorization,
        )

    def member(self, name: str, *topics: UUID) -> ShareMember:
        """Return a member that fetches partition 0 of each topic."""
        return ShareMember(self, name, topics)


class ShareMember:
    """A member of the group, with its own connection and session."""

    def __init__(self, bench: ShareBench, name: str, topics: Sequence[UUID]) -> None:
        self.bench = bench
        self.name = name
        self.topics = topics
        self.epoch = 0
        self.acknowledges_all = False
        """Set if acknowledgements are for all topics, not only for the first."""
        self.client = ConnectedClient(anonymous("127.0.0.1", "PLAINTEXT"), 1)

    def begin_fetch(
        self, *acknowledged: tuple[int, int, list[int]], epoch: int | None = None, **request: Any
    ) -> asyncio.Future[ShareFetchResponse]:
        """Send a fetch with acknowledgements for the first topic."""
        epoch = self.epoch if epoch is None else epoch
        values = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500, **request}
        asked = ShareFetchRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=epoch,
            topics=self._topics(ShareFetchRequest, "FetchTopic", "FetchPartition", acknowledged, epoch),
            forgotten_topics_data=[],
            **values,
        )
        self.epoch = epoch + 1
        return asyncio.ensure_future(self._response(ShareFetchResponse, self.bench.api.fetch, 78, asked))

    async def fetch(self, *acknowledged: tuple[int, int, list[int]], **request: Any) -> ShareFetchResponse:
        """Fetch, and return the response as the member decodes it."""
        return await self.begin_fetch(*acknowledged, **request)

    async def acquired(self, *acknowledged: tuple[int, int, list[int]], **request: Any) -> list[tuple[int, int, int]]:
        """Fetch, and return the acquired records of all partitions: first offset, last offset, delivery count."""
        response = await self.fetch(*acknowledged, **request)
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for topic in response.responses
            for partition in topic.partitions
            for each in partition.acquired_records
        ]

    async def acknowledge(
        self, *acknowledged: tuple[int, int, list[int]], epoch: int | None = None, is_renew_ack: bool = False
    ) -> int:
        """Acknowledge records of the first topic. Returns the error code of the partition."""
        epoch = self.epoch if epoch is None else epoch
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=epoch,
            is_renew_ack=is_renew_ack,
            topics=self._topics(
                ShareAcknowledgeRequest, "AcknowledgeTopic", "AcknowledgePartition", acknowledged, epoch
            ),
        )
        self.epoch = epoch + 1
        response = await self._response(ShareAcknowledgeResponse, self.bench.api.acknowledge, 79, request)
        codes = [partition.error_code for topic in response.responses for partition in topic.partitions]
        return codes[0] if codes else 0

    def disconnect(self) -> None:
        """Lose the connection."""
        for ended in tuple(self.client.on_disconnect.values()):
            ended()

    def _topics(self, request: Any, topic: str, partition: str, acknowledged: Any, epoch: int) -> list[Any]:
        make = request.AcknowledgementBatch
        batches = [
            make(first_offset=low, last_offset=high, acknowledge_types=types) for low, high, types in acknowledged
        ]
        named = self.topics if epoch == 0 or self.acknowledges_all else self.topics[:1] if batches else ()
        return [
            getattr(request, topic)(
                topic_id=each,
                partitions=[
                    getattr(request, partition)(
                        partition_index=0,
                        acknowledgement_batches=batches if each == self.topics[0] or self.acknowledges_all else [],
                    )
                ],
            )
            for each in named
        ]

    async def _response(self, response: Any, handler: Any, key: int, request: Any) -> Any:
        context = RequestContext(key, 2, 1, "test", self.client, 0.0)
        answer = handler(context, request)
        while not isinstance(answer, response):
            answer = await answer
        for topic in answer.responses:
            for partition in topic.partitions:
                if isinstance(getattr(partition, "records", None), list):
                    partition.records = b"".join(part.read(0, part.size) for part in partition.records)
        return decode(response, 2, encode(answer, 2))
