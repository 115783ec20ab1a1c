"""Decisions about brokers: one joins, one is gone."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from broker.controller.decision import Decision
from broker.controller.election import elect_leader
from broker.metadata.changes import BrokerRegistered, Change, PartitionChanged
from broker.metadata.image import MetadataImage
from broker.metadata.types import BrokerRegistration

UncleanAllowed = Callable[[MetadataImage, str], bool]
"""Whether a topic may elect a leader outside its ISR (``unclean.leader.election.enable``)."""


def broker_joined(
    image: MetadataImage, registration: BrokerRegistration, unclean: UncleanAllowed
) -> Decision[BrokerRegistration]:
    """Take in a broker, or a new incarnation of one.

    What an earlier incarnation led is given up first, so that a leader that was restarted never goes on under its old
    leader epoch. A registration that is known already, or older than the one known, changes nothing.
    """
    known = image.brokers.get(registration.broker_id)
    if known is not None and (
        registration.epoch < known.epoch or (registration.epoch == known.epoch and not known.fenced)
    ):
        return Decision((), known)
    changes: list[Change] = []
    if known is not None and not known.fenced:
        changes += broker_lost(image, registration.broker_id, unclean).changes
        image = image.with_changes(changes)
    joined = replace(registration, fenced=False)
    changes.append(BrokerRegistered(joined))
    changes += _elections(image.with_changes(changes[-1:]), joined.broker_id, unclean)
    return Decision(tuple(changes), joined)


def broker_lost(image: MetadataImage, broker_id: int, unclean: UncleanAllowed) -> Decision[bool]:
    """Fence a broker that is gone: its epoch stays on record, its leaders move to living replicas in sync."""
    known = image.brokers.get(broker_id)
    if known is None or known.fenced:
        return Decision((), False)
    fenced = BrokerRegistered(replace(known, fenced=True))
    after = image.with_changes((fenced,))
    return Decision((fenced, *_elections(after, broker_id, unclean)), True)


def _elections(image: MetadataImage, broker_id: int, unclean: UncleanAllowed) -> list[Change]:
    """The partitions of one broker whose leader or ISR its coming or going changes."""
    live: Container[int] = {broker.broker_id for broker in image.live_brokers()}
    changes: list[Change] = []
    for topic in image.topics.values():
        may_be_unclean: bool | None = None
        for index, state in enumerate(topic.partitions):
            if broker_id not in state.replicas:
                continue
            if may_be_unclean is None:
                may_be_unclean = unclean(image, topic.name)
            elected = elect_leader(state, live, unclean=may_be_unclean)
            if elected is not state:
                changes.append(PartitionChanged(topic.name, index, elected))
    return changes
