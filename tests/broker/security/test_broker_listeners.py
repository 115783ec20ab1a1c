"""Which listeners serve inter-broker requests, while an operator changes the brokers' listener."""

from __future__ import annotations

import pytest

from parley.broker.metadata.changes import BrokerRegistered, BrokerUnregistered, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.security.authorization import Authorization
from parley.broker.security.broker_listeners import BrokerListeners
from parley.broker.security.session import anonymous
from parley.protocol.uuids import UUID


def registered(broker_id: int, listener: str, *, fenced: bool = False) -> BrokerRegistered:
    return BrokerRegistered(
        BrokerRegistration(broker_id, 1, UUID(int=broker_id), (), fenced=fenced, inter_broker_listener=listener)
    )


def listeners_of(*registrations: BrokerRegistered) -> BrokerListeners:
    return BrokerListeners("SECURE", Metadata(MetadataImage("c").with_changes(registrations)))


@pytest.mark.parametrize(
    ("registrations", "served"),
    [
        ((), {"SECURE"}),
        ((registered(1, "SECURE"), registered(2, "SECURE")), {"SECURE"}),
        ((registered(1, "SECURE"), registered(2, "PLAINTEXT")), {"SECURE", "PLAINTEXT"}),
        ((registered(2, "PLAINTEXT", fenced=True),), {"SECURE", "PLAINTEXT"}),
        ((registered(1, "SECURE"), registered(2, "")), {"SECURE", "PLAINTEXT", "CLIENTS"}),
        ((registered(1, "SECURE"), registered(2, "", fenced=True)), {"SECURE"}),
    ],
    ids=["alone", "all moved", "one not moved", "fenced", "of an older version", "of an older version, fenced"],
)
def test_every_listener_that_a_broker_may_use_is_served(
    registrations: tuple[BrokerRegistered, ...], served: set[str]
) -> None:
    listeners = listeners_of(*registrations)
    assert {each for each in ("SECURE", "PLAINTEXT", "CLIENTS") if each in listeners} == served


def test_the_stored_registrations_count_until_the_metadata_contains_brokers() -> None:
    metadata = Metadata(MetadataImage("c"))
    listeners = BrokerListeners("SECURE", metadata)
    assert "PLAINTEXT" not in listeners
    listeners.stored = {2: registered(2, "PLAINTEXT").registration}
    assert "PLAINTEXT" in listeners
    metadata.apply(Delta(0, 1, (registered(1, "SECURE"), registered(2, "SECURE"))))
    assert "PLAINTEXT" not in listeners


def test_a_listener_is_closed_to_brokers_when_the_last_one_has_moved() -> None:
    metadata = Metadata(MetadataImage("c").with_changes([registered(1, "SECURE"), registered(2, "PLAINTEXT")]))
    listeners = BrokerListeners("SECURE", metadata)
    authorization = Authorization(broker_listeners=listeners)
    old = anonymous("10.0.0.1", "PLAINTEXT")
    assert authorization.is_broker(old)
    metadata.apply(Delta(0, 1, (registered(2, "SECURE"),)))
    assert not authorization.is_broker(old)
    metadata.apply(Delta(0, 2, (registered(3, "PLAINTEXT"),)))
    assert authorization.is_broker(old)
    metadata.apply(Delta(0, 3, (BrokerUnregistered(3),)))
    assert not authorization.is_broker(old)
    assert authorization.is_broker(anonymous("10.0.0.1", "SECURE"))
