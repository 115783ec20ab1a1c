"""Decisions about brokers: one joins, one is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import candidates, elect_leader
from parley.broker.metadata.changes import BrokerRegistered, BrokerUnregistered, Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError

UncleanAllowed = Callable[[MetadataImage, str], bool]
"""Whether a topic may elect a leader outside its ISR (``unclean.leader.election.enable``)."""


def register_broker(
    image: MetadataImage, registration: BrokerRegistration, unclean: UncleanAllowed
) -> Decision[BrokerRegistration]:
    """Take in a broker under a new epoch.

    A process that comes back under a new epoch (its session had ended, say, while the store was away) goes on with what
    it led. Of another process, what it led is given up first, so that a leader that was restarted never goes on under
    its old leader epoch. A registration whose epoch is not above the one known changes nothing: who was fenced comes
    back under a higher one only.
    """
    known = image.brokers.get(registration.broker_id)
    if known is not None and registration.epoch <= known.epoch:
        return Decision((), known)
    changes: list[Change] = []
    joined = replace(registration, fenced=False)
    if known is not None and not known.fenced:
        if known.incarnation_id == registration.incarnation_id:
            return Decision((BrokerRegistered(joined),), joined)
        changes += fence_broker(image, registration.broker_id, unclean).changes
        image = image.with_changes(changes)
    changes.append(BrokerRegistered(joined))
    changes += _elections(image, image.with_changes(changes[-1:]), joined.broker_id, unclean)
    return Decision(tuple(changes), joined)


def fence_broker(
    image: MetadataImage, broker_id: int, unclean: UncleanAllowed, *, epoch: int | None = None
) -> Decision[bool]:
    """Fence a broker that is gone: its epoch stays on record, its leaders move to living replicas in sync.

    With an ``epoch`` nothing happens to a broker that has registered anew since. Answers whether it was fenced now.

    The registration comes after the elections, as it reaches the store: should the writes be cut off in the middle, the
    next controller must not take the broker, if it comes back, for one whose leaders have all been settled.
    """
    known = image.brokers.get(broker_id)
    if known is None or known.fenced or epoch not in (None, known.epoch):
        return Decision((), False)
    fenced = BrokerRegistered(replace(known, fenced=True))
    after = image.with_changes((fenced,))
    return Decision((*_elections(image, after, broker_id, unclean), fenced), True)


def take_replicas_offline(
    image: MetadataImage, broker_id: int, epoch: int, replicas: Iterable[tuple[UUID, int]], unclean: UncleanAllowed
) -> Decision[None]:
    """A living broker has lost the disk of some replicas: they neither lead nor count as in sync, if another can.

    ``replicas`` are topic ids and partitions; those that the image does not know are gone, and nothing is done. Raises
    STALE_BROKER_EPOCH for a broker that is not registered under this epoch.
    """
    known = image.brokers.get(broker_id)
    if known is None or known.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered under epoch {epoch}.")
    live = _live(image)
    changes: list[Change] = []
    for topic_id, index in dict.fromkeys(replicas):
        topic = image.topic_names.get(topic_id, "")
        state = image.partition(topic, index)
        if state is not None and broker_id in state.replicas:
            elected = elect_leader(state, candidates(state, live) - {broker_id}, unclean=unclean(image, topic))
            if elected is not state:
                changes.append(PartitionChanged(topic, index, elected))
    return Decision(tuple(changes), None)


def hand_over_leadership(
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
    changes = fence_broker(image, broker_id, unclean).changes
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


def _live(image: MetadataImage) -> set[int]:
    return {broker.broker_id for broker in image.live_brokers()}


def _elections(before: MetadataImage, image: MetadataImage, broker_id: int, unclean: UncleanAllowed) -> list[Change]:
    """The partitions of one broker whose leader or ISR its coming or going, after ``before``, changes."""
    lived, live = _live(before), _live(image)
    changes: list[Change] = []
    for topic in image.topics.values():
        may_be_unclean: bool | None = None
        for index, state in enumerate(topic.partitions):
            if broker_id not in state.replicas:
                continue
            if may_be_unclean is None:
                may_be_unclean = unclean(image, topic.name)
            failed = lived - candidates(state, lived)
            elected = elect_leader(state, live - failed, unclean=may_be_unclean)
            if elected is not state:
                changes.append(PartitionChanged(topic.name, index, elected))
    return changes


def _registered(image: MetadataImage, broker_id: int) -> BrokerRegistration:
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker is registered with the id {broker_id}.")
    return known
