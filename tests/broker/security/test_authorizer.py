"""Authorizers: the built-in one, which decides by ACLs, its cache, and custom classes."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.config import ConfigError
from parley.broker.metadata.changes import AclBucketReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.security import authorizer as authorizer_module
from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.authorizer import AclAuthorizer, AuthorizationDecision, Authorizer, load_authorizer
from parley.broker.security.operations import Operation
from parley.broker.security.principal import user
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession

ALICE = ClientSession(user("alice"), "10.0.0.1", "PLAINTEXT")
TOPIC, READ = ResourceType.TOPIC, Operation.READ
ALLOW_READ = AclBinding(ResourcePattern(TOPIC, PatternType.LITERAL, "t"), "User:alice", "*", READ, PermissionType.ALLOW)
IMAGE = MetadataImage("c")


def apply(authorizer: AclAuthorizer, *bindings: AclBinding) -> None:
    authorizer.apply(Delta(1, 1, (AclBucketReplaced(0, frozenset(bindings)),)), IMAGE)


def test_a_change_of_the_acls_counts_at_once() -> None:
    authorizer = AclAuthorizer()
    apply(authorizer)
    assert not authorizer.authorize(ALICE, READ, TOPIC, "t").is_allowed
    apply(authorizer, ALLOW_READ)
    decision = authorizer.authorize(ALICE, READ, TOPIC, "t")
    assert decision.is_allowed
    assert decision.reason == "ALLOW User:alice READ on TOPIC:LITERAL:t from host *"
    assert authorizer.authorize(ALICE, READ, TOPIC, "t") is decision
    apply(authorizer)
    assert not authorizer.authorize(ALICE, READ, TOPIC, "t").is_allowed


def test_a_change_of_something_else_keeps_the_cached_decisions() -> None:
    authorizer = AclAuthorizer()
    apply(authorizer, ALLOW_READ)
    decision = authorizer.authorize(ALICE, READ, TOPIC, "t")
    authorizer.apply(Delta(1, 2, ()), IMAGE)
    assert authorizer.authorize(ALICE, READ, TOPIC, "t") is decision


def test_before_the_metadata_has_arrived_only_super_users_may_do_anything() -> None:
    authorizer = AclAuthorizer([user("admin")], allow_if_no_acl=True)
    assert not authorizer.authorize(ALICE, READ, TOPIC, "t").is_allowed
    assert not authorizer.authorize_any(ALICE, READ, TOPIC).is_allowed
    assert authorizer.authorize(ClientSession(user("admin"), "h", "L"), READ, TOPIC, "t").is_allowed
    authorizer.apply(Delta(1, 1, ()), IMAGE)
    assert authorizer.authorize(ALICE, READ, TOPIC, "t").is_allowed
    assert authorizer.authorize_any(ALICE, READ, TOPIC).is_allowed


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "CACHED_DECISIONS_MAX", 20)
    monkeypatch.setattr(authorizer_module, "CACHED_PER_CLIENT_MAX", 10)
    authorizer = AclAuthorizer()
    apply(authorizer, ALLOW_READ)
    clients = [ClientSession(user("alice"), f"10.0.0.{number}", "L") for number in range(9)]
    kept = authorizer.authorize(clients[0], READ, TOPIC, "t")
    for number in range(100):
        authorizer.authorize(clients[1], READ, TOPIC, f"t-{number}")
        assert authorizer.cached_decisions <= 11
    assert authorizer.authorize(clients[0], READ, TOPIC, "t") is kept, "one client does not push out another's"
    for client in clients:
        for number in range(10):
            authorizer.authorize(client, READ, TOPIC, f"t-{number}")
            assert authorizer.cached_decisions <= 20


def test_decisions_about_long_names_are_not_kept() -> None:
    authorizer = AclAuthorizer()
    apply(authorizer, ALLOW_READ)
    authorizer.authorize(ALICE, READ, ResourceType.GROUP, "g" * 1_000_000)
    assert authorizer.cached_decisions == 0


class Everything(Authorizer):
    """Allows everything."""

    def configure(self, configs: Any) -> None:
        self.configs = configs

    def authorize(
        self, client: ClientSession, operation: Operation, type: ResourceType, name: str
    ) -> AuthorizationDecision:
        return AuthorizationDecision(True, "everything is allowed")

    def authorize_any(self, client: ClientSession, operation: Operation, type: ResourceType) -> AuthorizationDecision:
        return AuthorizationDecision(True, "everything is allowed")


def load(name: str) -> Authorizer | None:
    return load_authorizer(name, super_users=(), allow_if_no_acl=False, configs={"x": "1"})


def test_authorizers_are_loaded_by_name() -> None:
    assert load("") is None
    for name in ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer"):
        assert isinstance(load(name), AclAuthorizer)
    own = load(f"{__name__}.Everything")
    assert type(own).__name__ == "Everything"
    assert own.configs == {"x": "1"}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["NoSuchEntryPoint", "no.such.Module", "builtins.dict"])
def test_a_class_that_is_no_authorizer_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        load(name)
