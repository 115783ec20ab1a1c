"""How decisions that wait together become batches."""

from __future__ import annotations

from uuid import UUID

from broker.controller.controller import Controller, _Request
from broker.controller.decision import Decision
from broker.metadata.changes import Change, PartitionChanged, PartitionsAdded, TopicCreated, TopicDeleted
from broker.metadata.image import MetadataImage
from broker.metadata.types import PartitionState, TopicImage

STATE = PartitionState((1,), (1,), 1)


def topic(number: int, name: str = "t") -> TopicImage:
    return TopicImage(name, UUID(int=number), (STATE,))


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


def batches(*requests: _Request) -> list[int]:
    """How many of the requests each batch holds, of a cluster with one topic."""
    image, left, sizes = MetadataImage("c").with_changes([TopicCreated(topic(1))]), list(requests), []
    while left:
        batch, image = Controller._decide(image, left)
        sizes.append(len(batch.answers))
        left = left[sizes[-1] :]
    return sizes


def test_a_topic_grows_once_in_a_batch() -> None:
    more = asking(PartitionsAdded("t", (STATE,)))
    assert batches(more, asking(TopicCreated(topic(2, "other"))), more, asking(), more) == [2, 2, 1]


def test_a_topic_is_not_deleted_in_the_batch_that_changes_it() -> None:
    changes = PartitionsAdded("t", (STATE,)), PartitionChanged("t", 0, STATE)
    gone = asking(TopicDeleted("t", UUID(int=1)))
    for change in changes:
        assert batches(asking(change), asking(TopicCreated(topic(2, "other"))), gone) == [2, 1]
    assert batches(asking(TopicCreated(topic(2, "o"))), asking(TopicDeleted("o", UUID(int=2)))) == [1, 1]
    assert batches(asking(TopicCreated(topic(2, "o"))), gone) == [2]
