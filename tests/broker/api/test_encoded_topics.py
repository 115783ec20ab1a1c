"""Metadata responses that reuse encoded topics: each response is correct, as if nothing had been cached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from parley.broker.api.encoded_topics import ENCODED_BYTES_MAX, ENTRY_BYTES, EncodedTopics
from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.listener_view import ListenerView
from parley.broker.api.metadata import MetadataApi
from parley.broker.api.requested_names import SLICE
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    ConfigReplaced,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.metadata.types import (
    NO_LEADER,
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import EVERYONE_MAY, Authorization
from parley.broker.security.authorizer import AuthorizationDecision, Authorizer
from parley.broker.security.operations import NOT_REQUESTED, Operation, bit_field
from parley.broker.security.principal import user
from parley.broker.security.resources import SUPPORTED_OPERATIONS
from parley.broker.security.resources import ResourceType as Secured
from parley.broker.security.session import ClientSession
from parley.protocol.codec import decode, encode
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.schema import ZERO_UUID
from parley.protocol.uuids import UUID
from tests.broker.api.bench import answered
from tests.broker.api.test_listener_view import NoCreation

Topic = MetadataResponse.MetadataResponseTopic
Asked = MetadataRequest.MetadataRequestTopic
LISTENERS = ("PLAINTEXT", "OTHER")
USERS = ("alice", "bob")
NAMES = ("a", "b", "c", "d", OFFSETS_TOPIC)


class Rights(Authorizer):
    """Permissions of users, which the test changes at any time."""

    def __init__(self) -> None:
        self.given: set[tuple[str, Operation, str]] = set()

    def authorize(self, client: ClientSession, operation: Operation, type: Secured, name: str) -> AuthorizationDecision:
        return AuthorizationDecision((client.principal.name, operation, name) in self.given, "")

    def authorize_any(self, client: ClientSession, operation: Operation, type: Secured) -> AuthorizationDecision:
        return AuthorizationDecision(False, "")


class Logs:
    """Logs that are open, or that are being opened while some of them are missing."""

    def __init__(self) -> None:
        self.missing: set[tuple[str, int]] = set()
        self.is_opening = False

    def opens_logs_of(self, topic: str) -> bool:
        return self.is_opening and any(topic == name for name, _ in self.missing)

    def lacks_log(self, topic: str, index: int) -> bool:
        return self.is_opening and (topic, index) in self.missing

    async def until_opened(self, within_s: float | None = None) -> None:
        return


class World:
    """A cluster that changes at random, and a broker that describes it to two users over two listeners."""

    def __init__(
        self, rng: random.Random, *, is_secured: bool = True, brokers: int = 3, bytes_max: int = ENCODED_BYTES_MAX
    ) -> None:
        self.rng = rng
        self.logs = Logs()
        self.rights = Rights() if is_secured else None
        self.metadata = Metadata(MetadataImage("c", controller_id=1))
        authorization = EVERYONE_MAY if self.rights is None else Authorization(self.rights, AuditLog(lambda: 0.0))
        failing_brokers = FailingBrokers(self.metadata, lambda broker: None, lambda: True)
        self.api = MetadataApi(
            self.metadata,
            NoCreation(),
            failing_brokers,
            authorization=authorization,
            logs=self.logs,
            encoded_bytes_max=bytes_max,
        )
        for broker in range(1, brokers + 1):
            self.register(broker, LISTENERS)

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def change(self, *changes: Change) -> None:
        self.metadata.apply(Delta(0, self.image.version + 1, changes))

    def register(self, broker: int, listeners: Iterable[str], *, fenced: bool = False) -> None:
        endpoints = tuple(Endpoint(name, "PLAINTEXT", f"{name}{broker}".lower(), 9000 + broker) for name in listeners)
        self.change(BrokerRegistered(BrokerRegistration(broker, 1, UUID(int=broker), endpoints, fenced=fenced)))

    def state(self) -> PartitionState:
        replicas = tuple(self.rng.sample(sorted(self.image.brokers), self.rng.randint(1, len(self.image.brokers))))
        return PartitionState(
            replicas, replicas[: self.rng.randint(1, len(replicas))], self.rng.choice((NO_LEADER, *replicas)),
            self.rng.randint(0, 9),
        )  # fmt: skip

    def create(self, name: str, partitions: int = 1) -> None:
        topic_id = UUID(int=self.rng.getrandbits(128))
        self.change(TopicCreated(TopicImage(name, topic_id, tuple(self.state() for _ in range(partitions)))))

    def step(self) -> None:
        """Change something: a topic, a broker, the logs, or permissions."""
        rng, topics = self.rng, self.image.topics
        match rng.randrange(9), rng.choice(NAMES):
            case 0 | 1, name if name not in topics:
                self.create(name, rng.randint(1, 3))
            case 0, name:
                self.change(TopicDeleted(name, topics[name].topic_id))
            case 1 | 2 | 3, name if name in topics:
                self.change(PartitionChanged(name, rng.randrange(len(topics[name].partitions)), self.state()))
            case 4, name if name in topics and len(topics[name].partitions) < 5:
                self.change(PartitionsAdded(name, (self.state(),)))
            case 5, _:
                listeners = rng.choice((LISTENERS, LISTENERS[:1], LISTENERS[1:]))
                self.register(rng.choice(sorted(self.image.brokers)), listeners, fenced=rng.random() < 0.3)
            case 6, name:
                self.change(ConfigReplaced(ConfigResource(ResourceType.TOPIC, name), {"retention.ms": "1"}))
            case 7, _:
                self.logs.is_opening = not self.logs.is_opening
                self.logs.missing = {(name, rng.randrange(3)) for name in rng.sample(NAMES, 3)}
            case _, name:
                right = (rng.choice(USERS), rng.choice((Operation.DESCRIBE, Operation.READ)), name)
                if self.rights is not None:
                    self.rights.given ^= {right}

    def request(self) -> tuple[RequestContext, MetadataRequest]:
        """Return a request of one of the users."""
        rng, version = self.rng, self.rng.randrange(14)
        session = ClientSession(user(rng.choice(USERS)), "127.0.0.1", rng.choice(LISTENERS))
        context = RequestContext(MetadataRequest.API_KEY, version, 1, "test", ConnectedClient(session, 1), 0.0)
        request = MetadataRequest(topics=None if version else [], allow_auto_topic_creation=True)
        if rng.random() < 0.5:
            request.topics = [Asked(name=name) for name in rng.choices((*NAMES, "no/name"), k=3)]
            if version >= 12:
                ids = [*self.image.topic_names, UUID(int=5)]
                request.topics += [Asked(name=None, topic_id=topic_id) for topic_id in rng.choices(ids, k=2)]
        request.include_topic_authorized_operations = version >= 8 and rng.random() < 0.2
        return context, request

    def expected(self, context: RequestContext, request: MetadataRequest, image: MetadataImage) -> MetadataResponse:
        """Return the expected response, computed from the image alone."""
        alive = {number for number, broker in image.brokers.items() if not broker.fenced}
        endpoints = {number: image.brokers[number].endpoint(context.listener) for number in sorted(alive)}
        reachable = {number: endpoint for number, endpoint in endpoints.items() if endpoint is not None}
        response = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=number, host=endpoint.host, port=endpoint.port)
                for number, endpoint in reachable.items()
            ],
            cluster_id="c",
            controller_id=1 if 1 in reachable else min(reachable, default=-1),
            topics=[],
        )

        def may(operation: Operation, name: str) -> bool:
            return self.rights is None or (context.principal.name, operation, name) in self.rights.given

        def partition(topic: str, index: int, state: PartitionState) -> Any:
            error, leader = ErrorCode.NONE, state.leader
            if self.logs.lacks_log(topic, index) or leader not in alive:
                error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
            elif leader not in reachable:
                leader = NO_LEADER
                error = ErrorCode.LISTENER_NOT_FOUND if context.api_version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
            return MetadataResponse.MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[each for each in state.replicas if each not in reachable],
            )

        def operations(name: str) -> int:
            allowed = (each for each in SUPPORTED_OPERATIONS[Secured.TOPIC] if may(each, name))
            return bit_field(allowed) if request.include_topic_authorized_operations else NOT_REQUESTED

        def described(topic: TopicImage) -> Topic:
            return Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.name == OFFSETS_TOPIC,
                partitions=[partition(topic.name, index, state) for index, state in enumerate(topic.partitions)],
                topic_authorized_operations=operations(topic.name),
            )

        def error(code: ErrorCode, name: str | None, topic_id: UUID = ZERO_UUID) -> Topic:
            return Topic(error_code=code, name=name, topic_id=topic_id, partitions=[])

        if not request.topics:
            topics = image.topics.values()
            response.topics = [described(topic) for topic in topics if may(Operation.DESCRIBE, topic.name)]
            return response
        for asked in {(each.name, each.topic_id): each for each in request.topics}.values():
            name = image.topic_names.get(asked.topic_id) if asked.name is None else asked.name
            if name is None:
                response.topics.append(error(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id))
            elif not may(Operation.DESCRIBE, name):
                response.topics.append(error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.name, asked.topic_id))
            elif name in image.topics:
                response.topics.append(described(image.topics[name]))
            else:
                is_legal = "/" not in name
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION
                response.topics.append(error(code, name))
                response.topics[-1].topic_authorized_operations = operations(name)
        return response

    async def check(self, context: RequestContext, request: MetadataRequest) -> None:
        """Send a request, and compare the response with the expected one."""
        expected = decoded(self.expected(context, request, self.image), context.api_version)
        assert await answered(self.api, context, request) == expected


@pytest.mark.parametrize("is_secured", [True, False])
@pytest.mark.parametrize("bytes_max", [10_000_000, 1500, 0])
@pytest.mark.parametrize("seed", range(2))
async def test_a_response_shows_current_state_that_this_user_may_see(
    seed: int, bytes_max: int, is_secured: bool
) -> None:
    world = World(random.Random(seed), is_secured=is_secured, bytes_max=bytes_max)
    for _ in range(60):
        world.step()
        for _ in range(3):
            await world.check(*world.request())


def all_topics(version: int = 12, *, name: str = "alice", listener: str = "PLAINTEXT") -> Any:
    session = ClientSession(user(name), "127.0.0.1", listener)
    context = RequestContext(MetadataRequest.API_KEY, version, 1, "test", ConnectedClient(session, 1), 0.0)
    return context, MetadataRequest(topics=None if version else [])


@pytest.mark.parametrize("brokers_change", [True, False])
async def test_a_long_response_that_was_begun_before_a_change_changes_no_later_one(brokers_change: bool) -> None:
    world = World(random.Random(1), is_secured=False)
    for number in range(2 * SLICE):
        world.create(f"t{number:03}")
    context, request = all_topics()
    expected = world.expected(context, request, world.image)
    responding: Any = world.api.metadata(context, request)
    long = asyncio.ensure_future(responding)
    for _ in range(2):
        await asyncio.sleep(0)  # it has settled, and then described the first slice
    assert not long.done()
    if brokers_change:
        world.register(2, LISTENERS, fenced=True)
    world.change(PartitionChanged("t007", 0, replace(world.state(), leader_epoch=77)))
    await world.check(*all_topics())
    assert decoded(await long) == decoded(expected)
    await world.check(*all_topics())


def decoded(response: MetadataResponse, version: int = 12) -> MetadataResponse:
    return decode(MetadataResponse, version, encode(response, version))


async def test_a_broker_alone_responds_at_once() -> None:
    world = World(random.Random(1), brokers=1)
    world.create("t")
    assert isinstance(world.api.metadata(*all_topics()), MetadataResponse)
    world.register(2, LISTENERS)
    waiting: Any = world.api.metadata(*all_topics())
    assert isinstance(await waiting, MetadataResponse)


class Counting:
    """Encodes nothing, and counts the calls."""

    def __init__(self, size: int = 100) -> None:
        self.made: list[tuple[int, str]] = []
        self.size = size

    def __call__(self, version: int, view: ListenerView, topic: TopicImage) -> bytes:
        self.made.append((version, topic.name))
        return bytes(self.size)

    def taken(self) -> list[str]:
        made, self.made = self.made, []
        return [name for _, name in made]


def ask(topics: EncodedTopics, image: MetadataImage, version: int = 12, listener: str = "PLAINTEXT") -> None:
    shown = topics.shown(image, listener, version, ErrorCode.LISTENER_NOT_FOUND)
    for topic in image.topics.values():
        shown.encoded(topic)


def test_only_topics_whose_logs_are_being_opened_are_encoded_for_each_request() -> None:
    world, encode_one = World(random.Random(1)), Counting()
    topics = EncodedTopics(encode_one)
    for name in "abc":
        world.create(name)
    ask(topics, world.image)
    assert encode_one.taken() == ["a", "b", "c"]
    for _ in range(2):
        shown = topics.shown(world.image, "PLAINTEXT", 12, ErrorCode.LISTENER_NOT_FOUND)
        opening = shown.while_opening(shown.view, {"b"}.__contains__)
        assert opening.all is None
        for topic in world.image.topics.values():
            opening.encoded(topic)
        assert encode_one.taken() == ["b"]


def test_a_topic_is_encoded_again_only_when_its_bytes_may_differ() -> None:
    world, encode_one = World(random.Random(1)), Counting()
    topics = EncodedTopics(encode_one)
    for name in "ab":
        world.create(name)
    ask(topics, world.image)
    ask(topics, world.image)
    assert encode_one.taken() == ["a", "b"]
    world.change(PartitionChanged("b", 0, world.state()))
    ask(topics, world.image)
    assert encode_one.taken() == ["b"], "another leader"
    world.change(ConfigReplaced(ConfigResource(ResourceType.TOPIC, "a"), {"retention.ms": "1"}))
    ask(topics, world.image)
    assert encode_one.taken() == [], "a change that the response does not show"
    world.register(2, LISTENERS, fenced=True)
    ask(topics, world.image)
    assert encode_one.taken() == ["a", "b"], "another broker is alive"
    ask(topics, world.image, version=9)
    ask(topics, world.image, listener="OTHER")
    assert encode_one.taken() == ["a", "b"] * 2, "another version, and another listener"
    ask(topics, world.image)
    assert encode_one.taken() == []


def test_deleted_topics_are_forgotten() -> None:
    world, topics = World(random.Random(1)), EncodedTopics(Counting())
    for name in "abc":
        world.create(name)
    ask(topics, world.image)
    assert topics.size == 3 * (100 + ENTRY_BYTES)
    for name in "ab":
        world.change(TopicDeleted(name, world.image.topics[name].topic_id))
    ask(topics, world.image)
    assert topics.size == 100 + ENTRY_BYTES


def test_the_memory_is_limited() -> None:
    world, encode_one = World(random.Random(1)), Counting()
    topics = EncodedTopics(encode_one, bytes_max=2 * (100 + ENTRY_BYTES))
    for name in "abc":
        world.create(name)
    ask(topics, world.image)
    assert topics.size == 2 * (100 + ENTRY_BYTES)
    encode_one.taken()
    ask(topics, world.image)
    assert encode_one.taken() == ["c"], "what found no room is encoded each time"
    ask(topics, world.image, version=9)
    assert topics.size == 2 * (100 + ENTRY_BYTES), "the version that is asked for now takes the room of the other one"
