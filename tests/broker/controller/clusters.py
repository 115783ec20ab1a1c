"""Small clusters for testing decisions, and a controller without a store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from parley.broker.controller.decision import Decide, T
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy
from parley.broker.metadata.changes import Delta, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

TOPIC, TOPIC_ID = "t", UUID(int=9)


def balanced(image: MetadataImage, topic: str) -> ElectionRules:
    return ElectionRules()


def min_isr_2(image: MetadataImage, topic: str) -> ElectionRules:
    return ElectionRules(2)


def aggressive(image: MetadataImage, topic: str) -> ElectionRules:
    return ElectionRules(recovery=RecoveryStrategy.AGGRESSIVE)


def epoch_of(broker_id: int) -> int:
    return 10 + broker_id


def image_with(*states: PartitionState, brokers: int = 5, fenced: Collection[int] = ()) -> MetadataImage:
    """Return an image with the brokers 1 to ``brokers`` and a topic with these partitions."""
    registered = {
        i: BrokerRegistration(i, epoch_of(i), UUID(int=i), (), fenced=i in fenced) for i in range(1, brokers + 1)
    }
    image = replace(MetadataImage("c"), brokers=registered)
    return image.with_changes([TopicCreated(TopicImage(TOPIC, TOPIC_ID, states))])


class DirectController:
    """A controller without a store. While it is active, each decision takes effect immediately."""

    def __init__(self, image: MetadataImage) -> None:
        self.metadata = Metadata(image)
        self.is_active = True

    async def submit(self, decide: Decide[T], *, waits_for_store: bool = False, is_slow: bool = False) -> T:
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        decision = decide(self.metadata.image)
        self.metadata.apply(Delta(0, self.metadata.image.version + 1, decision.changes))
        return decision.result
