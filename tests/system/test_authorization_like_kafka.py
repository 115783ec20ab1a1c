"""A client without a permission gets the same errors from Parley and from Apache Kafka, for each row of the table."""

from __future__ import annotations

import asyncio
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
from parley.tools.cli import acls
from parley.tools.cli.acls import create, delete, select
from tests.broker.api import test_every_version
from tests.broker.api.authorization import test_guards
from tests.broker.api.authorization.test_guards import ALTERNATIVES, CHANGES, errors_in
from tests.broker.api.test_every_version import TOPIC, filled, fit, name_topics_once
from tests.support.kafka import ROOT, Kafka4
from tests.support.kafka_answers import compare_with_kafka

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

Versions = dict[int, int]
"""The newest version of each API key."""
Errors = dict[str, list[str]]
"""The errors in the response to each request."""

SCRIPT = [
    *map(Path, (__file__, test_guards.__file__, test_every_version.__file__, acls.__file__)),
    ROOT / "parley" / "broker" / "security",
]
"""What decides about the requests."""

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
        """Create the topic unless it exists, and let alice do everything. Returns the topic's id."""
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


async def _versions(client: Client) -> Versions:
    answer = await client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"))
    return {api.api_key: api.max_version for api in answer.api_keys}


def _request(row: Requirement, version: int, topic_id: Any) -> Any:
    request: Any = filled(APIS[row.api_key].request, version, topic_id)
    if (change := CHANGES.get((row.api, row.type))) is not None:
        change(request)
    fit(request, version)
    name_topics_once(request, version)
    return request


async def _errors(cluster: Cluster, topic_id: Any, user: str, known: Versions, *, denies: bool) -> Errors:
    """Return the errors that the user gets from a cluster, by row. ``denies`` revokes only the permission of that row.
    The version of each request is the newest that the cluster and its reference know."""
    errors: Errors = {}
    async with cluster.client(user) as client:
        for row in ROWS:
            version = known[row.api_key]
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
    return errors


async def _answers(everything: str, users: str, other: Versions) -> tuple[Versions, Errors, Errors]:
    """Return the newest versions that a cluster knows, and the errors for alice, without one right, and for mallory,
    without any. ``other`` are the newest versions that the other cluster knows."""
    cluster = Cluster(everything, users)
    async with cluster.admin:
        topic_id = await cluster.prepare()
        own = await _versions(cluster.admin)
        known = {key: min(own[key], version) for key, version in other.items() if key in own}
        without_one = await _errors(cluster, topic_id, "alice", known, denies=True)
        without_any = await _errors(cluster, topic_id, "mallory", known, denies=False)
    return own, without_one, without_any


async def _known_to(address: str) -> Versions:
    async with Client(address) as client:
        return await _versions(client)


def test_without_a_right_the_errors_are_kafkas(tmp_path: Path) -> None:
    properties = {
        **SETTINGS,
        "listeners": "PLAINTEXT://127.0.0.1:0,USERS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }

    def theirs() -> tuple[Versions, Errors, Errors]:
        kafka = Kafka4(tmp_path, SETTINGS, {"USERS": "SASL_PLAINTEXT"})
        try:
            return asyncio.run(_answers(kafka.bootstrap_servers, kafka.listeners["USERS"], ours))
        finally:
            kafka.close()

    def check(answers: tuple[Versions, Errors, Errors]) -> None:
        versions, *wanted = answers
        _, *found = asyncio.run(_answers(addresses["PLAINTEXT"], addresses["USERS"], versions))
        for mine, their in zip(found, wanted, strict=True):
            assert not {name: (their.get(name), mine[name]) for name in mine if mine[name] != their.get(name)}

    with Broker(properties) as broker:
        addresses = {each.listener: f"{each.host}:{each.port}" for each in broker.server.endpoints}
        ours = asyncio.run(_known_to(addresses["PLAINTEXT"]))
        compare_with_kafka(theirs, check, script=SCRIPT, label=str(sorted(ours.items())))
