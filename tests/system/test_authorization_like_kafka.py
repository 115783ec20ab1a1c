"""A client without a permission gets the same errors from Parley and from Apache Kafka, for each row of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley import Broker
from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, PermissionType, ResourcePattern
from parley.broker.security.operations import Operation
from parley.broker.security.requirements import REQUIREMENTS, Effect, Requirement
from parley.broker.security.resources import CLUSTER_NAME, ResourceType
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.security.client_security import client_security
from parley.tools.cli.acls import create, delete, select
from tests.broker.api.authorization.test_guards import ALTERNATIVES, CHANGES, errors_in
from tests.broker.api.test_every_version import TOPIC, filled, fit, name_topics_once
from tests.support.kafka import Kafka4

pytestmark = [pytest.mark.slow, pytest.mark.system]

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.users.plain.sasl.jaas.config": f'{MODULE} user_alice="a" user_mallory="m";',
    "auto.create.topics.enable": "false",
}
"""Clients of the listener PLAINTEXT may do everything, clients of USERS only what ACLs allow."""

TYPES = [kind for kind in ResourceType if kind is not ResourceType.ANY]
NOT_ON_BROKERS = {
    "AlterPartition": "Kafka's brokers do not serve it",
    "AssignReplicasToDirs": "Kafka's brokers do not serve it",
    "GetReplicaLogInfo": "Kafka does not serve it",
    "ControlledShutdown": "Kafka does not serve it",
    "CreateDelegationToken": "the request is about oneself",
    "StoreDelegationToken": "Parley's own",
    "Envelope": "Kafka's brokers do not serve it",
    **dict.fromkeys(
        (
            "MigrateCoordination",
            "VerifyLogs",
            "DescribeBackgroundWork",
            "FetchMetadata",
            "ReportOfflineReplicas",
            "HandOverLeadership",
            "StoreDelegationToken",
        ),
        "Parley's own",
    ),
}
OTHER_REASONS = {
    ("InitProducerId", Operation.TWO_PHASE_COMMIT): "Kafka asks transaction.two.phase.commit.enable first",
    ("FindCoordinator", Operation.CLUSTER_ACTION): "there are no share groups in Parley",
}
ROWS = [
    row
    for row in REQUIREMENTS
    if row.effect in (Effect.REFUSED, Effect.ELEMENT)
    and row.api not in NOT_ON_BROKERS
    and (row.api, row.operation) not in OTHER_REASONS
]


class Cluster:
    """A cluster, with a client that may do everything and a client with the permissions of a user."""

    def __init__(self, everything: str, users: str) -> None:
        self.admin = Client(everything)
        self.users = users

    def client(self, user: str) -> Client:
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{MODULE} username="{user}" password="{user[0]}";',
        }
        return Client(self.users, security=client_security(properties))

    async def prepare(self) -> Any:
        """Create the topic, and let alice do everything. Returns the topic's id."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        await self.admin.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        for key_type in (0, 1):  # creates the internal topics
            await self._until_coordinated(key_type)
        await self.change(
            add=[_acl(kind, "User:alice", Operation.ALL, PermissionType.ALLOW) for kind in TYPES], remove=[]
        )
        (found,) = (
            await self.admin.send(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)]))
        ).topics
        return found.topic_id

    async def _until_coordinated(self, key_type: int) -> None:
        async with asyncio.timeout(60):
            while True:
                found = await self.admin.send(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]))
                if found.coordinators[0].error_code == ErrorCode.NONE:
                    return
                await asyncio.sleep(0.2)  # a client's backoff

    async def change(self, add: list[AclBinding], remove: list[AclBinding]) -> None:
        """Change the ACLs, and wait until the broker has them."""
        if add:
            await create(self.admin, add)
        if remove:
            await delete(self.admin, [_filter(acl) for acl in remove])
        async with asyncio.timeout(30):
            while True:
                present = set(await select(self.admin, AclFilter()))
                if present >= set(add) and not present & set(remove):
                    return
                await asyncio.sleep(0.02)  # Kafka's broker learns it from its controller


def _acl(kind: ResourceType, principal: str, operation: Operation, permission: PermissionType) -> AclBinding:
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "*"
    return AclBinding(ResourcePattern(kind, PatternType.LITERAL, name), principal, "*", operation, permission)


def _filter(acl: AclBinding) -> AclFilter:
    pattern = acl.pattern
    return AclFilter(
        pattern.type, pattern.pattern_type, pattern.name, acl.principal, acl.host, acl.operation, acl.permission
    )


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str]]]:
    """Yield the addresses of Kafka's and Parley's listeners."""
    kafka = Kafka4(_folder(tmp_path_factory), SETTINGS, {"USERS": "SASL_PLAINTEXT"})
    parley = {
        **SETTINGS,
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    try:
        with Broker(parley) as broker:
            ours = {each.listener: f"{each.host}:{each.port}" for each in broker.server.endpoints}
            yield [
                (kafka.bootstrap_servers, kafka.listeners["USERS"]),
                (ours["PLAINTEXT"], ours["USERS"]),
            ]
    finally:
        kafka.close()


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("kafka")


async def _versions(client: Client) -> dict[int, int]:
    answer = await client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    return {api.api_key: api.max_version for api in answer.api_keys}


def _request(row: Requirement, version: int, topic_id: Any) -> Any:
    request: Any = filled(APIS[row.api_key].request, version, topic_id)
    if (change := CHANGES.get((row.api, row.type))) is not None:
        change(request)
    fit(request, version)
    name_topics_once(request, version)
    return request


async def _errors(
    addresses: list[tuple[str, str]], user: str, rows: list[Requirement], *, denies: bool
) -> list[dict[str, list[str]]]:
    """Return the errors that the user gets from each cluster, by row. ``denies`` revokes only the permission of that
    row."""
    clusters = [Cluster(*each) for each in addresses]
    ids = [await cluster.prepare() for cluster in clusters]
    supported = [await _versions(cluster.admin) for cluster in clusters]
    found: list[dict[str, list[str]]] = []
    for cluster, topic_id in zip(clusters, ids, strict=True):
        errors: dict[str, list[str]] = {}
        async with cluster.admin, cluster.client(user) as client:
            for row in rows:
                version = min(each[row.api_key] for each in supported)
                rights = [(row.type, row.operation), *ALTERNATIVES.get(row.api, ())]
                denied = [_acl(kind, "User:alice", each, PermissionType.DENY) for kind, each in rights]
                if denies:
                    await cluster.change(add=denied, remove=[])
                name = f"{row.api} v{version} without {row.operation.name} on {row.type.name}"
                try:
                    response = await client.send(_request(row, version, topic_id), version=version, timeout=20)
                    errors[name] = sorted(ErrorCode(code).name for code in errors_in(response))
                except KafkaError as error:
                    errors[name] = [f"no response: {error.code.name}"]
                if denies:
                    await cluster.change(add=[], remove=denied)
        found.append(errors)
    return found


async def test_without_one_right_the_errors_are_kafkas(addresses: list[tuple[str, str]]) -> None:
    kafka, parley = await _errors(addresses, "alice", ROWS, denies=True)
    differing = {name: (theirs, parley[name]) for name, theirs in kafka.items() if parley[name] != theirs}
    assert not differing, differing


async def test_without_any_right_the_errors_are_kafkas(addresses: list[tuple[str, str]]) -> None:
    kafka, parley = await _errors(addresses, "mallory", ROWS, denies=False)
    differing = {name: (theirs, parley[name]) for name, theirs in kafka.items() if parley[name] != theirs}
    assert not differing, differing
