"""Metadata: automatic creation of topics, and leaders whose logs are not open yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parley.broker.api import metadata
from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.metadata import CREATED_PER_REQUEST_MAX, MetadataApi
from parley.broker.controller.topics import NewTopic, TopicOutcome
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.codec import encode
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.uuids import UUID
from tests.broker.api.authorization.test_guards import AllBut
from tests.broker.api.bench import BROKER, OTHER, Bench, answered, context
from tests.broker.quotas.test_enforcement import enforcing


class Creation:
    """Creates topics on the bench as the controller would."""

    automatic = True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def create_for_client(self, topics: list[NewTopic]) -> list[TopicOutcome]:
        for topic in topics:
            await self._bench.create(topic.name)
        return []


async def test_a_request_creates_a_limited_number_of_topics(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    api = MetadataApi(
        bench.metadata, Creation(bench), FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    )
    names = [f"t{i}" for i in range(CREATED_PER_REQUEST_MAX + 2)]
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )
    for known in (CREATED_PER_REQUEST_MAX, len(names)):
        answer = await answered(api, context(12), request)
        codes = [topic.error_code for topic in answer.topics]
        absent = len(names) - known
        assert codes == [ErrorCode.NONE] * known + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * absent
    await bench.tasks.close()


async def test_a_client_without_rights_gets_its_response_at_once_whether_a_topic_exists_or_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.create("t")

    class OfOneBroker(FailingBrokers):
        @property
        def may_be_unsettled(self) -> bool:
            return False

    failing_brokers = OfOneBroker(bench.metadata, lambda broker: None, lambda: True)
    denied = Authorization(AllBut((ResourceType.TOPIC, Operation.DESCRIBE)))
    api = MetadataApi(bench.metadata, Creation(bench), failing_brokers, authorization=denied)
    for name in ("t", "absent"):
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
        response = api.metadata(context(12, api_key=MetadataRequest.API_KEY), asked)
        assert isinstance(response, MetadataResponse), "a coroutine takes longer"
        assert (await answered(api, context(12, api_key=MetadataRequest.API_KEY), asked)).topics[0].name == name
    await bench.tasks.close()


async def test_topics_that_a_request_creates_count_for_the_quota_of_the_client(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    class Refusing(Creation):
        async def create_for_client(self, topics: list[NewTopic]) -> list[TopicOutcome]:
            await super().create_for_client(topics[:3])
            made = [TopicOutcome(topic.name, bench.metadata.image.topics[topic.name]) for topic in topics[:3]]
            return [*made, TopicOutcome("no", error=KafkaError(ErrorCode.POLICY_VIOLATION))]

    quotas = enforcing({QuotaEntity(client_id="test"): {"controller_mutation_rate": 0.1}})
    failing_brokers = FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    api = MetadataApi(bench.metadata, Refusing(bench), failing_brokers, quota_of=quotas.mutations)
    names = ["a", "b", OFFSETS_TOPIC, "no"]
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )
    assert (await answered(api, context(12), request)).throttle_time_ms == 9000, "2 partitions, and 1.1 tokens"
    ((_, numbers),) = quotas.metrics()
    assert numbers.used == 2
    request.allow_auto_topic_creation = False
    assert (await answered(api, context(12), request)).throttle_time_ms == 0
    await bench.tasks.close()


@pytest.mark.parametrize(("in_touch", "said"), [(True, "UNKNOWN_TOPIC_OR_PARTITION"), (False, "LEADER_NOT_AVAILABLE")])
async def test_a_broker_out_of_touch_does_not_return_unknown_topic(tmp_path: Path, in_touch: bool, said: str) -> None:
    bench = Bench(tmp_path)
    api = MetadataApi(
        bench.metadata, Creation(bench), FailingBrokers(bench.metadata, lambda broker: None, lambda: in_touch)
    )
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in ("new", "no/name")],
        allow_auto_topic_creation=False,
    )
    answer = await answered(api, context(12), request)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode[said], ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_a_leader_is_named_once_it_has_its_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    failing_brokers = FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    api = MetadataApi(bench.metadata, Creation(bench), failing_brokers, logs=bench.partitions)
    request = MetadataRequest(topics=None)

    async def leaders() -> list[tuple[int, int]]:
        (topic,) = (await answered(api, context(12), request)).topics
        return [(each.leader_id, each.error_code) for each in topic.partitions]

    may_open = asyncio.Event()
    bench.logs.may_open = may_open
    creating = asyncio.create_task(bench.create("t", 2, replicas=[BROKER, OTHER]))
    await bench.idle()
    bench.alter("t", 1, leader=OTHER)
    assert await leaders() == [(-1, ErrorCode.LEADER_NOT_AVAILABLE), (OTHER, ErrorCode.NONE)]
    may_open.set()
    await creating
    assert await leaders() == [(BROKER, ErrorCode.NONE), (OTHER, ErrorCode.NONE)]
    await bench.tasks.close()


async def test_other_clients_are_served_while_many_partitions_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ENCODED_PER_TURN", 3)
    bench = Bench(tmp_path)
    api = MetadataApi(
        bench.metadata, Creation(bench), FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    )
    for number in range(4):
        await bench.create(f"t{number}", 2)
    request, turns = MetadataRequest(topics=None), [0]

    async def other_client() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_client())
    for least in (4, 0):  # the second response is kept
        before = turns[0]
        answer = await answered(api, context(12), request)
        assert [len(topic.partitions) for topic in answer.topics] == [2] * 4
        assert turns[0] - before >= least
    other.cancel()
    await bench.tasks.close()


async def test_metadata_waits_for_logs_that_are_being_opened(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    failing_brokers = FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    waiting, may_open = asyncio.Event(), asyncio.Event()

    class Logs:
        is_opening = True
        opens_logs_of = staticmethod(bench.partitions.opens_logs_of)
        lacks_log = staticmethod(bench.partitions.lacks_log)

        async def until_opened(self, within_s: float | None = None) -> None:
            waiting.set()
            await bench.partitions.until_opened()

    api = MetadataApi(bench.metadata, Creation(bench), failing_brokers, logs=Logs())
    bench.logs.may_open = may_open
    creating = asyncio.create_task(bench.create("t"))
    await bench.idle()
    asking = asyncio.create_task(answered(api, context(12), MetadataRequest(topics=None)))
    await waiting.wait()
    may_open.set()
    (topic,) = (await asking).topics
    assert [each.leader_id for each in topic.partitions] == [BROKER]
    await creating
    await bench.tasks.close()


@pytest.mark.parametrize("version", [10, 11])
async def test_topic_ids_are_rejected_before_version_12(tmp_path: Path, version: int) -> None:
    bench = Bench(tmp_path)
    api = MetadataApi(
        bench.metadata, Creation(bench), FailingBrokers(bench.metadata, lambda broker: None, lambda: True)
    )
    await bench.create("t")
    asked = [
        MetadataRequest.MetadataRequestTopic(name="t", topic_id=UUID(int=1)),
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=bench.metadata.image.topics["t"].topic_id),
        MetadataRequest.MetadataRequestTopic(name=None),
        MetadataRequest.MetadataRequestTopic(name="t"),
    ]
    answer = await answered(api, context(version), MetadataRequest(topics=asked, allow_auto_topic_creation=True))
    invalid = ErrorCode.INVALID_REQUEST
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("t", invalid),
        ("", invalid),
        ("", invalid),
        ("t", ErrorCode.NONE),
    ]
    assert encode(answer, version)
    await bench.tasks.close()
