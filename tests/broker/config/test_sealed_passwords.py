"""Passwords that are set while brokers run are encrypted in the store, and in the metadata between brokers."""

from __future__ import annotations

from random import Random

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.config.sealed_passwords import PasswordSeal
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import ConfigChange
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType
from tests.broker.controller.clusters import DirectController, balanced, image_with

KEY = "listener.name.plaintext.ssl.keystore.password"
ENTRIES = {KEY: "marked", "log.retention.ms": "5"}


def seal(secret: str = "", old: str = "") -> PasswordSeal:
    given = {"password.encoder.secret": secret, "password.encoder.old.secret": old}
    return PasswordSeal(BrokerConfig.from_properties({name: text for name, text in given.items() if text}))


def test_only_possible_passwords_are_sealed() -> None:
    given = {**ENTRIES, "unknown.key": "marked, too"}
    stored = seal("secret").seal("1", given)
    assert "marked" not in str(stored)
    assert {name for name in given if stored[name] != given[name]} == {KEY, "unknown.key"}
    assert seal("secret").open("1", stored) == given


def test_an_entry_is_sealed_once() -> None:
    stored = seal("secret").seal("1", ENTRIES)
    assert seal("secret").open("1", stored) == ENTRIES
    assert seal("secret").seal("1", stored) == stored


def test_a_sealed_value_belongs_to_its_broker_and_key(caplog: pytest.LogCaptureFixture) -> None:
    stored = seal("secret").seal("1", ENTRIES)
    assert KEY not in seal("secret").open("2", stored)
    moved = {"listener.name.plaintext.ssl.key.password": stored[KEY]}
    assert seal("secret").open("1", moved) == {}
    assert [vars(record)["key"] for record in caplog.records] == [KEY, *moved]


def test_a_new_secret_opens_with_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    stored = seal("first").seal("1", ENTRIES)
    assert seal("second", old="first").open("1", stored) == ENTRIES
    assert KEY not in seal("second").open("1", stored)
    assert KEY not in seal().open("1", stored)
    assert "marked" not in caplog.text


@pytest.mark.parametrize("damaged", ["sealed:1:", "sealed:1:x:y:z:w", "sealed:1:4096:AAAA:AAAA:AAAA", "sealed:1:-1:::"])
def test_damaged_values_are_left_out(damaged: str) -> None:
    assert seal("secret").open("1", {KEY: damaged, "a": "b"}) == {"a": "b"}


def test_without_a_secret_nothing_changes() -> None:
    assert seal().seal("1", ENTRIES) == ENTRIES


async def test_a_password_travels_sealed_and_is_used_in_the_clear() -> None:
    controller = DirectController(image_with(PartitionState((1,), (1,), 1)))
    dynamic = DynamicConfig(1, BrokerConfig.from_properties({"password.encoder.secret": "secret"}))
    controller.metadata.subscribe(dynamic.apply)

    async def opened() -> None:
        """Return immediately."""

    administration = Administration(1, controller, controller.metadata, dynamic, Random(1), opened, balanced)  # type: ignore[arg-type]
    resource = ConfigResource(ResourceType.BROKER, "1")
    for name, text in ((KEY, "marked"), ("log.cleaner.threads", "2")):
        change = ConfigChange(resource, changes=(EntryChange(name, Operation.SET, text),))
        (outcome,) = await administration.alter_configs([change])
        assert outcome.error is None
    assert "marked" not in str(controller.metadata.image.config(ResourceType.BROKER, "1"))
    assert dynamic().given[KEY] == "marked"
    assert dynamic().log_cleaner_threads == 2


def test_a_value_that_a_client_made_up_costs_no_broker_its_time() -> None:
    made_up = "sealed:1:2000000000:" + ":".join(["AAAA"] * 3)
    assert seal("secret").open("1", {KEY: made_up}) == {}
