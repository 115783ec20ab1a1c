"""A client without permissions learns no name, and cannot distinguish topics that exist from others."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from parley import Broker
from parley.broker.security.operations import Operation
from parley.broker.security.requirements import OPEN_TO_ALL
from parley.broker.security.resources import CLUSTER_NAME, ResourceType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import Struct
from parley.protocol.security.client_security import client_security
from parley.protocol.uuids import UUID
from tests.broker.api.test_every_version import filled, fit, name_topics_once

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "listeners": "USERS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "USERS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.users.plain.sasl.jaas.config": f'{MODULE} user_alice="a";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "coordination.url": "memory:",
    "offsets.topic.num.partitions": "1",
}
SECRET = "the-secret-topic"
"""The topic that exists."""
MISSING = "one-that-is-not!"[: len(SECRET)].replace("!", "x")
BY_NAME = {0: 12, 1: 12, 8: 9, 9: 9}
"""The last versions of Produce, Fetch, OffsetCommit and OffsetFetch that use topic names. Topic ids are not secret."""
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


@dataclass
class Doors:
    """A client that may do everything, and alice, who may do nothing."""

    admin: Client
    alice: Client
    topic_id: UUID

    async def allow(self, operation: Operation, type: ResourceType = TOPIC, name: str = SECRET) -> None:
        make = CreateAclsRequest.AclCreation(
            resource_type=type,
            resource_name=name,
            principal="User:alice",
            host="*",
            operation=operation,
            permission_type=3,
        )
        answer = await self.admin.send(CreateAclsRequest(creations=[make]))
        assert answer.results[0].error_code == ErrorCode.NONE

    async def forbid_all(self) -> None:
        every = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        await self.admin.send(DeleteAclsRequest(filters=[every]))


@pytest.fixture
async def doors() -> AsyncIterator[Doors]:
    async with Broker(SETTINGS) as broker:
        addresses = {each.listener: f"{each.host}:{each.port}" for each in broker.server.endpoints}
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{MODULE} username="alice" password="a";',
        }
        async with Client(addresses["PLAINTEXT"]) as admin:
            topic = CreateTopicsRequest.CreatableTopic(
                name=SECRET, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            created = await admin.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
            async with Client(addresses["USERS"], security=client_security(properties)) as alice:
                yield Doors(admin, alice, created.topics[0].topic_id)


def renamed(message: Any) -> None:
    """Replace the topic in a request by ``MISSING``, which does not exist."""
    for declared in message.fields():
        value = getattr(message, declared.name)
        if value == "t":
            setattr(message, declared.name, MISSING)
        elif isinstance(value, list):
            setattr(message, declared.name, [MISSING if part == "t" else part for part in value])
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                renamed(part)


async def shown(client: Client, request: Any, version: int) -> str:
    """Return the whole response as text."""
    try:
        return re.sub("0x[0-9a-f]+", "", repr(await client.send(request, version=version)))
    except KafkaError as error:
        return f"no response: {error.code.name}"


@pytest.mark.slow
async def test_a_topic_that_exists_and_one_that_does_not_look_the_same(doors: Doors) -> None:
    served = await doors.admin.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    asked = 0
    for api in served.api_keys:
        if api.api_key in OPEN_TO_ALL:
            continue
        version = min(BY_NAME.get(api.api_key, api.max_version), api.max_version)
        responses = []
        for name in (SECRET, MISSING):
            request: Any = filled(APIS[api.api_key].request, version, UUID(int=0))
            fit(request, version)
            name_topics_once(request, version)
            renamed(request)
            text = await shown(doors.alice, _with_name(request, name), version)
            assert SECRET not in text or name == SECRET, APIS[api.api_key].name
            responses.append(text.replace(name, "NAME"))
        assert responses[0] == responses[1], APIS[api.api_key].name
        asked += 1
    assert asked > 50


def _with_name(message: Any, name: str) -> Any:
    for declared in message.fields():
        value = getattr(message, declared.name)
        if value == MISSING:
            setattr(message, declared.name, name)
        elif isinstance(value, list):
            setattr(message, declared.name, [name if part == MISSING else part for part in value])
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                _with_name(part, name)
    return message


async def test_lists_of_all_topics_have_those_that_may_be_described(doors: Doors) -> None:
    everything = MetadataRequest(topics=None, include_topic_authorized_operations=True)
    pages = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10)
    assert (await doors.alice.send(everything)).topics == []
    assert (await doors.alice.send(pages)).topics == []
    await doors.allow(Operation.READ)
    for request in (everything, pages):
        (topic,) = (await doors.alice.send(request)).topics
        assert topic.name == SECRET
        assert topic.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE


async def test_an_id_does_not_reveal_the_name(doors: Doors) -> None:
    asked = MetadataRequest.MetadataRequestTopic(topic_id=doors.topic_id, name=None)
    (topic,) = (await doors.alice.send(MetadataRequest(topics=[asked]))).topics
    assert (topic.error_code, topic.name, topic.partitions) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, [])
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=doors.topic_id)
    (deleted,) = (await doors.alice.send(DeleteTopicsRequest(topics=[state], timeout_ms=1000))).responses
    assert (deleted.error_code, deleted.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)


async def test_operations_on_the_cluster_are_those_of_the_client(doors: Doors) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await doors.alice.send(request)).cluster_authorized_operations == 0
    await doors.allow(Operation.ALTER, CLUSTER, CLUSTER_NAME)
    expected = 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    assert (await doors.alice.send(request)).cluster_authorized_operations == expected


async def test_a_missing_topic_is_created_for_a_client_that_may_create_it(doors: Doors) -> None:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="new")])
    for operation in (Operation.DESCRIBE, Operation.CREATE):
        (topic,) = (await doors.alice.send(asked)).topics
        assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await doors.allow(operation, name="new")
    (topic,) = (await doors.alice.send(asked)).topics
    assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 1)


async def test_a_fetch_session_follows_the_acls(doors: Doors) -> None:
    """A partition without the right stays in the session, with its error, and has records as soon as it is allowed."""
    batch = build([Record(0, 1, b"k", b"v", ())])
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name=SECRET, partition_data=[data])
    await doors.admin.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]), version=12)
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetched = FetchRequest.FetchTopic(topic=SECRET, partitions=[partition])
    session, epoch = 0, 0

    async def fetch() -> list[int]:
        nonlocal session, epoch
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=session,
            session_epoch=epoch,
            topics=[] if session else [fetched],
            forgotten_topics_data=[],
        )
        answer = await doors.alice.send(request, version=12)
        session, epoch = answer.session_id, epoch + 1
        return [each.error_code or len(each.records) for topic in answer.responses for each in topic.partitions]

    assert await fetch() == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert await fetch() == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    await doors.allow(Operation.READ)
    assert await fetch() == [len(batch)]
    await doors.forbid_all()
    assert await fetch() == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
