"""Decisions about client quotas (KIP-546)."""

from __future__ import annotations

import math

import pytest

from parley.broker.controller import client_quotas
from parley.broker.controller.client_quotas import QuotaAlteration, alter_client_quotas
from parley.broker.metadata.feature_support import SECURITY, SUPPORTED_FEATURES, check_can_read
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.quotas.entities import DEFAULT, QuotaEntity
from parley.broker.quotas.validation import NAME_MAX
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

EMPTY = MetadataImage("c", brokers={1: BrokerRegistration(1, 1, UUID(int=1), (), features=SUPPORTED_FEATURES)})
OLD = BrokerRegistration(2, 1, UUID(int=2), (), features={SECURITY: (1, 1)})
Parts = dict[str, str | None]


def change(parts: Parts, **quotas: float | None) -> QuotaAlteration:
    return QuotaAlteration(tuple(parts.items()), tuple(quotas.items()))


def alter(image: MetadataImage, *wanted: QuotaAlteration) -> tuple[MetadataImage, list[ErrorCode | None]]:
    decision = alter_client_quotas(image, wanted)
    errors = [None if error is None else error.code for error in decision.result]
    return image.with_changes(decision.changes), errors


def test_quotas_are_set_and_removed() -> None:
    image, errors = alter(
        EMPTY,
        change({"user": "alice"}, producer_byte_rate=10, consumer_byte_rate=20),
        change({"user": None, "client-id": "app"}, request_percentage=12.5),
        change({"client-id": None}, controller_mutation_rate=0.5),
        change({"ip": "0:0:0:0:0:0:0:1"}, connection_creation_rate=3),
        change({"ip": None}, connection_creation_rate=4),
    )
    assert errors == [None] * 5
    assert image.client_quotas == {
        QuotaEntity("alice"): {"producer_byte_rate": 10, "consumer_byte_rate": 20},
        QuotaEntity(DEFAULT, "app"): {"request_percentage": 12.5},
        QuotaEntity(client_id=DEFAULT): {"controller_mutation_rate": 0.5},
        QuotaEntity(ip="::1"): {"connection_creation_rate": 3},
        QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 4},
    }
    image, errors = alter(
        image,
        change({"user": "alice"}, producer_byte_rate=None, request_percentage=None),
        change({"client-id": None}, controller_mutation_rate=None),
        change({"user": "nobody"}, controller_mutation_rate=None),
    )
    assert errors == [None] * 3
    assert image.client_quotas[QuotaEntity("alice")] == {"consumer_byte_rate": 20}
    assert QuotaEntity(client_id=DEFAULT) not in image.client_quotas
    assert len(image.client_quotas) == 4


def test_unchanged_quotas_are_not_written() -> None:
    image, _ = alter(EMPTY, change({"user": "alice"}, producer_byte_rate=10))
    again = alter_client_quotas(image, [change({"user": "alice"}, producer_byte_rate=10)])
    assert (again.changes, again.result) == ((), [None])


def test_a_change_can_be_only_validated() -> None:
    wanted = [change({"user": "alice"}, producer_byte_rate=10), change({"user": "bob"}, producer_byte_rate=-1)]
    decision = alter_client_quotas(EMPTY, wanted, validate_only=True)
    assert decision.changes == ()
    assert decision.result[0] is None
    assert decision.result[1] is not None


@pytest.mark.parametrize(
    "wrong",
    [
        change({}, producer_byte_rate=1),
        change({"user": ""}, producer_byte_rate=1),
        change({"user": "x" * (NAME_MAX + 1)}, producer_byte_rate=1),
        change({"group": "g"}, producer_byte_rate=1),
        QuotaAlteration((("user", "a"), ("user", "b")), (("producer_byte_rate", 1),)),
        QuotaAlteration((("user", "a"),), (("producer_byte_rate", 1), ("producer_byte_rate", None))),
        change({"user": "alice", "ip": "10.0.0.1"}, producer_byte_rate=1),
        change({"ip": "10.0.0"}, connection_creation_rate=1),
        change({"ip": "10.0.0.1"}, producer_byte_rate=1),
        change({"user": "alice"}, connection_creation_rate=1),
        change({"user": "alice"}, no_such_quota=1),
        change({"user": "alice"}, producer_byte_rate=0),
        change({"user": "alice"}, request_percentage=-1),
        change({"user": "alice"}, producer_byte_rate=1.5),
        change({"user": "alice"}, consumer_byte_rate=1e-7),
        change({"ip": None}, connection_creation_rate=1e-7),
        change({"user": "alice"}, producer_byte_rate=2.0**64),
        change({"user": "alice"}, request_percentage=math.inf),
        change({"user": "alice"}, request_percentage=math.nan),
        change({"ip": "10.0.0.1"}, connection_creation_rate=2.0**31),
    ],
)
def test_an_impossible_change_leaves_the_entity_as_it_was(wrong: QuotaAlteration) -> None:
    image, errors = alter(EMPTY, wrong, change({"user": "bob"}, consumer_byte_rate=1.0))
    assert errors == [ErrorCode.INVALID_REQUEST, None]
    assert set(image.client_quotas) == {QuotaEntity("bob")}


def test_an_entity_can_be_changed_once_in_a_request() -> None:
    first, second = change({"user": "a"}, producer_byte_rate=1), change({"user": "a"}, producer_byte_rate=2)
    image, errors = alter(EMPTY, first, second)
    assert errors == [None, ErrorCode.INVALID_REQUEST]
    assert image.client_quotas == {QuotaEntity("a"): {"producer_byte_rate": 1}}


def test_the_number_of_entities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "ENTITIES_MAX", 2)
    quota = {"producer_byte_rate": 1.0}
    image, errors = alter(EMPTY, *(change({"user": name}, **quota) for name in ("a", "b", "c")))
    assert errors == [None, None, ErrorCode.POLICY_VIOLATION]
    image, errors = alter(
        image, change({"user": "a"}, producer_byte_rate=None), change({"user": "d"}, **quota), change({"user": "b"})
    )
    assert errors == [None, None, None]
    assert set(image.client_quotas) == {QuotaEntity("b"), QuotaEntity("d")}


def test_a_request_with_too_many_changes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "CHANGES_MAX", 1)
    with pytest.raises(KafkaError) as refused:
        alter(EMPTY, change({"user": "a"}, producer_byte_rate=1, consumer_byte_rate=1))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_all_brokers_must_be_able_to_read_quotas() -> None:
    """Neither is a quota stored while an older broker is registered, nor does one register afterwards."""
    quota = change({"user": "a"}, producer_byte_rate=1)
    mixed = MetadataImage("c", brokers={**EMPTY.brokers, 2: OLD})
    with pytest.raises(KafkaError, match="does not support client quotas: 2") as refused:
        alter(mixed, quota)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    check_can_read(EMPTY, OLD)
    image, _ = alter(EMPTY, quota)
    with pytest.raises(KafkaError, match="client quotas, which the version of Parley on broker 2"):
        check_can_read(image, OLD)
