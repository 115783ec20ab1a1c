"""Topics that are created on demand, by this controller or by a controller on another broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.controller.topic_auto_creation import TopicAutoCreation
from parley.broker.controller.topics import NewTopic, TopicOutcome
from parley.broker.metadata.changes import Delta, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from parley.protocol.uuids import UUID
from tests.support.virtual_time import run


class Cluster:
    """A controller here or on another broker, which responds to the creation of topics with ``code``."""

    def __init__(
        self, properties: Mapping[str, str] | None = None, *, is_controller: bool, code: ErrorCode = ErrorCode.NONE
    ) -> None:
        self.is_controller = is_controller
        self.code = code
        self.unreachable: KafkaError | None = None
        self.metadata = Metadata(MetadataImage("c"))
        self.created: list[Mapping[str, str]] = []
        self.waits_for_logs = 0
        ours: Any = self
        config = BrokerConfig.from_properties(properties or {})
        self.auto = TopicAutoCreation(ours, self.metadata, ours, lambda: config, self._opened)

    async def _opened(self) -> None:
        self.waits_for_logs += 1

    async def create_topics(self, wanted: Sequence[NewTopic]) -> list[TopicOutcome]:
        self.created += [topic.configs for topic in wanted]
        return [TopicOutcome(topic.name, error=KafkaError(self.code, "no") if self.code else None) for topic in wanted]

    async def ask_elected_controller(
        self, request: CreateTopicsRequest, local: Callable[[], Awaitable[Any] | None], *, patience_s: float
    ) -> Any:
        if self.unreachable is not None:
            raise self.unreachable
        outcomes = local()
        if outcomes is not None:
            return await outcomes
        self.created += [{entry.name: entry.value or "" for entry in topic.configs} for topic in request.topics]
        return CreateTopicsResponse(
            topics=[
                CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name, error_code=self.code, error_message="no" if self.code else None
                )
                for topic in request.topics
            ]
        )

    def learn_of(self, name: str) -> None:
        topic = TopicImage(name, UUID(int=1), (PartitionState((1,), (1,), 1),))
        self.metadata.apply(Delta(0, self.metadata.image.version + 1, (TopicCreated(topic),)))


@pytest.mark.parametrize("is_controller", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS])
@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_an_internal_topic_is_there_afterwards(topic: str, is_controller: bool, code: ErrorCode) -> None:
    cluster = Cluster(is_controller=is_controller, code=code)
    cluster.learn_of(topic)
    run(cluster.auto.create_internal_topic(topic))
    (configs,) = cluster.created
    assert configs["cleanup.policy"] == "compact"


def test_the_transactions_topic_has_its_own_settings() -> None:
    cluster = Cluster({"transaction.state.log.min.isr": "1"}, is_controller=True)
    run(cluster.auto.create_internal_topic(TRANSACTIONS_TOPIC))
    (configs,) = cluster.created
    assert configs["min.insync.replicas"] == "1"
    assert configs["compression.type"] == "uncompressed"
    assert configs["unclean.leader.election.enable"] == "false"
    assert configs["segment.bytes"] == "104857600"


@pytest.mark.parametrize("is_controller", [True, False])
@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (ErrorCode.INVALID_REPLICATION_FACTOR, False),
        (ErrorCode.POLICY_VIOLATION, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (ErrorCode.NOT_CONTROLLER, True),
        (ErrorCode.REQUEST_TIMED_OUT, True),
    ],
)
def test_an_internal_topic_that_cannot_be_created_is_an_error_of_the_operator_unless_it_passes(
    code: ErrorCode, passes: bool, is_controller: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(is_controller=is_controller, code=code)
    with caplog.at_level(logging.ERROR), pytest.raises(KafkaError) as refused:
        run(cluster.auto.create_internal_topic(OFFSETS_TOPIC))
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [line.__dict__["reason"] for line in caplog.records] == ([] if passes else ["no"])


def test_an_internal_topic_that_cannot_be_created_is_logged_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(is_controller=True)

    async def tried(code: ErrorCode, name: str = OFFSETS_TOPIC) -> None:
        cluster.code = code
        with contextlib.suppress(KafkaError):
            await cluster.auto.create_internal_topic(name)

    async def many_requests() -> None:
        for _ in range(100):
            await tried(ErrorCode.INVALID_REPLICATION_FACTOR)
        await tried(ErrorCode.INVALID_REPLICATION_FACTOR, TRANSACTIONS_TOPIC)
        assert len(caplog.records) == 2, "one line for each topic"
        await tried(ErrorCode.TOPIC_ALREADY_EXISTS)
        await tried(ErrorCode.INVALID_REPLICATION_FACTOR)
        assert len(caplog.records) == 3, "another failure after a success"

    with caplog.at_level(logging.ERROR):
        run(many_requests())


def test_without_a_controller_each_topic_has_the_error() -> None:
    cluster = Cluster(is_controller=False)
    cluster.unreachable = KafkaError(ErrorCode.NOT_CONTROLLER, "none is elected")
    outcomes = run(cluster.auto.create_for_client([NewTopic("a"), NewTopic("b")]))
    assert [(outcome.name, outcome.error) for outcome in outcomes] == [
        ("a", cluster.unreachable),
        ("b", cluster.unreachable),
    ]


def test_a_topic_that_another_broker_creates_is_waited_for_at_most_a_second() -> None:
    async def create(*, learns_after_s: float) -> tuple[float, list[TopicOutcome]]:
        cluster = Cluster(is_controller=False)
        loop = asyncio.get_running_loop()
        loop.call_later(learns_after_s, cluster.learn_of, "t")
        began_s = loop.time()
        outcomes = await cluster.auto.create_for_client([NewTopic("t")])
        assert cluster.waits_for_logs == 1
        return loop.time() - began_s, outcomes

    took_s, (outcome,) = run(create(learns_after_s=0.5))
    assert (took_s, outcome.error) == (0.5, None)
    assert outcome.topic is not None
    took_s, (outcome,) = run(create(learns_after_s=60))
    assert (took_s, outcome.topic, outcome.error) == (1.0, None, None)


def test_a_topic_that_is_refused_is_not_waited_for() -> None:
    async def create() -> float:
        cluster = Cluster(is_controller=False, code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        began_s = asyncio.get_running_loop().time()
        (outcome,) = await cluster.auto.create_for_client([NewTopic("t")])
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, "no")
        return asyncio.get_running_loop().time() - began_s

    assert run(create()) == 0


def test_a_client_that_names_the_offsets_topic_gets_it_with_its_own_configuration() -> None:
    cluster = Cluster({"offsets.topic.segment.bytes": "1"}, is_controller=True)
    run(cluster.auto.create_for_client([NewTopic(OFFSETS_TOPIC), NewTopic("t", configs={"retention.ms": "5"})]))
    offsets, other = cluster.created
    assert offsets["cleanup.policy"] == "compact"
    assert int(offsets["segment.bytes"]) > 1, "as small as a topic may have them"
    assert other == {"retention.ms": "5"}
