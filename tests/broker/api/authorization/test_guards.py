"""For each row of the table of permissions: a client that lacks only this permission gets the error of the row."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from inspect import isawaitable
from typing import Any

import pytest

from parley.broker.api.authorization.elements import STEPS_PER_TURN, after
from parley.broker.api.authorization.guards import CHECKED_BY_HANDLERS, GUARDS, between_brokers, guarded
from parley.broker.metadata.changes import TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.broker.network.dispatch import error_response
from parley.broker.network.request_context import ConnectedClient, Disconnect, RequestContext
from parley.broker.runtime.first_step import at_once
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AuthorizationDecision, Authorizer
from parley.broker.security.operations import Operation
from parley.broker.security.principal import user
from parley.broker.security.requirements import (
    OPEN_TO_ALL,
    REQUIREMENTS,
    WHOLE_CLUSTER,
    Effect,
    Requirement,
)
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession
from parley.protocol.codec import response_frame
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.consumer_groups import ConsumerGroupDescribeResponse
from parley.protocol.messages.elections import AlterPartitionReassignmentsRequest
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.share_groups import DescribeShareGroupOffsetsResponse, ShareGroupDescribeResponse
from parley.protocol.messages.streams_groups import StreamsGroupDescribeResponse, StreamsGroupHeartbeatRequest
from parley.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.schema import Response, Struct
from tests.broker.api.test_every_version import TOPIC, filled, fit, name_topics_once
from tests.support.uuids import new_uuid

Right = tuple[ResourceType, Operation]
TOPIC_ID = new_uuid()


ASKS_GROUP_FIRST = (
    "OffsetDelete",
    "ConsumerGroupDescribe",
    "ShareGroupDescribe",
    "StreamsGroupDescribe",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
)
"""APIs whose handlers check the group even if the client may not use any of the topics."""


class AllBut(Authorizer):
    """Allows everything but some operations on some types, and records the checks."""

    def __init__(self, *denied: Right) -> None:
        self.denied = denied
        self.asked: list[tuple[ResourceType, Operation, str]] = []

    def authorize(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        self.asked.append((type, operation, name))
        return AuthorizationDecision((type, operation) not in self.denied, "test")

    def authorize_any(self, client: ClientSession, operation: Operation, type: ResourceType) -> AuthorizationDecision:
        return self.authorize(client, operation, type, "(any)")


def metadata() -> Metadata:
    topic = TopicImage(TOPIC, TOPIC_ID, (PartitionState((1,), (1,), 1),))
    return Metadata(MetadataImage("c").with_changes([TopicCreated(topic)]))


def context_of(api_key: int, version: int, client_id: str = "test", listener: str = "PLAINTEXT") -> RequestContext:
    client = ConnectedClient(ClientSession(user("alice"), "10.0.0.1", listener), 1234)
    return RequestContext(api_key, version, 1, client_id, client, 0.0)


HANDLED: list[Any] = []


def handler(context: RequestContext, request: Any) -> Response:
    HANDLED.append(request)
    response: Any = APIS[context.api_key].response.blank()
    for group in getattr(request, "groups", None) or ():
        if isinstance(group, OffsetFetchRequest.OffsetFetchRequestGroup):
            response.groups.append(OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=[]))
    if isinstance(response, ConsumerGroupDescribeResponse):
        response.groups = [consumer_group(group_id) for group_id in request.group_ids]
    if isinstance(response, ShareGroupDescribeResponse):
        response.groups = [share_group(group_id) for group_id in request.group_ids]
    if isinstance(response, StreamsGroupDescribeResponse):
        response.groups = [streams_group(group_id) for group_id in request.group_ids]
    if isinstance(response, DescribeShareGroupOffsetsResponse):
        make = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
        response.groups = [make(group_id=group.group_id, topics=[]) for group in request.groups]
    return response  # type: ignore[no-any-return]


def share_group(group_id: str) -> ShareGroupDescribeResponse.DescribedGroup:
    """Return a share group whose only member has a partition of the topic."""
    kind = ShareGroupDescribeResponse
    member: Any = kind.Member.blank()
    topic = kind.TopicPartitions(topic_id=TOPIC_ID, topic_name=TOPIC, partitions=[0])
    member.assignment = kind.Assignment(topic_partitions=[topic])
    group: Any = kind.DescribedGroup.blank()
    group.group_id, group.members = group_id, [member]
    return group  # type: ignore[no-any-return]


def streams_group(group_id: str) -> StreamsGroupDescribeResponse.DescribedGroup:
    """Return a streams group whose topology reads the topic."""
    kind = StreamsGroupDescribeResponse
    subtopology: Any = kind.Subtopology.blank()
    subtopology.source_topics = [TOPIC]
    group: Any = kind.DescribedGroup.blank()
    group.group_id, group.topology = group_id, kind.Topology(epoch=0, subtopologies=[subtopology])
    return group  # type: ignore[no-any-return]


def consumer_group(group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
    """Return a group whose only member has a partition of the topic."""
    kind = ConsumerGroupDescribeResponse
    topic = kind.TopicPartitions(topic_id=TOPIC_ID, topic_name=TOPIC, partitions=[0])
    member: Any = kind.Member.blank()
    member.assignment = kind.Assignment(topic_partitions=[topic])
    group: Any = kind.DescribedGroup.blank()
    group.group_id, group.members = group_id, [member]
    return group  # type: ignore[no-any-return]


def send(
    authorizer: Authorizer,
    api_key: int,
    version: int,
    change: Any = None,
    *,
    client_id: str = "test",
    listener: str = "PLAINTEXT",
) -> Any:
    """Return the response, or the error of a request that is refused as a whole. ``HANDLED`` holds what the handler
    received."""
    HANDLED.clear()
    request: Any = filled(APIS[api_key].request, version, TOPIC_ID)
    if change is not None:
        change(request)
    fit(request, version)
    if change is None or change.__name__ != "unknown":
        name_topics_once(request, version)
    authorization = Authorization(authorizer, AuditLog(lambda: 0.0), broker_listeners=("PLAINTEXT",))
    routes = guarded({api_key: handler}, authorization, metadata())
    context = context_of(api_key, version, client_id, listener)
    try:
        response = routes[api_key](context, request)
        if isawaitable(response):
            response = asyncio.run(_awaited(response))
    except KafkaError as error:
        with suppress(Disconnect):
            whole = error_response(APIS[api_key].response, error.code, error.message)
            response_frame(whole, version, 1)
        return error
    response_frame(response, version, 1)  # every version can encode it
    return response


async def _awaited(response: Any) -> Any:
    return await response


def errors_in(message: Any) -> set[int]:
    """Return every error code in a response."""
    if isinstance(message, KafkaError):
        return {message.code}
    found = set()
    for declared in message.fields():
        value = getattr(message, declared.name)
        if declared.name.endswith("error_code") and value:
            found.add(value)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Struct):
                found |= errors_in(part)
    return found


def _follower(request: Any) -> None:
    request.replica_id = 2
    request.replica_state = FetchRequest.ReplicaState(replica_id=2)


def _transactional(request: Any) -> None:
    request.transactional_id = "tx"
    if hasattr(request, "enable2_pc"):
        request.enable2_pc = True
    for topic in getattr(request, "topic_data", ()):
        for data in topic.partition_data:
            data.records = bytearray(data.records)
            data.records[22] |= 0x10


def _idempotent(request: Any) -> None:
    request.transactional_id = None


def _protocol(request: Any) -> None:
    request.protocol_type, request.protocol_name = "consumer", "range"


def _possible_member_id(request: Any) -> None:
    request.member_id = "m"


def _topology(request: Any) -> None:
    kind = StreamsGroupHeartbeatRequest
    subtopology: Any = kind.Subtopology.blank()
    subtopology.source_topics = [TOPIC]
    request.topology = kind.Topology(epoch=0, subtopologies=[subtopology])


def _key_type(number: int) -> Any:
    def change(request: Any) -> None:
        request.key_type = number

    return change


def _resource_type(number: int) -> Any:
    def change(request: Any) -> None:
        for resource in request.resources:
            resource.resource_type = number
            resource.resource_name = "1" if number == 4 else resource.resource_name

    return change


def _possible_acls(request: Any) -> None:
    for each in getattr(request, "creations", None) or getattr(request, "filters", None) or [request]:
        for declared in each.fields():
            if declared.type.kind == "i8":
                setattr(each, declared.name, 3)


CHANGES: dict[tuple[str, ResourceType], Any] = {
    **dict.fromkeys(
        ((api, ResourceType.CLUSTER) for api in ("DescribeAcls", "CreateAcls", "DeleteAcls")), _possible_acls
    ),
    ("Produce", ResourceType.TRANSACTIONAL_ID): _transactional,
    ("InitProducerId", ResourceType.TRANSACTIONAL_ID): _transactional,
    ("InitProducerId", ResourceType.CLUSTER): _idempotent,
    ("InitProducerId", ResourceType.TOPIC): _idempotent,
    ("Fetch", ResourceType.CLUSTER): _follower,
    ("SyncGroup", ResourceType.GROUP): _protocol,
    ("ShareGroupHeartbeat", ResourceType.TOPIC): _possible_member_id,
    ("StreamsGroupHeartbeat", ResourceType.TOPIC): _topology,
    ("FindCoordinator", ResourceType.GROUP): _key_type(0),
    ("FindCoordinator", ResourceType.TRANSACTIONAL_ID): _key_type(1),
    ("FindCoordinator", ResourceType.CLUSTER): _key_type(2),
    **{
        (api, type): _resource_type(number)
        for api in ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs")
        for type, number in ((ResourceType.TOPIC, 2), (ResourceType.CLUSTER, 4), (ResourceType.GROUP, 32))
    },
}
"""The content that a request needs for the row to apply."""

ALTERNATIVES: dict[str, tuple[Right, ...]] = {}
for _row in REQUIREMENTS:
    if _row.effect is Effect.OTHERWISE:
        ALTERNATIVES[_row.api] = (*ALTERNATIVES.get(_row.api, ()), (_row.type, _row.operation))

VERSIONS: dict[tuple[str, ResourceType], tuple[int, int]] = {
    ("AddPartitionsToTxn", ResourceType.TRANSACTIONAL_ID): (0, 3),
    ("AddPartitionsToTxn", ResourceType.TOPIC): (0, 3),
    ("AddPartitionsToTxn", ResourceType.CLUSTER): (4, 5),
    ("FindCoordinator", ResourceType.CLUSTER): (6, 6),
    ("FindCoordinator", ResourceType.TRANSACTIONAL_ID): (1, 6),
}
"""The versions in which the row applies, if not in all."""


def versions(row: Requirement) -> range:
    request = APIS[row.api_key].request
    first, last = VERSIONS.get((row.api, row.type), (request.VERSIONS.min, request.VERSIONS.max))
    if row.operation is Operation.TWO_PHASE_COMMIT:
        first = 6
    if row.api == "Produce":
        first = 3
    return range(first, last + 1)


ROWS = [
    row
    for row in REQUIREMENTS
    if row.effect in (Effect.REFUSED, Effect.ELEMENT)
    and row.api_key not in CHECKED_BY_HANDLERS
    and (row.api, row.type) != ("Fetch", ResourceType.TOPIC)
    and (row.api_key in GUARDS or row.api_key in WHOLE_CLUSTER)
]


@pytest.mark.parametrize("version", [0, 1])
def test_a_refused_reassignment_has_the_error_of_each_partition(version: int) -> None:
    """Java's admin client counts them, and reports too few results otherwise."""
    key = AlterPartitionReassignmentsRequest.API_KEY
    refused = send(AllBut((ResourceType.CLUSTER, Operation.ALTER)), key, version)
    (topic,) = refused.responses
    (partition,) = topic.partitions
    assert topic.name == TOPIC
    assert refused.error_code == partition.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert refused.error_message == partition.error_message != ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.api}-{row.type.name}-{row.operation.name}")
def test_without_a_right_the_error_is_that_of_its_row(row: Requirement) -> None:
    change = CHANGES.get((row.api, row.type))
    for version in versions(row):
        authorizer = AllBut((row.type, row.operation), *ALTERNATIVES.get(row.api, ()))
        refused = send(authorizer, row.api_key, version, change)
        if (row.api, version < 3) == ("DescribeLogDirs", True):
            assert refused.results == []
        else:
            assert row.error in errors_in(refused), f"version {version}: {refused}"
        is_of_topics = row.type is ResourceType.TOPIC
        by_group = row.api in ASKS_GROUP_FIRST or (row.api == "OffsetFetch" and version >= 8)
        asks_group = is_of_topics and by_group
        assert not HANDLED or asks_group, f"version {version} was handled"


@pytest.mark.parametrize("api_key", sorted(GUARDS.keys() | WHOLE_CLUSTER.keys()), ids=lambda key: APIS[key].name)
def test_with_all_rights_the_handler_gets_the_request(api_key: int) -> None:
    supported = APIS[api_key].request.VERSIONS
    for version in range(supported.min, supported.max + 1):
        response = send(AllBut(), api_key, version, CHANGES.get((APIS[api_key].name, ResourceType.TOPIC)))
        assert not errors_in(response), f"version {version}: {response}"
        assert len(HANDLED) == 1


@pytest.mark.parametrize(
    "row",
    [row for row in REQUIREMENTS if row.effect is Effect.OTHERWISE and row.api_key in GUARDS],
    ids=lambda row: f"{row.api}-{row.type.name}-{row.operation.name}",
)
def test_one_of_several_rights_is_enough(row: Requirement) -> None:
    others = [
        (other.type, other.operation)
        for other in REQUIREMENTS
        if other.api_key == row.api_key and other is not row and other.effect is not Effect.LEFT_OUT
    ]
    version = APIS[row.api_key].request.VERSIONS.max
    assert not errors_in(send(AllBut(*others), row.api_key, version, CHANGES.get((row.api, row.type))))
    assert HANDLED


def test_every_api_is_in_the_table_or_has_no_guard_to_pass() -> None:
    """An API that is added later is refused until the table has it."""
    in_table = {row.api_key for row in REQUIREMENTS} | OPEN_TO_ALL.keys()
    for key, api in APIS.items():
        if api.name in ("DescribeQuorum", "AddRaftVoter", "RemoveRaftVoter"):
            assert key not in in_table  # not served
            assert ErrorCode.CLUSTER_AUTHORIZATION_FAILED in errors_in(_refused(key))
        else:
            assert key in in_table, api.name


def _refused(api_key: int) -> Any:
    try:
        return guarded({api_key: handler}, Authorization(AllBut(), None), metadata())[api_key](
            context_of(api_key, APIS[api_key].request.VERSIONS.max), APIS[api_key].request.blank()
        )
    except KafkaError as error:
        return error


def test_brokers_create_topics_with_cluster_action() -> None:
    """Topics that a client has named; but a client that poses as a broker gains nothing, on no other listener."""
    create_topics, create_acls = 19, 30
    no_rights = [(type, operation) for type in ResourceType for operation in Operation]
    cluster_action = (ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
    broker = AllBut(*(right for right in no_rights if right != cluster_action))
    assert not errors_in(send(broker, create_topics, 7, client_id="broker-2-forwarding"))
    assert errors_in(send(broker, create_topics, 7))
    assert errors_in(send(broker, create_acls, 3, client_id="broker-2-forwarding"))
    assert errors_in(send(broker, create_topics, 7, client_id="broker-2-forwarding", listener="OTHER"))
    assert errors_in(send(AllBut(*no_rights), create_topics, 7, client_id="broker-2-forwarding"))


@pytest.mark.parametrize(("api_key", "version"), [(0, 13), (8, 10), (9, 10), (20, 6)])
def test_a_topic_id_that_is_unknown_does_not_reach_the_handler(api_key: int, version: int) -> None:
    """The topic may appear before the handler looks for it, and then its name would not have been checked."""

    def unknown(message: Any) -> None:
        for declared in message.fields():
            if declared.name == "topic_id":
                message.topic_id = new_uuid()
                message.name = None if api_key == 20 else ""
            for part in getattr(message, declared.name) if isinstance(getattr(message, declared.name), list) else []:
                if isinstance(part, Struct):
                    unknown(part)

    everything_on_topics = [(ResourceType.CLUSTER, Operation.DELETE)]
    response = send(AllBut(*everything_on_topics), api_key, version, unknown)
    assert errors_in(response) == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert all(not topic for request in HANDLED for group in getattr(request, "groups", []) for topic in group.topics)
    assert not HANDLED or api_key == 9


def test_a_missing_topic_that_may_not_be_deleted_does_not_reach_the_handler() -> None:
    def missing(request: Any) -> None:
        request.topic_names = ["missing"]

    denied = AllBut((ResourceType.TOPIC, Operation.DELETE), (ResourceType.CLUSTER, Operation.DELETE))
    assert errors_in(send(denied, 20, 3, missing)) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not HANDLED


def test_a_search_for_no_coordinator_creates_nothing() -> None:
    def without_keys(request: Any) -> None:
        request.coordinator_keys = []

    assert send(AllBut(), 10, 6, without_keys).coordinators == []
    assert not HANDLED


def test_apis_for_brokers_are_served_on_the_inter_broker_listener_only() -> None:
    fetch_metadata, metadata_ = 1000, 3
    routes = between_brokers({fetch_metadata: handler, metadata_: handler}, ["INTERNAL"])
    routes[fetch_metadata](context_of(fetch_metadata, 1, listener="INTERNAL"), None)
    routes[metadata_](context_of(metadata_, 13, listener="OTHER"), None)
    with pytest.raises(KafkaError) as refused:
        routes[fetch_metadata](context_of(fetch_metadata, 1, listener="OTHER"), None)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [12, 17])
def test_followers_fetch_on_the_listener_of_brokers_only(version: int) -> None:
    """Without an authorizer, too: the offset that a follower asks for counts for the high watermark."""
    fetch = 1
    routes = between_brokers({fetch: handler}, ["INTERNAL"])
    topic = FetchRequest.FetchTopic(topic="t", partitions=[FetchRequest.FetchPartition.blank()])
    of_consumer = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic])
    of_follower = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic])
    if version < 15:
        of_follower.replica_id = 2
    else:
        of_follower.replica_state = FetchRequest.ReplicaState(replica_id=2)
    for request, listener in ((of_consumer, "OTHER"), (of_follower, "INTERNAL")):
        HANDLED.clear()
        routes[fetch](context_of(fetch, version, listener=listener), request)
        assert [request] == HANDLED
    HANDLED.clear()
    response = routes[fetch](context_of(fetch, version, listener="OTHER"), of_follower)
    assert not HANDLED
    assert errors_in(response) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


async def test_a_response_that_waits_stays_a_future() -> None:
    """A coroutine would take a place among the requests in progress for as long as it waits."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Any] = loop.create_future()
    changed = after(waiting, lambda response: [*response, "refused"])
    assert isinstance(changed, asyncio.Future)
    waiting.set_result(["handled"])
    assert await changed == ["handled", "refused"]
    for failure in (KafkaError(ErrorCode.REQUEST_TIMED_OUT), None):
        waiting = loop.create_future()
        changed = after(waiting, lambda response: response)
        if failure is not None:
            waiting.set_exception(failure)
            with pytest.raises(KafkaError):
                await changed
        else:
            changed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


@pytest.mark.parametrize("api_key", sorted(GUARDS.keys() | WHOLE_CLUSTER.keys()), ids=lambda key: APIS[key].name)
async def test_a_handler_that_has_begun_and_waits_is_awaited(api_key: int) -> None:
    """EndTxn waits so for the other replicas: no guard may take the rest of its work for its own steps."""
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def when_written(context: RequestContext, request: Any) -> Response:
        await written
        return handler(context, request)

    def begun(context: RequestContext, request: Any) -> Any:
        return at_once(when_written(context, request))

    authorization = Authorization(AllBut(), AuditLog(lambda: 0.0), broker_listeners=("PLAINTEXT",))
    routes = guarded({api_key: begun}, authorization, metadata())
    version = APIS[api_key].request.VERSIONS.max
    request: Any = filled(APIS[api_key].request, version, TOPIC_ID)
    if (change := CHANGES.get((APIS[api_key].name, ResourceType.TOPIC))) is not None:
        change(request)
    fit(request, version)
    name_topics_once(request, version)
    response = routes[api_key](context_of(api_key, version), request)
    written.set_result(None)
    while isawaitable(response):
        response = await response
    assert isinstance(response, Response)


def test_without_an_authorizer_there_are_no_guards() -> None:
    assert guarded({0: handler}, Authorization(), metadata()) == {0: handler}


def test_a_check_that_is_not_in_the_table_raises() -> None:
    authorization = Authorization(AllBut(), None)
    with pytest.raises(LookupError, match="not in the table"):
        authorization.may(context_of(3, 12), Operation.DELETE, ResourceType.TOPIC, "t")


MANY = 10 * STEPS_PER_TURN
PRODUCED = ProduceRequest.TopicProduceData
LISTED = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
DATA = ProduceRequest.PartitionProduceData(index=0, records=None)


@pytest.mark.parametrize(
    "request_",
    [
        DeleteTopicsRequest(topic_names=[f"t{number}" for number in range(MANY)], timeout_ms=0),
        ProduceRequest(
            acks=1,
            timeout_ms=0,
            topic_data=[PRODUCED(name=f"t{number}", partition_data=[DATA]) for number in range(MANY)],
        ),
        ProduceRequest(acks=1, timeout_ms=0, topic_data=[PRODUCED(name="t", partition_data=[DATA] * MANY)]),
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(name=f"t{number}", partitions=[LISTED]) for number in range(MANY)
            ],
        ),
    ],
    ids=["names", "topics", "partitions", "topics of ListOffsets"],
)
async def test_the_loop_goes_on_while_very_many_topics_are_refused(request_: Any) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    denied = AllBut(
        *((ResourceType.TOPIC, each) for each in (Operation.DELETE, Operation.WRITE, Operation.DESCRIBE)),
        (ResourceType.CLUSTER, Operation.DELETE),
    )
    authorization = Authorization(denied, AuditLog(lambda: 0.0), broker_listeners=("PLAINTEXT",))
    key = request_.API_KEY
    checks = guarded({key: handler}, authorization, metadata())
    other = asyncio.ensure_future(others())
    response = await checks[key](context_of(key, 5), request_)
    other.cancel()
    assert str(response).count("error_code=") >= MANY
    assert turns >= 10


def test_a_refusal_names_the_right_that_is_missing() -> None:
    denied = AllBut((ResourceType.TOPIC, Operation.CREATE), (ResourceType.CLUSTER, Operation.CREATE))
    (refused,) = send(denied, CreateTopicsRequest.API_KEY, 7).topics
    assert refused.error_message == (f"Authorization failed. User:alice lacks the right Create on the topic '{TOPIC}'.")
