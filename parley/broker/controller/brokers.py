"""Decisions about brokers: registration, fencing, failed disks, controlled shutdown, removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import elect_leader, electable
from parley.broker.metadata.changes import BrokerRegistered, BrokerUnregistered, Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError

UncleanAllowed = Callable[[MetadataImage, str], bool]
"""True if a topic may elect a leader outside its ISR (``unclean.leader.election.enable``)."""


def register_broker(
    image: MetadataImage, registration: BrokerRegistration, unclean: UncleanAllowed
) -> Decision[BrokerRegistration]:
    """Register a broker under a new epoch.

    If the same process comes back under a new epoch (its session ended while the store was away, say), it keeps its
    leaderships. If another process takes over the broker id, the broker is fenced first, so that a restarted leader
    never goes on under its old leader epoch. A registration whose epoch is not higher than the known one changes
    nothing: a fenced broker comes back only under a higher epoch.
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
    """Fence a broker: it keeps its epoch, and its leaderships move to live replicas in the ISR.

    If ``epoch`` is given, a broker that has registered again since is left alone. Returns True if it was fenced now.

    The fenced registration is written to the store after the elections. If the writes were cut off in the middle and
    the broker came back, the next controller would otherwise believe that all its leaderships had been moved.
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
    """Take replicas out of leadership and ISR after their broker, which is alive, has lost their disk.

    A replica stays in the ISR if it is the last one there. ``replicas`` are pairs of topic id and partition; unknown
    ones are ignored. Raises STALE_BROKER_EPOCH unless the broker is registered under this epoch.
    """
    check_broker_epoch(image, broker_id, epoch)
    live = image.live_broker_ids()
    changes: list[Change] = []
    for topic_id, index in dict.fromkeys(replicas):
        topic = image.topic_names.get(topic_id, "")
        state = image.partition(topic, index)
        if state is not None and broker_id in state.replicas:
            elected = elect_leader(state, electable(state, live) - {broker_id}, unclean=unclean(image, topic))
            if elected is not state:
                changes.append(PartitionChanged(topic, index, elected))
    return Decision(tuple(changes), None)


def hand_over_leadership(
    image: MetadataImage, broker_id: int, epoch: int, unclean: UncleanAllowed
) -> Decision[list[tuple[str, int]]]:
    """Controlled shutdown: move a broker's leaderships before it stops, and fence it.

    The broker leaves every ISR that has another live member. Returns the partitions that have no leader until it is
    back. Raises BROKER_ID_NOT_REGISTERED, and STALE_BROKER_EPOCH if ``epoch`` is not the broker's present epoch.
    """
    _registered(image, broker_id)
    check_broker_epoch(image, broker_id, epoch)
    changes = fence_broker(image, broker_id, unclean).changes
    remaining = [
        (topic, index)
        for topic, index, state in image.with_changes(changes).partitions()
        if state.leader == NO_LEADER and broker_id in state.isr
    ]
    return Decision(changes, remaining)


def unregister_broker(image: MetadataImage, broker_id: int) -> Decision[None]:
    """Remove the registration of a broker that will not come back (KIP-631).

    The broker stays a replica of its partitions until they are reassigned. Raises BROKER_ID_NOT_REGISTERED, and
    INVALID_REQUEST if the broker is alive, since it would register again.
    """
    if not _registered(image, broker_id).fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is alive: stop it before you unregister it.")
    return Decision((BrokerUnregistered(broker_id),), None)


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> None:
    """Raise STALE_BROKER_EPOCH unless the broker is registered under ``epoch``."""
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered.")
    if epoch != known.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is registered under epoch {known.epoch}, not {epoch}."
        )


def _elections(before: MetadataImage, image: MetadataImage, broker_id: int, unclean: UncleanAllowed) -> list[Change]:
    """Return the changes of leader and ISR that follow from a broker's arrival or departure between the two images."""
    lived, live = before.live_broker_ids(), image.live_broker_ids()
    changes: list[Change] = []
    for topic in image.topics.values():
        may_be_unclean: bool | None = None
        for index, state in enumerate(topic.partitions):
            if broker_id not in state.replicas:
                continue
            if may_be_unclean is None:
                may_be_unclean = unclean(image, topic.name)
            failed = lived - electable(state, lived)
            elected = elect_leader(state, live - failed, unclean=may_be_unclean)
            if elected is not state:
                changes.append(PartitionChanged(topic.name, index, elected))
    return changes


def _registered(image: MetadataImage, broker_id: int) -> BrokerRegistration:
    known = image.brokers.get(broker_id)
    if known is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker is registered with the id {broker_id}.")
    return known
