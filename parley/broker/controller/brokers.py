"""Decisions about brokers: one joins, one is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from uuid import UUID

from parley.broker.controller.decision import Decision
from parley.broker.controller.leader_choice import candidates, elect_leader
from parley.broker.metadata.changes import BrokerRegistered, Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError

UncleanAllowed = Callable[[MetadataImage, str], bool]
"""Whether a topic may elect a leader outside its ISR (``unclean.leader.election.enable``)."""


def broker_joined(
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
        changes += broker_lost(image, registration.broker_id, unclean).changes
        image = image.with_changes(changes)
    changes.append(BrokerRegistered(joined))
    changes += _elections(image, image.with_changes(changes[-1:]), joined.broker_id, unclean)
    return Decision(tuple(changes), joined)


def broker_lost(
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


def replicas_lost(
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
