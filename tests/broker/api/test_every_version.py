"""The broker responds correctly to every advertised API in every advertised version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.schema import ZERO_UUID, Request, Struct

TOPIC, GROUP = "t", "g"
NOT_FOR_GUESSES = -1
"""An error code that clients cannot act upon. It means that a handler failed."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(auto_create_topics_enable=False, offsets_topic_num_partitions=1) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client(broker.bootstrap_servers) as connected:
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        await connected.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        yield connected


def filled(request: type[Request], version: int, topic_id: Any) -> Request:
    """Return a request with one element in each list and plausible values. Each version uses another group."""
    message: Any = _filled(request, topic_id)
    if hasattr(message, "group_id"):
        message.group_id = f"{GROUP}-{version}"
    return message  # type: ignore[no-any-return]


PLAUSIBLE: dict[str, Any] = {
    "topic": TOPIC,
    "transactional_id": None,
    "acks": -1,
    "timeout_ms": 1000,
    "replica_id": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "session_timeout_ms": 10_000,
    "protocol_type": "consumer",
    "client_software_name": "test",
    "client_software_version": "1",
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "response_partition_limit": 10,
    "endpoint_type": 1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "leader_epoch": 0,
    "timestamp": -1,
    "max_num_offsets": 1,
    "resource_type": 2,
    "resource_types": [],
    "resource_name": TOPIC,
    "config_operation": 0,
    "configuration_keys": None,
    "producer_id": -1,
    "producer_epoch": -1,
    "validate_only": True,
    "coordinator_keys": [GROUP],
    "key": GROUP,
    "groups_names": ["absent"],
    "states_filter": [],
    "types_filter": [],
    "forgotten_topics_data": [],
    "assignments": [],
    "partition_indexes": [0],
    "partitions": None,
    "broker_epoch": -1,
    "replica_state": None,
    "cursor": None,
}


def _filled(kind: type[Struct], topic_id: Any) -> Struct:
    message: Any = kind.blank()
    for declared in kind.fields():
        name, type_, element = declared.name, declared.type, declared.type.element
        if name == "producer_id" and "Marker" in kind.__name__:
            message.producer_id = 0  # Kafka, too, returns UNKNOWN_SERVER_ERROR to a marker of no producer
        elif name in PLAUSIBLE and PLAUSIBLE[name] is not None:
            setattr(message, name, PLAUSIBLE[name])
        elif name in PLAUSIBLE and type_.kind != "array":
            continue
        elif name == "topic_id":
            message.topic_id = topic_id
        elif name == "name":
            message.name = "retention.ms" if "Config" in kind.__name__ else TOPIC
        elif name == "value":
            message.value = 1000.0 if type_.kind == "f64" else "1000"
        elif type_.kind == "records":
            message.records = build([Record(0, 1, b"k", b"v", ())])
        elif element is not None and element.struct is not None:
            setattr(message, name, [_filled(element.struct, topic_id)])
        elif element is not None and element.kind in ("i32", "i8"):
            setattr(message, name, [0])
        elif element is not None and element.kind == "str":
            setattr(message, name, [GROUP if "group" in name else TOPIC])
    return message  # type: ignore[no-any-return]


def fit(message: Any, version: int) -> None:
    """Reset the fields that the version does not have."""
    for declared in message.fields():
        carried = version in declared.versions or (declared.tag is not None and version in declared.tagged)
        if not carried:
            setattr(message, declared.name, declared.default())
            continue
        value = getattr(message, declared.name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                fit(part, version)


def name_topics_once(message: Any, version: int) -> None:
    """Keep only the id or the name of a topic if a field exists for both."""
    for declared in message.fields():
        value = getattr(message, declared.name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                name_topics_once(part, version)
    if getattr(message, "topic_id", ZERO_UUID) != ZERO_UUID and getattr(message, "name", None):
        message.topic_id = ZERO_UUID


def codes(message: Any) -> Iterator[int]:
    """Return all error codes anywhere in a response."""
    for declared in message.fields():
        value = getattr(message, declared.name)
        if declared.name == "error_code":
            yield value
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                yield from codes(part)


@pytest.mark.slow
async def test_every_advertised_version_is_answered(client: Client) -> None:
    advertised = await client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    topic_id = (await client.metadata([TOPIC])).topics[0].topic_id
    failures = []
    for api in advertised.api_keys:
        request = APIS[api.api_key].request
        for version in range(api.min_version, api.max_version + 1):
            message = filled(request, version, topic_id)
            name_topics_once(message, version)
            fit(message, version)
            try:
                answer = await client.send(message, version=version)
            except Exception as error:
                failures.append(f"{request.__name__} v{version}: {error!r}")
                continue
            if answer is not None and NOT_FOR_GUESSES in set(codes(answer)):
                failures.append(f"{request.__name__} v{version}: {ErrorCode(NOT_FOR_GUESSES).name}: {answer!r}")
    assert not failures, "\n".join(failures)


async def test_apis_that_are_not_built_are_not_advertised(client: Client) -> None:
    advertised = await client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    names = {APIS[api.api_key].name for api in advertised.api_keys}
    assert {"Produce", "Fetch", "Metadata", "JoinGroup", "CreateTopics", "DescribeConfigs"} <= names
    assert not names & {"GetTelemetrySubscriptions", "DescribeQuorum"}
