"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of consumer groups.

The response to a commit is sent when the in-sync replicas of the offsets topic have stored the commit. While the group
is being loaded, the commit waits. OffsetFetch is served from memory, and returns only commits that the in-sync replicas
have stored. A partition without a committed offset gets offset -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import TypeVar

from parley.broker.api.requested_names import once
from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.committed_offsets import CommittedOffset
from parley.broker.coordinators.groups.consumer.commits import check_may_read
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.offset_decisions import Committer
from parley.broker.coordinators.groups.streams import commits as streams_commits
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from parley.protocol.schema import ZERO_UUID
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID

BY_TOPIC_ID_SINCE = 10
"""The first version of OffsetCommit and OffsetFetch that identifies topics by id."""

P = TypeVar("P", OffsetFetchResponse.OffsetFetchResponsePartition, OffsetFetchResponse.OffsetFetchResponsePartitions)
"""A partition in a response for one group, or for several groups."""

LAST_MS = 2**63 - 1
"""The largest timestamp. An offset with this expiry never expires."""
LOAD_MAX_S = 10.0
"""The maximum time, in seconds, that a commit waits for its group to be loaded. librdkafka does not retry a rejected
commit."""
NOT_COMMITTED = CommittedOffset(offset=NO_OFFSET, leader_epoch=NO_EPOCH, metadata="", commit_timestamp_ms=-1)


class GroupOffsetsApi:
    """Handlers of requests about the committed offsets of groups that this broker coordinates."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        metadata: Metadata,
        config: Callable[[], BrokerConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._config = config
        self._now_ms = now_ms

    def routes(self) -> dict[int, Handler]:
        return {
            OffsetCommitRequest.API_KEY: self.commit,
            OffsetFetchRequest.API_KEY: self.fetch,
            OffsetDeleteRequest.API_KEY: self.delete,
        }

    # --- OffsetCommit ---

    async def commit(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Commit offsets. Each partition's offset is accepted or rejected independently. An error of the group or of
        the committer is returned for each partition that is not rejected for another reason."""
        codes: dict[tuple[str, int], ErrorCode] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        names = [self._topic_name(topic.name, topic.topic_id) for topic in request.topics]
        committer = Committer(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            context.api_version,
        )
        await self._coordinator.runtime.until_loaded(LOAD_MAX_S, request.group_id)
        try:
            self._coordinator.check_commit(committer)
            for name, topic in zip(names, request.topics, strict=True):
                for partition in topic.partitions:
                    code = self._refusal(name, topic.topic_id, partition)
                    codes[name or str(topic.topic_id), partition.partition_index] = code
                    if code is ErrorCode.NONE and name is not None:
                        accepted[name, partition.partition_index] = self._committed(request, partition)
            if accepted:
                await self._coordinator.commit(committer, accepted)
        except KafkaError as error:
            stored_code = error.code
            for name, topic in zip(names, request.topics, strict=True):
                for partition in topic.partitions:
                    key = (name or str(topic.topic_id), partition.partition_index)
                    if codes.get(key, ErrorCode.NONE) is ErrorCode.NONE:
                        codes[key] = stored_code
        return _commit_response(request, names, codes)

    def _topic_name(self, name: str, topic_id: UUID) -> str | None:
        return name or self._metadata.image.topic_names.get(topic_id)

    def _refusal(
        self, name: str | None, topic_id: UUID, partition: OffsetCommitRequest.OffsetCommitRequestPartition
    ) -> ErrorCode:
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self._metadata.image.partition(name, partition.partition_index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(partition.committed_metadata or "") > self._config().offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(
        self, request: OffsetCommitRequest, partition: OffsetCommitRequest.OffsetCommitRequestPartition
    ) -> CommittedOffset:
        now_ms = self._now_ms()
        # Only version 1 contains a client timestamp; -1 means the time of receipt.
        dated_ms = partition.commit_timestamp if partition.commit_timestamp >= 0 else now_ms
        return CommittedOffset(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            commit_timestamp_ms=dated_ms,
            expire_at_ms=min(dated_ms + request.retention_time_ms, LAST_MS) if request.retention_time_ms >= 0 else -1,
        )

    # --- OffsetFetch ---

    async def fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Return the committed offsets of one group or, from version 8 on, of several groups (KIP-709). A group that
        cannot be read gets an error code."""
        if context.api_version >= 8:
            groups = [
                await self._fetch_group(context, request, requested) for requested in _groups_once(request.groups)
            ]
            return OffsetFetchResponse(groups=groups)
        topics: list[tuple[str, list[int]]] | None = None
        if request.topics is not None:
            named = once(((t.name, t.partition_indexes) for t in request.topics), int)
            topics = [(name, list(indexes)) for name, indexes in named.items()]
        try:
            return await self._coordinator.read(
                request.group_id, lambda group: self._fetched_topics(group, topics, request.require_stable)
            )
        except KafkaError as error:
            return _failed_fetch(error.code, topics, context.api_version)

    @staticmethod
    def _fetched_topics(
        group: Group | None, topics: list[tuple[str, list[int]]] | None, require_stable: bool
    ) -> OffsetFetchResponse:
        kind = OffsetFetchResponse.OffsetFetchResponsePartition
        return OffsetFetchResponse(
            error_code=ErrorCode.NONE,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopic(
                    name=name,
                    partitions=[_fetched(kind, group, (name, index), require_stable) for index in indexes],
                )
                for name, indexes in (_all_topics(group) if topics is None else topics)
            ],
        )

    async def _fetch_group(
        self,
        context: RequestContext,
        request: OffsetFetchRequest,
        requested: OffsetFetchRequest.OffsetFetchRequestGroup,
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        try:
            look = partial(self._fetched_group, context, requested, request.require_stable)
            return await self._coordinator.read(requested.group_id, look)
        except KafkaError as error:
            return OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=requested.group_id, topics=[], error_code=error.code
            )

    def _fetched_group(
        self,
        context: RequestContext,
        requested: OffsetFetchRequest.OffsetFetchRequestGroup,
        require_stable: bool,
        group: Group | None,
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        is_member = requested.member_id is not None or requested.member_epoch >= 0
        if is_member and group is not None and group.consumer is not None:
            check_may_read(group.consumer, requested.member_id or "", requested.member_epoch)
        if is_member and group is not None and group.streams is not None:
            streams_commits.check_may_read(group.streams, requested.member_id or "", requested.member_epoch)
        result = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=requested.group_id, topics=[])
        by_id = context.api_version >= BY_TOPIC_ID_SINCE
        wanted: list[tuple[str | None, UUID, list[int]]]
        if requested.topics is None:
            wanted = [(name, self._topic_id(name), indexes) for name, indexes in _all_topics(group)]
        else:
            named = once((((t.name, t.topic_id), t.partition_indexes) for t in requested.topics), int)
            wanted = [(self._topic_name(*topic), topic[1], list(indexes)) for topic, indexes in named.items()]
        kind = OffsetFetchResponse.OffsetFetchResponsePartitions
        for name, topic_id, indexes in wanted:
            if by_id and requested.topics is None and topic_id == ZERO_UUID:
                continue  # a deleted topic has no id
            if name is None:
                partitions = [_uncommitted(kind, index, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
            else:
                partitions = [_fetched(kind, group, (name, index), require_stable) for index in indexes]
            result.topics.append(
                OffsetFetchResponse.OffsetFetchResponseTopics(name=name or "", topic_id=topic_id, partitions=partitions)
            )
        return result

    def _topic_id(self, name: str) -> UUID:
        topic = self._metadata.image.topics.get(name)
        return ZERO_UUID if topic is None else topic.topic_id

    # --- OffsetDelete ---

    async def delete(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Delete committed offsets of topics that no member of the group subscribes to (KIP-496). A partition of a
        subscribed topic gets GROUP_SUBSCRIBED_TO_TOPIC.

        For an error of the group, the response contains only an error code, for example GROUP_ID_NOT_FOUND.
        """
        named = once(((t.name, t.partitions) for t in request.topics), attrgetter("partition_index"))
        wanted = {
            (topic, index): self._undeletable(topic, index)
            for topic, partitions in named.items()
            for index in partitions
        }
        try:
            codes = await self._coordinator.delete_offsets(request.group_id, wanted)
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code, topics=[])
        return OffsetDeleteResponse(
            error_code=ErrorCode.NONE,
            topics=[
                OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteResponse.OffsetDeleteResponsePartition(
                            partition_index=index, error_code=codes[topic, index]
                        )
                        for index in partitions
                    ],
                )
                for topic, partitions in named.items()
            ],
        )

    def _undeletable(self, topic: str, partition: int) -> ErrorCode:
        known = self._metadata.image.partition(topic, partition) is not None
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _commit_response(
    request: OffsetCommitRequest, names: Iterable[str | None], codes: dict[tuple[str, int], ErrorCode]
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[name or str(topic.topic_id), partition.partition_index],
                    )
                    for partition in topic.partitions
                ],
            )
            for name, topic in zip(names, request.topics, strict=True)
        ]
    )


def _groups_once(
    groups: Iterable[OffsetFetchRequest.OffsetFetchRequestGroup],
) -> list[OffsetFetchRequest.OffsetFetchRequestGroup]:
    """Merge the entries that name the same group. If one entry requests all topics, the merged entry does, too."""
    found: dict[str, OffsetFetchRequest.OffsetFetchRequestGroup] = {}
    for requested in groups:
        first = found.setdefault(requested.group_id, requested)
        if first is requested:
            continue
        if first.topics is None or requested.topics is None:
            first.topics = None
        else:
            first.topics += requested.topics
    return list(found.values())


def _all_topics(group: Group | None) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(group.offsets if group is not None else ()):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _fetched(kind: type[P], group: Group | None, partition: TopicPartition, require_stable: bool) -> P:
    """Return a group's committed offset, which is -1 if there is none. Return an error if the client requires a stable
    offset and a transaction is about to change it (KIP-447)."""
    if group is None:
        return _uncommitted(kind, partition[1])
    if require_stable and group.has_pending_offset(partition):
        return _uncommitted(kind, partition[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
    committed = group.offsets.get(partition, NOT_COMMITTED)
    return kind(
        partition_index=partition[1],
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=ErrorCode.NONE,
    )


def _uncommitted(kind: type[P], index: int, code: ErrorCode = ErrorCode.NONE) -> P:
    return kind(
        partition_index=index,
        committed_offset=NOT_COMMITTED.offset,
        committed_leader_epoch=NOT_COMMITTED.leader_epoch,
        metadata=NOT_COMMITTED.metadata,
        error_code=code,
    )


def _failed_fetch(code: ErrorCode, topics: list[tuple[str, list[int]]] | None, version: int) -> OffsetFetchResponse:
    """Return an error response. OffsetFetch before v2 has no top-level error code, so each partition contains it."""
    if version >= 2:
        return OffsetFetchResponse(error_code=code, topics=[])
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    _uncommitted(OffsetFetchResponse.OffsetFetchResponsePartition, index, code) for index in indexes
                ],
            )
            for name, indexes in topics or ()
        ]
    )
