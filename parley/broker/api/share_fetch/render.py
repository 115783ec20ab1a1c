"""The response to a share fetch."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from parley.broker.api.share_fetch.acknowledging import Acknowledging
from parley.broker.api.share_fetch.dependencies import ShareDependencies
from parley.broker.api.share_fetch.sessions import ShareSession, TopicPartition
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.steps import Steps
from parley.broker.share.share_partition import Acquired
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import ShareFetchResponse
from parley.protocol.uuids import UUID
from parley.storage.log_reader import LogRead

RENDERED_IN_A_TURN: Final = 500
"""The number of partitions added to a response before the event loop serves other clients. Each takes about 5
microseconds."""


@dataclass(slots=True)
class Fetched:
    """The result of a share fetch for one partition."""

    read: LogRead | None = None
    acquired: list[Acquired] = field(default_factory=list)
    error: KafkaError | None = None
    records: Any = None
    """The batches, or the slice of the file that contains them."""

    @property
    def size(self) -> int:
        """The size of the batches in bytes."""
        return 0 if self.read is None or self.error is not None else self.read.size


_NOTHING = Fetched()


def rendering(
    dependencies: ShareDependencies,
    context: RequestContext,
    session: ShareSession,
    found: dict[TopicPartition, Fetched],
    acknowledging: Acknowledging,
) -> Steps[ShareFetchResponse]:
    """Build the response: partitions with records, errors or acknowledgements, and partitions that are new in the
    session."""
    new = [target for target, is_new in session.partitions.items() if is_new]
    topics: dict[UUID, list[ShareFetchResponse.PartitionData]] = {}
    leaders: list[int] = []
    for number, target in enumerate(dict.fromkeys((*found, *acknowledging.partitions, *new)), 1):
        refused = acknowledging.errors.get(target)
        data = _partition_data(dependencies, target, found.get(target, _NOTHING), refused)
        leaders.append(data.current_leader.leader_id)
        topics.setdefault(target.topic_id, []).append(data)
        if not number % RENDERED_IN_A_TURN:
            yield
    for target in new:
        if target in session.partitions:
            session.partitions[target] = False
    make = ShareFetchResponse.ShareFetchableTopicResponse
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=dependencies.share_partitions.settings_of(session.key.group_id).lock_duration_ms,
        responses=[make(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()],
        node_endpoints=dependencies.endpoints(context, ShareFetchResponse.NodeEndpoint, leaders),
    )


def _partition_data(
    dependencies: ShareDependencies, target: TopicPartition, fetched: Fetched, refused: KafkaError | None
) -> ShareFetchResponse.PartitionData:
    code = ErrorCode.NONE if fetched.error is None else fetched.error.code
    acknowledge_code = ErrorCode.NONE if refused is None else refused.code
    leader, epoch = dependencies.leader_of(*target, code or acknowledge_code)
    acquired = ShareFetchResponse.AcquiredRecords
    return ShareFetchResponse.PartitionData(
        partition_index=target.partition,
        error_code=code,
        error_message=None if fetched.error is None else str(fetched.error) or None,
        acknowledge_error_code=acknowledge_code,
        acknowledge_error_message=None if refused is None else str(refused) or None,
        current_leader=ShareFetchResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
        records=fetched.records if fetched.records is not None and not code else b"",
        acquired_records=[]
        if code
        else [
            acquired(first_offset=first, last_offset=last, delivery_count=min(count, 32_767))
            for first, last, count in fetched.acquired
        ],
    )
