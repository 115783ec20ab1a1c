"""The acknowledgements of one request. They are processed immediately, and the response waits until they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from parley.broker.api.share_fetch.dependencies import ShareDependencies
from parley.broker.api.share_fetch.sessions import ShareSession, TopicPartition
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.steps import Steps, each_of
from parley.broker.share.acknowledgements import ACCEPT, REJECT, RELEASE, RENEW, AcknowledgementBatch, acknowledged
from parley.broker.share.leading import LedSharePartition
from parley.protocol.errors import ErrorCode, KafkaError

RELEASED_IN_A_TURN: Final = 500
"""The number of partitions of an ended session that are released before the event loop serves other clients."""


class Acknowledging:
    """The acknowledgements of one request."""

    def __init__(self, dependencies: ShareDependencies, context: RequestContext, group_id: str, member_id: str) -> None:
        self._dependencies = dependencies
        self._context = context
        self._group_id = group_id
        self._member_id = member_id
        self._storing: list[tuple[TopicPartition, asyncio.Future[None] | None]] = []
        self._releasing: list[asyncio.Future[None]] = []
        self.errors: dict[TopicPartition, KafkaError] = {}
        """The partitions whose acknowledgements were refused or could not be stored, with the errors."""

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions with acknowledgements, including those in ``errors``."""
        return dict.fromkeys((*(target for target, _ in self._storing), *self.errors))

    @property
    def is_done(self) -> bool:
        """True if no acknowledgement waits for the share coordinator."""
        storing = (*(future for _, future in self._storing), *self._releasing)
        return all(future is None or future.done() for future in storing)

    def take(self, target: TopicPartition, batches: Sequence[Any], *, may_renew: bool) -> None:
        """Process a partition's acknowledgements: either all of them or none take effect.

        Call this for each entry of the request, even if it repeats a partition. Adds an error to ``errors``.
        """
        try:
            checked = acknowledged(batches, may_renew=may_renew)
            led = self._led(target)
            self._storing.append((target, led.acknowledge(self._member_id, checked)))
            _count(self._dependencies.share_partitions.metrics, checked)
        except KafkaError as error:
            self.errors[target] = error

    def _led(self, target: TopicPartition) -> LedSharePartition:
        self._dependencies.find(self._context, target)
        led = self._dependencies.share_partitions.get(SharePartitionKey(self._group_id, *target))
        if led is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No member has acquired records of this partition.")
        if not led.is_active:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The share partition is being loaded.")
        return led

    def release(self, session: ShareSession) -> None:
        """Release the records that the session's member has acquired. The response does not contain these
        partitions."""
        self._releasing += filter(None, released(self._dependencies, session))

    async def stored(self) -> None:
        """Wait until all acknowledgements have been stored or have failed. Adds the failures to ``errors``. Failed
        releases are ignored: those records are released when their lock expires."""
        for target, future in self._storing:
            if future is None:
                continue
            try:
                await asyncio.shield(future)
            except KafkaError as error:
                self.errors[target] = error
        self._storing = [(target, None) for target, _ in self._storing]
        for future in self._releasing:
            with suppress(KafkaError):  # the records are then released when their lock expires
                await asyncio.shield(future)


def released(dependencies: ShareDependencies, session: ShareSession) -> list[asyncio.Future[None] | None]:
    """Release the records that the session's member has acquired. Returns a future per partition that completes when
    the release is stored, or None if there is nothing to wait for."""
    return [_released(dependencies, session, target) for target in session.partitions]


def releasing(dependencies: ShareDependencies, session: ShareSession) -> Steps[None]:
    """Release the records that the session's member has acquired, in steps. Does not wait until the release is
    stored."""
    return each_of(list(session.partitions), RELEASED_IN_A_TURN, partial(_released, dependencies, session))


def _released(
    dependencies: ShareDependencies, session: ShareSession, target: TopicPartition
) -> asyncio.Future[None] | None:
    led = dependencies.share_partitions.get(SharePartitionKey(session.key.group_id, *target))
    return led.release_member(session.key.member_id) if led is not None and led.is_active else None


def _count(metrics: ShareGroupMetrics, batches: Iterable[AcknowledgementBatch]) -> None:
    for first, last, types in batches:
        each = last - first + 1 if len(types) == 1 else 1
        metrics.accepted += types.count(ACCEPT) * each
        metrics.released += types.count(RELEASE) * each
        metrics.rejected += types.count(REJECT) * each
        metrics.renewed += types.count(RENEW) * each
