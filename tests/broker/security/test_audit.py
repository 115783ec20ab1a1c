"""The audit log: what it contains, and its bound."""

from __future__ import annotations

import logging

import pytest

from parley.broker.metadata.changes import AclBucketReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.metrics.broker_metrics import authorization_metrics
from parley.broker.security.acls.bindings import AclBinding, PatternType, PermissionType, ResourcePattern
from parley.broker.security.audit import BURST_S, CLIENTS_MAX, LINES_OF_CLIENT_PER_S, LINES_PER_S, AuditLog
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AclAuthorizer, AuthorizationDecision
from parley.broker.security.operations import Operation
from parley.broker.security.principal import user
from parley.broker.security.resources import ResourceType
from parley.broker.security.session import ClientSession

ALICE = ClientSession(user("alice"), "10.0.0.1", "EXTERNAL")


def record(audit: AuditLog, *, is_allowed: bool, client: ClientSession = ALICE, name: str = "t") -> None:
    decision = AuthorizationDecision(is_allowed, "why")
    audit.record(client, "Produce", Operation.WRITE, ResourceType.TOPIC, name, decision)


def test_a_denied_operation_is_logged_with_all_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        audit = AuditLog(lambda: 0.0)
        record(audit, is_allowed=False)
        record(audit, is_allowed=True)
    (line,) = caplog.records
    facts = vars(line)
    assert line.message == "denied"
    expected = {
        "principal": "User:alice",
        "host": "10.0.0.1",
        "listener": "EXTERNAL",
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "api": "Produce",
        "reason": "why",
    }
    assert {name: facts[name] for name in expected} == expected
    assert (audit.allowed, audit.denied) == (1, 1)


def test_an_allowed_operation_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        record(AuditLog(lambda: 0.0), is_allowed=True)
    assert [line.message for line in caplog.records] == ["allowed"]


def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    with caplog.at_level(logging.INFO):
        audit = AuditLog(lambda: now[0])
        for _ in range(5000):
            record(audit, is_allowed=False)
        burst = LINES_OF_CLIENT_PER_S * BURST_S
        assert len(caplog.records) == burst
        now[0] = 1.0
        record(audit, is_allowed=False)
        assert vars(caplog.records[-1])["not_logged"] == 5000 - burst
        record(audit, is_allowed=False, client=ClientSession(user("bob"), "10.0.0.1", "EXTERNAL"))
        assert vars(caplog.records[-1])["principal"] == "User:bob", "the lines of others are still written"
        for number in range(CLIENTS_MAX + 10):
            for _ in range(5):
                record(audit, is_allowed=False, client=ClientSession(user("bob"), str(number), "EXTERNAL"))
    assert len(caplog.records) <= LINES_PER_S * (BURST_S + 1)


def test_long_names_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        record(AuditLog(lambda: 0.0), is_allowed=False, name="n" * 1_000_000)
    assert len(vars(caplog.records[0])["resource"]) < 300


def test_the_metrics_count_allowed_and_denied_operations() -> None:
    authorizer = AclAuthorizer()
    acl = AclBinding(
        ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, "t"),
        "User:alice",
        "*",
        Operation.WRITE,
        PermissionType.ALLOW,
    )
    authorizer.apply(Delta(1, 1, (AclBucketReplaced(0, frozenset({acl})),)), MetadataImage("c"))
    authorization = Authorization(authorizer, AuditLog(lambda: 0.0))

    class Request:
        api_key = 0
        session = ALICE

    assert authorization.may(Request(), Operation.WRITE, ResourceType.TOPIC, "t")
    assert not authorization.may(Request(), Operation.WRITE, ResourceType.TOPIC, "u")
    assert not authorization.may(Request(), Operation.WRITE, ResourceType.TOPIC, "u", is_probe=True)
    metrics = authorization_metrics(authorization)
    assert (metrics.allowed, metrics.denied, metrics.acls) == (1, 1, 1)
    none = authorization_metrics(Authorization())
    assert (none.allowed, none.denied, none.acls) == (0, 0, 0)
