"""How decisions that wait together become batches."""

from __future__ import annotations

from uuid import UUID

from broker.controller.controller import Controller, _Request
from broker.controller.decision import Decision
from broker.metadata.changes import Change, TopicCreated, TopicDeleted
from broker.metadata.image import MetadataImage
from broker.metadata.types import PartitionState, TopicImage


def topic(number: int, name: str = "t") -> TopicImage:
    return TopicImage(name, UUID(int=number), (PartitionState((1,), (1,), 1),))


def asking(*changes: Change) -> _Request:
    return _Request(lambda image: Decision(changes, len(image.topics)), None)  # type: ignore[arg-type]


def test_a_topic_is_not_made_in_the_batch_that_deletes_one_of_its_name() -> None:
    image = MetadataImage("c").with_changes([TopicCreated(topic(1))])
    requests = [
        asking(TopicCreated(topic(2, "other"))),
        asking(TopicDeleted("t", UUID(int=1))),
        asking(TopicCreated(topic(3))),
        asking(),
    ]
    first, after = Controller._decide(image, requests)
    assert [answer for _, answer in first.answers] == [1, 2]
    assert sorted(after.topics) == ["other"]
    second, after = Controller._decide(after, requests[len(first.answers) :])
    assert [answer for _, answer in second.answers] == [1, 2]
    assert after.topics["t"] == topic(3)
