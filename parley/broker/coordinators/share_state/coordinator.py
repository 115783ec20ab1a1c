"""The share coordinator of one broker: the state of share partitions, as events of the common runtime of coordinators.

It coordinates the share partitions in those partitions of ``__share_group_state`` that this broker leads.
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
from parley.broker.coordinators.share_state.share_partition import SharePartitionKey
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
    """Return the runtime. ``delete_before`` deletes the records of a partition of the topic below an offset."""
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

    Each method raises, or its future fails, as the decision does that it submits, and as ``CoordinatorRuntime.submit``
    does. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, from ``read`` and ``write`` only if it has
    state. A negative number gets INVALID_REQUEST, and state that does not fit in a record UNKNOWN_SERVER_ERROR.
    """

    def __init__(self, runtime: CoordinatorRuntime[ShareStateShard], image: Callable[[], MetadataImage]) -> None:
        self.runtime = runtime
        self._image = image

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, leader_epoch: int) -> None:
        """Begin the state of a share partition."""
        await self._submit(key, partial(decisions.initialize, key, state_epoch, start_offset, leader_epoch))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, and fence earlier leaders of the partition."""
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
        """Store a change."""
        await self._submit_led(
            key,
            partial(
                decisions.write, key, leader_epoch, state_epoch, start_offset, delivery_complete_count, tuple(batches)
            ),
        )

    async def delete(self, key: SharePartitionKey, state_epoch: int) -> None:
        """Forget a share partition."""
        await self._submit(key, partial(decisions.delete, key, state_epoch))

    async def summarize(self, key: SharePartitionKey) -> ShareStateSummary:
        """Return the state without its batches."""
        return await self._submit(key, partial(decisions.summarize, key))

    def _check_exists(self, key: SharePartitionKey) -> None:
        name = self._image().topic_names.get(key.topic_id, "")
        if self._image().partition(name, key.partition) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _submit_led(
        self, key: SharePartitionKey, decide: Callable[[ShareStateShard, int], Decision[T]]
    ) -> Awaitable[T]:
        """Submit a leader's event. As in Kafka, the state is checked first, and then whether the topic exists."""

        def decided(shard: ShareStateShard, now_ms: int) -> Decision[T]:
            decision = decide(shard, now_ms)
            self._check_exists(key)
            return decision

        return self._submit(key, decided, exists=False)

    async def _submit(
        self, key: SharePartitionKey, decide: Callable[[ShareStateShard, int], Decision[T]], *, exists: bool = True
    ) -> T:
        self.runtime.state_of(key.text)  # raises NOT_COORDINATOR before anything else is said of the share partition
        if key.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
        if exists:
            self._check_exists(key)
        try:
            return await self.runtime.submit(key.text, decide)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Delete the share partitions of topics that were deleted."""
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
