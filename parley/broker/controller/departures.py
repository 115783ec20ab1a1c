"""Decisions about brokers that leave: for a while, by an orderly stop, or for good."""

from __future__ import annotations

from parley.broker.controller.brokers import UncleanAllowed, broker_lost
from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import BrokerUnregistered
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError


def broker_leaving(
    image: MetadataImage, broker_id: int, epoch: int, unclean: UncleanAllowed
) -> Decision[list[tuple[str, int]]]:
    """A broker is about to stop: its leaders move now and not when it is missed.

    The broker is fenced by it, and out of every ISR that has another living member. Answers the partitions that are
    left without a leader until it is back. Raises BROKER_ID_NOT_REGISTERED, and STALE_BROKER_EPOCH for another life
    of the broker than the present one.
    """
    known = _registered(image, broker_id)
    if epoch != known.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is registered under epoch {known.epoch}, not {epoch}."
        )
    changes = broker_lost(image, broker_id, unclean).changes
    remaining = [
        (topic, index)
        for topic, index, state in image.with_changes(changes).partitions()
        if state.leader == NO_LEADER and broker_id in state.isr
    ]
    return Decision(changes, remaining)


def unregister_broker(image: MetadataImage, broker_id: int) -> Decision[None]:
    """Forget a broker that will not come back (KIP-631).

    Partitions go on naming it as a replica until they are reassigned. Raises BROKER_ID_NOT_REGISTERED, and
    INVALID_REQUEST for a broker that is alive: it would only register again.
    """
    if not _registered(image, broker_id).fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is alive: stop it before you unregister it.")
    return Decision((BrokerUnregistered(broker_id),), None)


def _registered(image: MetadataImage, broker_id: int) -> BrokerRegistration:
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker is registered with the id {broker_id}.")
    return known
