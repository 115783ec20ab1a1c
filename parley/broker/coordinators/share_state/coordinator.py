"""The share coordinator of one broker: submits requests about share partitions to the runtime of coordinators.

It coordinates the share partitions that are stored in the partitions of ``__share_group_state`` that this broker leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.internal_topic import InternalTopic
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state import decisions
from parley.broker.coordinators.share_state.persister import ShareState, ShareStateSummary, StateBatch
from parley.broker.coordinators.share_state.pruning import PERIODIC, forget_deleted
from parley.broker.coordinators.share_state.shard import ShareStateShard, Surroundings
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.metadata.changes import Delta, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

_log = logging.getLogger(__name__)


def make_runtime(
    topic: InternalTopic,
    config: Callable[[], BrokerConfig],
    image: Callable[[], MetadataImage],
    partition_count: Callable[[], int],
    delete_before: Callable[[int, int], None],
    *,
    now_ms: Callable[[], int],
    tasks: TaskSet,
) -> CoordinatorRuntime[ShareStateShard]:
    """Return the runtime for the shards of the share coordinator.

    ``delete_before(partition, offset)`` deletes the records of a partition of the topic before an offset.
    """
    surroundings = Surroundings(config, image, topic.batch_bytes_max, delete_before, PERIODIC)
    return CoordinatorRuntime(
        topic,
        lambda partition: ShareStateShard(partition, surroundings),
        partition_count,
        now_ms=now_ms,
        timeout_ms=lambda: config().share_coordinator_write_timeout_ms,
        tasks=tasks,
    )


class ShareCoordinator:
    """The share partitions that this broker coordinates.

    Each method raises the errors of its decision and of ``CoordinatorRuntime.submit``. Each also raises
    UNKNOWN_TOPIC_OR_PARTITION if the partition does not exist (``read`` and ``write`` only if its state exists),
    INVALID_REQUEST for a negative partition, and UNKNOWN_SERVER_ERROR if the state does not fit in a record.
    """

    def __init__(self, runtime: CoordinatorRuntime[ShareStateShard], image: Callable[[], MetadataImage]) -> None:
        self.runtime = runtime
        self._image = image

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, leader_epoch: int) -> None:
        """Initialize the state of a share partition, as ``decisions.initialize`` describes."""
        await self._submit(key, partial(decisions.initialize, key, state_epoch, start_offset, leader_epoch))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state of a share partition, and fence earlier leaders of the partition. Raises INVALID_REQUEST if
        the share partition is not initialized, FENCED_LEADER_EPOCH, or the errors that the class describes."""
        return await self._submit_led(key, partial(decisions.read, key, leader_epoch))

    async def write(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Store a change in the state of a share partition, as ``Persister.write`` describes."""
        await self._submit_led(
            key,
            partial(
                decisions.write, key, leader_epoch, state_epoch, start_offset, delivery_complete_count, tuple(batches)
            ),
        )

    async def delete(self, key: SharePartitionKey, state_epoch: int) -> None:
        """Delete the state of a share partition, if there is any. Raises FENCED_STATE_EPOCH if it was initialized in a
        higher state epoch, or the errors that the class describes."""
        await self._submit(key, partial(decisions.delete, key, state_epoch))

    async def summarize(self, key: SharePartitionKey) -> ShareStateSummary:
        """Return the state of a share partition, without its batches. If it was never initialized, the result has the
        state epoch 0 and ``UNINITIALIZED_OFFSET``. Raises the errors that the class describes."""
        return await self._submit(key, partial(decisions.summarize, key))

    def _check_exists(self, key: SharePartitionKey) -> None:
        name = self._image().topic_names.get(key.topic_id, "")
        if self._image().partition(name, key.partition) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _submit_led(
        self, key: SharePartitionKey, decide: Callable[[ShareStateShard, int], Decision[T]]
    ) -> Awaitable[T]:
        """Submit a leader's event. As in Kafka, errors of the state take precedence over a missing topic."""

        def decided(shard: ShareStateShard, now_ms: int) -> Decision[T]:
            decision = decide(shard, now_ms)
            self._check_exists(key)
            return decision

        return self._submit(key, decided, exists=False)

    async def _submit(
        self, key: SharePartitionKey, decide: Callable[[ShareStateShard, int], Decision[T]], *, exists: bool = True
    ) -> T:
        self.runtime.state_of(key.text)  # raises NOT_COORDINATOR before any error about the share partition
        if key.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be negative.")
        if exists:
            self._check_exists(key)
        try:
            return await self.runtime.submit(key.text, decide)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Start deleting the share partitions of topics that a metadata change has deleted. A failure is logged."""
        if any(isinstance(change, TopicDeleted) and change.name != self.runtime.topic for change in delta.changes):
            for partition, _ in self.runtime.states():
                try:
                    forgetting = self.runtime.submit(partition, forget_deleted)
                except KafkaError as error:
                    _log_kept(partition, error)
                else:
                    forgetting.add_done_callback(partial(_forgotten, partition))


def _forgotten(partition: int, forgetting: asyncio.Future[None]) -> None:
    error = None if forgetting.cancelled() else forgetting.exception()
    if error is not None:
        _log_kept(partition, error)


def _log_kept(partition: int, error: BaseException) -> None:
    _log.warning("share partitions of a deleted topic remain", extra={"partition": partition, "error": str(error)})
