"""For random ACLs and requests, Parley's authorizer and Apache Kafka's make the same decisions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from parley.broker.metadata.changes import AclBucketReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, PermissionType, ResourcePattern
from parley.broker.security.acls.stored import bucket_of
from parley.broker.security.authorizer import AclAuthorizer
from parley.broker.security.operations import Operation
from parley.broker.security.principal import Principal, parse_super_users
from parley.broker.security.resources import SUPPORTED_OPERATIONS, ResourceType
from parley.broker.security.session import ClientSession
from tests.support.kafka import run_java

pytestmark = pytest.mark.system

PROGRAM = str(Path(__file__).with_name("KafkaAcls.java"))
SETS, REQUESTS = 300, 40

NAMES = ["*", "a", "ab", "abc", "abcd", "abd", "b", "ba", "hardcode", "å"]
PRINCIPALS = ["User:*", "User:alice", "User:bob", "User:CN=x,OU=y:z", "Role:alice"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1"]
TYPES = [kind for kind in ResourceType if kind is not ResourceType.ANY]
OPERATIONS = [operation for operation in Operation if operation is not Operation.ANY]
REQUESTED = [operation for operation in OPERATIONS if operation is not Operation.ALL]


def _acls(rng: random.Random) -> set[AclBinding]:
    """Few names, principals and operations: so that many ACLs concern the same request."""
    kinds = rng.sample(TYPES, 2)
    operations = rng.sample(OPERATIONS, 4)
    return {
        AclBinding(
            ResourcePattern(
                rng.choice(kinds), rng.choice([PatternType.LITERAL, PatternType.PREFIXED]), rng.choice(NAMES)
            ),
            rng.choice(PRINCIPALS),
            rng.choice(HOSTS),
            rng.choice(operations),
            rng.choice([PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY]),
        )
        for _ in range(rng.randrange(12))
    }


def _authorizer(acls: set[AclBinding], super_users: str, *, allow_if_no_acl: bool) -> AclAuthorizer:
    buckets: dict[int, set[AclBinding]] = {}
    for acl in acls:
        buckets.setdefault(bucket_of(acl.pattern, acl.principal), set()).add(acl)
    changes = tuple(AclBucketReplaced(number, frozenset(bucket)) for number, bucket in buckets.items())
    authorizer = AclAuthorizer(parse_super_users(super_users), allow_if_no_acl=allow_if_no_acl)
    authorizer.apply(Delta(1, 1, changes), MetadataImage("c"))
    return authorizer


def _line(acl: AclBinding) -> tuple[str, ...]:
    pattern = acl.pattern
    return (
        pattern.type.name,
        pattern.pattern_type.name,
        pattern.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )


def test_decisions_and_filters_are_kafkas() -> None:
    rng = random.Random(13)
    lines: list[str] = []
    expected: list[str] = []
    questions: list[tuple[object, ...]] = []
    for _ in range(SETS):
        acls = _acls(rng)
        super_users = rng.choice(["", "User:bob", "User:root; User:bob ;"])
        allow_if_no_acl = rng.random() < 0.3
        authorizer = _authorizer(acls, super_users, allow_if_no_acl=allow_if_no_acl)
        lines.append("\t".join(("config", super_users, str(allow_if_no_acl).lower())))
        lines += ["\t".join(("acl", *_line(acl))) for acl in acls]
        lines.append("load")
        kinds = sorted({acl.pattern.type for acl in acls}) or TYPES
        for _ in range(REQUESTS):
            principal = Principal.parse(rng.choice(PRINCIPALS[1:]))
            host, kind = rng.choice(["10.0.0.1", "10.0.0.2", "10.0.0.3", "::1"]), rng.choice(kinds)
            client = ClientSession(principal, host, "PLAINTEXT")
            operation = rng.choice([*SUPPORTED_OPERATIONS[kind], *REQUESTED])
            if rng.random() < 0.8:
                name = rng.choice(NAMES[1:])
                lines.append("\t".join(("may", str(principal), host, operation.name, kind.name, name)))
                ours = authorizer.authorize(client, operation, kind, name).is_allowed
            else:
                lines.append("\t".join(("any", str(principal), host, operation.name, kind.name)))
                ours = authorizer.authorize_any(client, operation, kind).is_allowed
            expected.append("ALLOWED" if ours else "DENIED")
            questions.append((acls, super_users, allow_if_no_acl, lines[-1]))
        wanted = AclFilter(
            rng.choice([ResourceType.ANY, *kinds]),
            rng.choice(list(PatternType)),
            rng.choice([None, *NAMES]),
            rng.choice([None, None, *PRINCIPALS]),
            rng.choice([None, None, *HOSTS]),
            rng.choice([Operation.ANY, Operation.ALL, Operation.READ]),
            rng.choice(list(PermissionType)),
        )
        fields = (
            wanted.type.name,
            wanted.pattern_type.name,
            wanted.name or "-",
            wanted.principal or "-",
            wanted.host or "-",
            wanted.operation.name,
            wanted.permission.name,
        )
        lines.append("\t".join(("select", *fields)))
        expected.append(
            "|".join(
                sorted(",".join(_line(acl)) for acl in filter(wanted.matches, authorizer.index.candidates(wanted)))
            )
        )
        questions.append((acls, lines[-1]))
    theirs = run_java(PROGRAM, stdin="\n".join(lines) + "\n").split("\n")
    assert len(theirs) == len(expected) + 1
    for question, ours_text, theirs_text in zip(questions, expected, theirs, strict=False):
        assert ours_text == theirs_text, question
    assert min(expected.count("ALLOWED"), expected.count("DENIED")) > SETS, "there must be many of either outcome"
