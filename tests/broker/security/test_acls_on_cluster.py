"""ACLs of a cluster: every broker applies a change before the response to it, and still has it after a restart."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, PermissionType, ResourcePattern
from parley.broker.security.authorizer import AclAuthorizer
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.broker.server import BrokerServer
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.cli.acls import create, delete
from tests.broker.security.secured_brokers import SecuredBrokers

READ = AclBinding(
    ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "t"),
    "User:alice",
    "*",
    Operation.READ,
    PermissionType.ALLOW,
)
CREATE = AclBinding(
    ResourcePattern(ResourceType.TOPIC, PatternType.PREFIXED, "alice-"),
    "User:alice",
    "*",
    Operation.CREATE,
    PermissionType.ALLOW,
)
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:broker",
}


def acls_of(server: BrokerServer) -> set[AclBinding]:
    authorizer = server.parts.authorization.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    return set(authorizer.index)


def new_topic(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def test_every_broker_has_the_acls_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.broker.api.acls.APPLIED_MAX_S", 60.0)  # on a machine that stands still
    brokers = SecuredBrokers(tmp_path)
    settings = [{**brokers.settings(number, "SASL_PLAINTEXT"), **AUTHORIZER} for number in (1, 2, 3)]
    async with brokers.running(*settings) as servers:
        for server in servers:  # whichever is the controller, the others forward
            async with brokers.client(server, "broker", "SASL_PLAINTEXT") as admin:
                await create(admin, [READ, CREATE])
                assert [acls_of(each) for each in servers] == [{READ, CREATE}] * 3
                await delete(admin, [AclFilter()])
                assert [acls_of(each) for each in servers] == [set()] * 3
        async with brokers.client(servers[0], "broker", "SASL_PLAINTEXT") as admin:
            await create(admin, [READ, CREATE])
        for number, server in enumerate(servers):
            async with brokers.client(server, "alice", "SASL_PLAINTEXT") as alice:
                allowed, refused = f"alice-{number}", f"bob-{number}"
                (created,) = (await alice.send(new_topic(allowed))).topics
                assert created.error_code == ErrorCode.NONE, "the broker's own right is enough to forward it"
                (created,) = (await alice.send(new_topic(refused))).topics
                assert created.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    async with AsyncExitStack() as stack:
        (again,) = await stack.enter_async_context(brokers.running(settings[0]))
        assert acls_of(again) == {READ, CREATE}
