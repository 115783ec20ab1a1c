"""Delegation tokens on a broker: created, described, used to log in, renewed, expired, and then removed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from parley import Broker
from parley.broker.controller.delegation_tokens import remove_expired, store_token
from parley.broker.metadata.changes import DelegationTokenReplaced
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.principal import Principal, user
from parley.protocol.client import Client, NotAuthenticated
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.acls import CreateAclsRequest
from parley.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from parley.protocol.security.client_security import client_security

COMMON = "org.apache.kafka.common.security"
PLAIN = f"{COMMON}.plain.PlainLoginModule required"
SCRAM = f"{COMMON}.scram.ScramLoginModule required"
USERS = "".join(f' user_{name}="{name}"' for name in ("admin", "alice", "bob"))
SETTINGS = {
    "listeners": "USERS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "USERS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.users.plain.sasl.jaas.config": f"{PLAIN}{USERS};",
    "listener.name.users.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.secret.key": "the key",
    "coordination.url": "memory:",
}


@pytest.fixture
async def addresses() -> AsyncIterator[dict[str, str]]:
    async with Broker(SETTINGS) as broker:
        yield {each.listener: f"{each.host}:{each.port}" for each in broker.server.endpoints}


def client(address: str, mechanism: str, line: str) -> Client:
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": line}
    return Client(address, security=client_security(properties))


def as_user(address: str, name: str) -> Client:
    return client(address, "PLAIN", f'{PLAIN} username="{name}" password="{name}";')


def by_token(address: str, token: Any) -> Client:
    password = b64encode(bytes(token.hmac)).decode()
    return client(
        address, "SCRAM-SHA-256", f'{SCRAM} username="{token.token_id}" password="{password}" tokenauth="true";'
    )


def create(owner: str | None = None, lifetime_ms: int = -1) -> CreateDelegationTokenRequest:
    renewer = CreateDelegationTokenRequest.CreatableRenewers(principal_type="User", principal_name="bob")
    return CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else None,
        owner_principal_name=owner,
        renewers=[renewer],
        max_lifetime_ms=lifetime_ms,
    )


async def described(asking: Client) -> list[str]:
    answer = await asking.send(DescribeDelegationTokenRequest(owners=None))
    assert answer.error_code == ErrorCode.NONE
    return [token.token_id for token in answer.tokens]


async def test_a_token_from_its_creation_to_its_end(addresses: dict[str, str]) -> None:
    address = addresses["USERS"]
    async with as_user(address, "alice") as alice, as_user(address, "bob") as bob, as_user(address, "admin") as admin:
        token = await alice.send(create())
        assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "alice", "alice")
        other = await alice.send(create())
        assert await described(alice) == [token.token_id, other.token_id]
        assert await described(bob) == [token.token_id, other.token_id], "a renewer sees them"
        async with by_token(address, token) as worker:
            refused = await worker.send(create())
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        renewed = await bob.send(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
        assert renewed.error_code == ErrorCode.NONE
        assert renewed.expiry_timestamp_ms >= token.expiry_timestamp_ms
        mismatch = await admin.send(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
        assert mismatch.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        unknown = await alice.send(RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1))
        assert unknown.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        gone = await alice.send(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
        assert gone.error_code == ErrorCode.NONE
        assert await described(alice) == [other.token_id]
    with pytest.raises(NotAuthenticated):
        async with by_token(address, token) as worker:
            await worker.metadata([])


async def test_older_clients_get_the_fields_that_they_know(addresses: dict[str, str]) -> None:
    async with as_user(addresses["USERS"], "alice") as alice:
        for version in range(4):
            created = await alice.send(create(), version=version)
            requester = "alice" if version >= 3 else ""
            assert (created.error_code, created.token_requester_principal_name) == (ErrorCode.NONE, requester)
            described = await alice.send(DescribeDelegationTokenRequest(owners=None), version=version)
            assert {token.token_requester_principal_name for token in described.tokens} == {requester}


async def test_tokens_for_others_and_of_others_need_rights(addresses: dict[str, str]) -> None:
    address = addresses["USERS"]
    async with as_user(address, "alice") as alice, as_user(address, "admin") as admin:
        own = await admin.send(create())
        assert await described(alice) == []
        refused = await alice.send(create("carol"))
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        grant = [
            CreateAclsRequest.AclCreation(
                resource_type=7,
                resource_name=name,
                principal="User:alice",
                host="*",
                operation=operation,
                permission_type=3,
            )
            for name, operation in (("User:carol", 13), ("User:carol", 14))
        ]
        await admin.send(CreateAclsRequest(creations=grant))
        token = await alice.send(create("carol"))
        assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "carol", "alice")
        assert await described(alice) == [token.token_id]
        assert set(await described(admin)) == {own.token_id, token.token_id}


async def test_a_client_without_a_login_gets_no_tokens(addresses: dict[str, str]) -> None:
    async with Client(addresses["PLAINTEXT"]) as anonymous:
        refused = await anonymous.send(create())
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert refused.hmac == b""


def token(token_id: str, expires_ms: int = 100, requester: str = "alice") -> DelegationToken:
    return DelegationToken(token_id, user("alice"), user(requester), (), 0, expires_ms, 1000)


def test_a_principal_can_have_created_so_many_tokens() -> None:
    image = MetadataImage("c").with_changes([DelegationTokenReplaced("1", token("1"))])
    store = partial(store_token, image, "2", None, max_per_requester=1)
    with pytest.raises(KafkaError, match=r"User:alice already has 1 delegation tokens") as refused:
        store(token("2"))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert store(token("2", requester="bob")).changes
    assert store_token(image, "1", token("1"), token("1", 200), 1).changes, "a renewal"


@pytest.mark.parametrize("token_id", ["", ".", "a/b", "\u00e9", "a" * 65, "a\n"])
def test_an_id_that_cannot_be_a_key_is_refused(token_id: str) -> None:
    with pytest.raises(KafkaError, match="no broker creates tokens with such an id") as refused:
        store_token(MetadataImage("c"), token_id, None, None, 10)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_token_that_has_changed_meanwhile_is_not_overwritten() -> None:
    image = MetadataImage("c").with_changes([DelegationTokenReplaced("1", token("1"))])
    with pytest.raises(KafkaError, match="Try again"):
        store_token(image, "1", token("1", 50), None, 10)


def test_expired_tokens_are_removed() -> None:
    tokens = [token("old", 99), token("now", 100), token("new", 101)]
    image = MetadataImage("c").with_changes([DelegationTokenReplaced(each.token_id, each) for each in tokens])
    decision = remove_expired(image, 100)
    assert set(image.with_changes(decision.changes).delegation_tokens) == {"now", "new"}
    assert decision.result is False


class Asked(frozenset[Principal]):
    """The owners that a request names. A client may name 65,000, so they must not be searched once per token."""

    def __iter__(self) -> Iterator[Principal]:
        raise AssertionError("the owners are searched one by one")


def test_tokens_are_found_without_a_search_of_the_owners_that_a_client_names() -> None:
    alices = replace(token("t"), owner=user("alice"), renewers=(user("bob"), user("carol")))
    assert alices.concerns_any(Asked({user("zoe"), user("alice")}))
    assert alices.concerns_any(Asked({user("zoe"), user("carol")}))
    assert not alices.concerns_any(Asked({user("zoe"), user("dave")}))
    requested = replace(alices, requester=user("dave"))
    assert requested.concerns_any(Asked({user("dave")}))
    assert requested.concerns(user("dave"))
    assert not requested.may_be_changed_by(user("dave"))
