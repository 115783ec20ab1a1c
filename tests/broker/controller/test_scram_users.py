"""Decisions about SCRAM credentials (KIP-554)."""

from __future__ import annotations

import pytest

from parley.broker.controller.scram_users import ScramAlteration, ScramDeletion, ScramUpsertion, alter_scram_users
from parley.broker.metadata.feature_support import SUPPORTED_FEATURES
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.security.login_credentials import DECOY_SECRET
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.security.scram import credential_of
from parley.protocol.uuids import UUID

EMPTY = MetadataImage("c", brokers={1: BrokerRegistration(1, 1, UUID(int=1), (), features=SUPPORTED_FEATURES)})
SHA_256, SHA_512 = 1, 2


def set_to(user: str = "alice", mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = b"s") -> ScramUpsertion:
    return ScramUpsertion(user, mechanism, iterations, salt, b"salted")


def alter(image: MetadataImage, *wanted: ScramAlteration) -> tuple[MetadataImage, dict[str, KafkaError | None]]:
    decision = alter_scram_users(image, wanted, lambda: b"secret")
    return image.with_changes(decision.changes), decision.result


def test_credentials_are_stored_without_the_salted_password() -> None:
    image, outcomes = alter(EMPTY, set_to(), set_to(mechanism=SHA_512))
    assert outcomes == {"alice": None}
    assert image.scram_users["alice"]["SCRAM-SHA-256"] == credential_of("SCRAM-SHA-256", b"salted", b"s", 4096)
    assert image.scram_users["alice"]["SCRAM-SHA-512"] == credential_of("SCRAM-SHA-512", b"salted", b"s", 4096)
    assert image.secrets == {DECOY_SECRET: b"secret"}
    assert alter_scram_users(image, [set_to()], lambda: b"other").changes == ()
    assert "salted" not in repr(image)


def test_a_deleted_credential_leaves_those_of_other_mechanisms() -> None:
    image, _ = alter(EMPTY, set_to(), set_to(mechanism=SHA_512))
    image, outcomes = alter(image, ScramDeletion("alice", SHA_256))
    assert outcomes == {"alice": None}
    assert set(image.scram_users["alice"]) == {"SCRAM-SHA-512"}
    image, _ = alter(image, ScramDeletion("alice", SHA_512))
    assert image.scram_users == {}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (set_to(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (set_to(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (set_to(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (set_to(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (set_to(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (set_to(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (ScramDeletion("alice", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_an_impossible_change_leaves_the_user_as_it_was(wrong: ScramAlteration, code: ErrorCode) -> None:
    image, outcomes = alter(EMPTY, wrong, set_to(wrong.user, SHA_512), set_to("bob"))
    error = outcomes[wrong.user]
    assert error is not None
    assert error.code is code
    assert outcomes["bob"] is None
    assert set(image.scram_users) == {"bob"}


def test_a_credential_can_be_changed_once_in_a_request() -> None:
    image, outcomes = alter(EMPTY, ScramDeletion("alice", SHA_256), set_to(), set_to("bob"))
    error = outcomes["alice"]
    assert error is not None
    assert error.code is ErrorCode.DUPLICATE_RESOURCE
    assert set(image.scram_users) == {"bob"}
