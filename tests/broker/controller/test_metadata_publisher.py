"""What the controller sends to the brokers that follow it, and how they apply it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from parley.broker.controller import metadata_publisher as publisher_module
from parley.broker.controller.metadata_publisher import MetadataProgress, MetadataPublisher, MetadataUpdate, TermStart
from parley.broker.metadata import pulling as follower
from parley.broker.metadata import terms
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    ControllerElected,
    Delta,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, PartitionState, TopicImage
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import FetchMetadataResponse
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run

EPOCH = 7


def topic(number: int) -> TopicImage:
    return TopicImage(f"t{number}", UUID(int=number), (PartitionState((1,), (1,), 1),))


def registered(broker_id: int, epoch: int = 1, *, fenced: bool = False) -> BrokerRegistered:
    return BrokerRegistered(BrokerRegistration(broker_id, epoch, UUID(int=broker_id), (), fenced=fenced))


class Term:
    """A controller in office, and the metadata of a broker that follows it."""

    def __init__(self) -> None:
        self.ours = Metadata(MetadataImage("cluster"))
        self.publisher = MetadataPublisher(self.ours, Purgatory())
        self.ours.subscribe(self.publisher.apply)
        self.ours.apply(Delta(EPOCH, 0, (ControllerElected(1, EPOCH), registered(1), registered(2))))
        self.publisher.open(())
        self.theirs = Metadata(MetadataImage("cluster"))

    def create(self, *numbers: int) -> None:
        for number in numbers:
            image = self.ours.image
            self.ours.apply(Delta(EPOCH, image.version + 1, (TopicCreated(topic(number)),)))

    def update_since(self, controller_epoch: int, version: int) -> MetadataUpdate:
        if self.publisher.needs_whole(controller_epoch, version):
            run(self.publisher.encode_whole())
        return self.publisher.update_since(controller_epoch, version)

    def answer(self) -> FetchMetadataResponse:
        image = self.theirs.image
        self.publisher.keep_deltas()
        self.publisher.note_fetch(2, MetadataProgress(1, 0, image.controller_epoch, image.version))
        news = self.update_since(image.controller_epoch, image.version)
        return FetchMetadataResponse(
            controller_id=self.ours.image.controller_id,
            controller_epoch=self.ours.image.controller_epoch,
            is_whole=news.is_whole,
            steps=[FetchMetadataResponse.Step(version=s.version, changes=s.changes) for s in news.steps],
            earlier_terms=[
                FetchMetadataResponse.Term(
                    controller_epoch=each.epoch, controller_id=each.controller_id, version=each.version
                )
                for each in news.earlier_terms
            ],
        )

    def pull(self) -> FetchMetadataResponse:
        answer = self.answer()
        run(follower.apply(self.theirs, answer))
        assert self.theirs.image == self.ours.image
        return answer


def test_the_first_response_is_a_whole_image_and_the_next_ones_are_deltas() -> None:
    term = Term()
    term.create(1)
    assert term.pull().is_whole
    term.create(2, 3)
    answer = term.pull()
    assert (answer.is_whole, [step.version for step in answer.steps]) == (False, [2, 3])
    assert term.pull().steps == []


def test_a_broker_too_far_behind_gets_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "DELTAS_KEPT", 3)
    term = Term()
    term.pull()
    term.create(1, 2, 3)
    assert not term.answer().is_whole
    term.create(4)
    assert term.pull().is_whole


def test_the_deltas_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "BYTES_KEPT", 1)
    term = Term()
    term.pull()
    term.create(1)
    assert term.pull().is_whole


def test_as_many_bytes_as_allowed_are_kept_in_each_term(monkeypatch: pytest.MonkeyPatch) -> None:
    term = Term()
    term.create(1, 2)
    term.publisher.close()
    term.publisher.open(())
    monkeypatch.setattr(publisher_module, "BYTES_KEPT", 2 * len(changes_to_bytes((TopicCreated(topic(3)),))))
    term.pull()
    term.create(3, 4)
    assert not term.answer().is_whole
    term.create(5)
    assert term.pull().is_whole


def test_a_large_delta_after_a_small_one_counts_with_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "BYTES_KEPT", 250)
    term = Term()
    term.pull()
    term.create(1)
    large = replace(topic(2), name="t" * 249)
    term.ours.apply(Delta(EPOCH, term.ours.image.version + 1, (TopicCreated(large),)))
    assert term.pull().is_whole


def test_a_broker_ahead_of_the_controller_gets_the_whole_image() -> None:
    term = Term()
    term.create(1)
    version = term.ours.image.version
    assert term.update_since(EPOCH, version).steps == ()
    assert term.update_since(EPOCH, version + 1).is_whole
    assert term.update_since(EPOCH - 1, version).is_whole


def test_nothing_is_encoded_until_a_broker_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    term = Term()
    with monkeypatch.context() as patch:
        patch.delattr(publisher_module, "changes_to_bytes")
        term.create(1)
    assert term.pull().is_whole


def test_a_whole_image_is_encoded_once_for_all_brokers() -> None:
    term = Term()
    term.create(1)
    first, second = (term.update_since(0, 0).steps[0] for _ in range(2))
    assert first is second


def test_deltas_follow_a_whole_image_that_another_broker_has_caused() -> None:
    term = Term()
    term.create(1)
    term.publisher.keep_deltas()
    term.update_since(0, 0)
    term.create(2, 3)
    told: list[Delta] = []
    term.theirs.subscribe(lambda delta, image: told.append(delta))
    answer = term.pull()
    assert (answer.is_whole, [step.version for step in answer.steps]) == (True, [1, 2, 3])
    assert [delta.version for delta in told] == [3], "no subscriber sees the whole image, which may be old, alone"


def test_changes_that_do_not_follow_the_whole_image_are_refused() -> None:
    term = Term()
    term.create(1)
    term.publisher.keep_deltas()
    term.update_since(0, 0)
    term.create(2, 3)
    answer, before = term.answer(), term.theirs.image
    del answer.steps[1]
    with pytest.raises(KafkaError, match=r"Version 3 does not follow 1\."):
        run(follower.apply(term.theirs, answer))
    assert term.theirs.image is before


def test_a_whole_image_is_encoded_again_when_the_deltas_after_it_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "DELTAS_KEPT", 1)
    term = Term()
    term.publisher.keep_deltas()
    assert term.update_since(0, 0).steps[0].version == 0
    term.create(1, 2)
    assert term.update_since(0, 0).steps[0].version == 2


async def test_an_image_of_a_term_that_ended_while_it_was_encoded_is_not_sent() -> None:
    term = Term()
    encoding = asyncio.ensure_future(term.publisher.encode_whole())
    await asyncio.sleep(0)
    term.publisher.close()
    term.publisher.open(())
    term.ours.apply(Delta(EPOCH + 1, 0, (ControllerElected(2, EPOCH + 1),)))
    await encoding
    assert term.publisher.update_since(0, 0).steps == ()


def test_subscribers_get_the_changes_that_a_whole_image_brings() -> None:
    term = Term()
    term.create(1, 2)
    term.pull()
    told: list[Delta] = []
    term.theirs.subscribe(lambda delta, image: told.append(delta))
    term.ours.replace(
        MetadataImage("cluster", deleted_topics=(UUID(int=1),)).apply(
            Delta(EPOCH + 1, 0, (ControllerElected(2, EPOCH + 1), registered(1), registered(2), TopicCreated(topic(2))))
        ),
        Delta(EPOCH + 1, 0, ()),
    )
    term.publisher.open(())
    assert term.pull().is_whole
    assert told[0].changes == (ControllerElected(2, EPOCH + 1), TopicDeleted("t1", UUID(int=1)))


@pytest.mark.parametrize(
    ("earlier_terms", "continues"),
    [
        pytest.param((terms.Term(EPOCH, 1, 2),), True, id="the broker's image is the last of its term"),
        pytest.param((terms.Term(EPOCH, 1, 3), terms.Term(EPOCH + 1, 3, 5)), True, id="it is older"),
        pytest.param((terms.Term(EPOCH, 1, 1),), False, id="the store was rolled back"),
        pytest.param((terms.Term(EPOCH, 2, 2),), False, id="the store had another controller then"),
        pytest.param((terms.Term(EPOCH + 1, 3, 5),), False, id="the store does not remember that far"),
        pytest.param(
            (), False, id="the controller is of an earlier version, or has dealt with a store that was rolled back"
        ),
    ],
)
def test_a_whole_image_of_another_term_continues_only_the_history_that_the_store_remembers(
    earlier_terms: tuple[terms.Term, ...], continues: bool
) -> None:
    term = Term()
    term.create(1, 2)
    term.pull()
    told: list[Delta] = []
    term.theirs.subscribe(lambda delta, image: told.append(delta))
    term.ours.apply(Delta(EPOCH + 2, 0, (ControllerElected(2, EPOCH + 2),)))
    term.publisher.open(earlier_terms)
    term.pull()
    term.ours.apply(Delta(EPOCH + 2, 1, (TopicCreated(topic(3)),)))
    assert not term.pull().is_whole
    assert [delta.continues_history for delta in told] == [continues, True]


def next_term(term: Term, *changes: Change, remembers: bool = True) -> None:
    """Elect the same broker again. Its first image of the new term differs from its last one by ``changes``."""
    before = term.ours.image.term
    start = Delta(EPOCH + 1, 0, (ControllerElected(1, EPOCH + 1), *changes))
    term.ours.apply(start)
    term.publisher.open((before,) if remembers else (), TermStart(before, start))


def test_a_new_term_starts_with_changes_to_the_image_before_it() -> None:
    term = Term()
    term.create(1)
    term.pull()
    next_term(term, TopicCreated(topic(2)))
    term.create(3)
    answer = term.pull()
    assert (answer.is_whole, [step.version for step in answer.steps]) == (False, [0, 1])


def test_a_new_term_starts_with_a_whole_image_for_brokers_that_lag_behind() -> None:
    term = Term()
    term.pull()
    term.create(1)
    next_term(term)
    assert term.pull().is_whole


def test_a_new_term_starts_with_a_whole_image_if_the_store_does_not_remember_the_one_before_it() -> None:
    term = Term()
    term.pull()
    next_term(term, remembers=False)
    assert term.pull().is_whole


def test_a_broker_refuses_changes_to_an_image_that_the_store_does_not_remember() -> None:
    term = Term()
    term.pull()
    next_term(term)
    answer = term.answer()
    answer.earlier_terms = []
    with pytest.raises(KafkaError) as refused:
        run(follower.apply(term.theirs, answer))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_start_of_a_term_is_kept_as_long_as_the_deltas_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "DELTAS_KEPT", 1)
    term = Term()
    term.pull()
    next_term(term)
    term.create(1, 2)
    assert term.pull().is_whole


def test_a_whole_image_of_the_same_term_continues_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "DELTAS_KEPT", 1)
    term = Term()
    term.create(1)
    term.pull()
    told: list[Delta] = []
    term.theirs.subscribe(lambda delta, image: told.append(delta))
    term.create(2, 3)
    assert term.pull().is_whole
    assert [delta.continues_history for delta in told] == [True]


def test_a_delta_of_another_controller_with_the_same_epoch_is_refused() -> None:
    """After a store was rolled back, its first controller may have an epoch that another one has had before."""
    term = Term()
    term.pull()
    term.create(1)
    other = term.answer()
    other.controller_id = 2
    before = term.theirs.image
    with pytest.raises(KafkaError) as refused:
        run(follower.apply(term.theirs, other))
    assert (refused.value.code, term.theirs.image) == (ErrorCode.CORRUPT_MESSAGE, before)


def test_the_image_of_a_replaced_controller_is_refused() -> None:
    term = Term()
    old = term.answer()
    term.theirs.apply(Delta(EPOCH + 1, 0, (ControllerElected(2, EPOCH + 1),)))
    before = term.theirs.image
    with pytest.raises(KafkaError) as refused:
        run(follower.apply(term.theirs, old))
    assert (refused.value.code, term.theirs.image) == (ErrorCode.NOT_CONTROLLER, before)


@pytest.mark.parametrize(("version", "changes"), [(2, b"[]"), (0, b"[]"), (1, b"nonsense")])
def test_a_delta_that_does_not_fit_is_refused_whole(version: int, changes: bytes) -> None:
    term = Term()
    term.pull()
    before = term.theirs.image
    step = FetchMetadataResponse.Step(version=version, changes=changes)
    with pytest.raises(KafkaError) as refused:
        run(follower.apply(term.theirs, FetchMetadataResponse(controller_id=1, controller_epoch=EPOCH, steps=[step])))
    assert (refused.value.code, term.theirs.image) == (ErrorCode.CORRUPT_MESSAGE, before)


def test_a_broker_that_becomes_the_controller_between_two_deltas_applies_no_more_of_them() -> None:
    term = Term()
    term.pull()
    term.create(1, 2, 3)
    answer, mine = term.answer(), Delta(EPOCH + 1, 0, (ControllerElected(2, EPOCH + 1),))

    def become_controller(delta: Delta, image: MetadataImage) -> None:
        if delta.version == 2:
            asyncio.get_running_loop().call_soon(term.theirs.apply, mine)

    term.theirs.subscribe(become_controller)
    run(follower.apply(term.theirs, answer))
    assert term.theirs.image.controller_epoch == EPOCH + 1
    assert set(term.theirs.image.topics) == {"t1", "t2"}


async def test_waiting_until_all_live_brokers_have_applied_the_image() -> None:
    term = Term()
    term.create(1)
    heard = term.publisher.note_fetch
    heard(2, MetadataProgress(broker_epoch=1, fetched_s=0, controller_epoch=EPOCH, version=0))
    assert not await term.publisher.until_applied(0.001)
    waiting = asyncio.ensure_future(term.publisher.until_applied(60))
    await asyncio.sleep(0)
    heard(2, MetadataProgress(broker_epoch=1, fetched_s=0, controller_epoch=EPOCH, version=1))
    assert await waiting
    # a broker that is fenced, has another epoch, or never fetched does not count
    term.create(2)
    term.ours.apply(Delta(EPOCH, 3, (registered(2, fenced=True),)))
    assert await term.publisher.until_applied(60)


async def test_the_end_of_the_term_ends_the_waiting() -> None:
    term = Term()
    term.publisher.note_fetch(2, MetadataProgress(1, 0, EPOCH, -1))
    waiting = asyncio.ensure_future(term.publisher.until_applied(60))
    await asyncio.sleep(0)
    term.publisher.close()
    assert await waiting
