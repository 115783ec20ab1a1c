"""The parts of the broker that share fetches and acknowledgements use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from parley.broker.api.fetch.dependencies import FetchQuotas
from parley.broker.api.leader_errors import MOVED, current_leader, endpoints_of
from parley.broker.api.share_fetch.sessions import TopicPartition
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.broker.share.share_partitions import SharePartitions
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDependencies:
    """The parts and settings of the broker that the handlers use."""

    share_partitions: SharePartitions
    partitions: HostedPartitions
    metadata: Metadata
    authorization: Authorization
    quotas: FetchQuotas
    tasks: TaskSet
    threads: Threads
    max_bytes: int
    """The size limit of every response: ``fetch.max.bytes``."""
    failures: FailureLog

    def find(self, context: RequestContext, target: TopicPartition) -> Partition:
        """Return a partition that the client may read and that this broker leads.

        Raises KafkaError: UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED, NOT_LEADER_OR_FOLLOWER,
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        name = self.metadata.image.topic_names.get(target.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.authorization.is_enforced and not self.authorization.may(
            context, Operation.READ, ResourceType.TOPIC, name
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self.partitions.find(name, target.partition)
        if partition.topic_id != target.topic_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition.check_leader()
        return partition

    def leader_of(self, topic_id: UUID, index: int, code: int) -> tuple[int, int]:
        """Return the leader and its epoch for the response if ``code`` means that another broker leads, else (-1,
        -1)."""
        name = self.metadata.image.topic_names.get(topic_id)
        return current_leader(self.metadata.image, name, index) if code in MOVED and name else (-1, -1)

    def endpoints(
        self,
        context: RequestContext,
        make: Callable[..., E],
        leaders: Iterable[int],
    ) -> list[E]:
        """Return the addresses of the leaders that a response names, each built by ``make``. Entries of -1 are
        ignored."""
        named = {leader for leader in leaders if leader >= 0}
        return endpoints_of(self.metadata.image, named, context.listener, make) if named else []
