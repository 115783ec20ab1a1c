"""The fetch response: the data of each partition, and the response that contains them."""

from __future__ import annotations

from parley.broker.api.fetch.dependencies import FetchDependencies
from parley.broker.api.fetch.params import (
    CURRENT_LEADER_VERSION,
    NODE_ENDPOINTS_VERSION,
    SESSIONS_VERSION,
    TOPIC_IDS_VERSION,
    FetchParams,
)
from parley.broker.api.fetch.sessions import INITIAL_EPOCH, NO_SESSION, FetchSession, FetchTarget, PartitionData
from parley.broker.api.leader_errors import MOVED, current_leader, endpoints_of, withheld
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchResponse
from parley.storage.log import Log


def partition_data(index: int, log: Log) -> PartitionData:
    """Return a partition's data without records."""
    return PartitionData(
        partition_index=index,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        records=b"",
    )


def error_data(
    target: FetchTarget, error: KafkaError, params: FetchParams, dependencies: FetchDependencies
) -> PartitionData:
    """Return the data of a partition that cannot be fetched, and count the failure. An error that only the current
    leader may return is replaced if this broker may have been superseded (``leader_errors``)."""
    if target.partition is not None:
        target.partition.counters.failed_fetch_requests += 1
        if _is_doubtful(target.partition, target.offset, error, params, dependencies):
            error = withheld(error)
    data = PartitionData(
        partition_index=target.index,
        error_code=error.code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        records=b"",
    )
    if error.code in MOVED and params.context.api_version >= CURRENT_LEADER_VERSION:
        leader, epoch = current_leader(dependencies.metadata.image, target.topic, target.index)
        data.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return data


def _is_doubtful(
    partition: Partition, offset: int, error: KafkaError, params: FetchParams, dependencies: FetchDependencies
) -> bool:
    """Return True if a consumer fetches from an offset that may exist on a new leader that this broker does not know
    yet."""
    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or params.is_follower or not partition.is_open:
        return False
    return offset > partition.log.log_end_offset and dependencies.may_be_superseded()


def build_response(
    found: dict[FetchTarget, PartitionData],
    session: FetchSession | None,
    params: FetchParams,
    dependencies: FetchDependencies,
) -> FetchResponse:
    """Return the response. In a session, it contains only what is new to the client.

    If a full request asks for a session, start one if there is room.
    """
    version = params.context.api_version
    _add_tombstone_offsets(found)
    data_of = list(found.items())
    session_id = 0
    if session is not None:
        session_id = session.id
        data_of = session.select_changes(data_of)
    elif version >= SESSIONS_VERSION and params.request.session_epoch == INITIAL_EPOCH:
        session_id = dependencies.sessions.create(
            list(found),
            dependencies.purgatory,
            is_follower=params.is_follower,
            uses_ids=version >= TOPIC_IDS_VERSION,
            owner=params.context.principal,
            stores_epochs=params.request.stores_epochs,
        )
        for target, data in data_of:
            target.update_known(data)
    response = FetchResponse(session_id=session_id, responses=_by_topic(data_of))
    if version >= NODE_ENDPOINTS_VERSION:
        leaders = [data.current_leader.leader_id for _, data in data_of if data.error_code in MOVED]
        if leaders:
            response.node_endpoints = endpoints_of(
                dependencies.metadata.image, leaders, params.context.listener, FetchResponse.NodeEndpoint
            )
    return response


def render_throttled(throttle_ms: int, session: FetchSession | None) -> FetchResponse:
    """Return the response to a consumer that exceeds its quota.

    In a session, the omitted data remains new to the client, so that a later response can contain it. A full request
    does not start a session.
    """
    return FetchResponse(
        session_id=NO_SESSION if session is None else session.id, responses=[], throttle_time_ms=throttle_ms
    )


def _add_tombstone_offsets(found: dict[FetchTarget, PartitionData]) -> None:
    """Put the offset below which tombstones may be missing into the data for each replica that fetches from below it.

    A replica is recognized by its log start offset, which it sends even when it fetches as a consumer to heal a log.
    Call this after the batches have been located, because earlier compactions may have removed tombstones from them.
    Kafka's leaders use this field only in the metadata log, for followers that must start over with a snapshot
    (KIP-630).
    """
    for target, data in found.items():
        partition = target.partition
        if data.records and target.log_start_offset >= 0 and partition is not None and partition.is_open:
            removed_up_to = partition.log.tombstones_removed_up_to
            if target.offset < removed_up_to:
                data.snapshot_id = FetchResponse.SnapshotId(end_offset=removed_up_to, epoch=partition.leader_epoch)


def _by_topic(data_of: list[tuple[FetchTarget, PartitionData]]) -> list[FetchResponse.FetchableTopicResponse]:
    """Group adjacent partitions of one topic. The order of the partitions is unchanged."""
    topics: list[FetchResponse.FetchableTopicResponse] = []
    for target, data in data_of:
        if not topics or topics[-1].topic != target.topic or topics[-1].topic_id != target.topic_id:
            topics.append(
                FetchResponse.FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id, partitions=[])
            )
        topics[-1].partitions.append(data)
    return topics
