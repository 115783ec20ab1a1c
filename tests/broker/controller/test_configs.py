"""Which resources can be configured, and how changes affect their entries."""

from __future__ import annotations

from typing import Any

import pytest

from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.sealed_passwords import PREFIX
from parley.broker.controller.configs import ConfigChange, alter_configs
from parley.broker.metadata.changes import ConfigReplaced
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.protocol.errors import ErrorCode
from tests.broker.controller.clusters import TOPIC, image_with


@pytest.mark.parametrize(
    ("broker", "error"),
    [
        ("", ErrorCode.NONE),
        ("5", ErrorCode.NONE),
        ("9", ErrorCode.BROKER_ID_NOT_REGISTERED),
        ("05", ErrorCode.BROKER_ID_NOT_REGISTERED),
        ("one", ErrorCode.INVALID_REQUEST),
    ],
)
def test_any_registered_broker_may_be_configured(broker: str, error: ErrorCode) -> None:
    resource = ConfigResource(ResourceType.BROKER, broker)
    decision = alter_configs(
        image_with(fenced=[5]),
        [ConfigChange(resource, replacement={"log.cleaner.threads": "2"})],
        validate=lambda _, entries: entries,
        current_list=lambda *_: [],
    )
    outcome = decision.result[0].error
    assert (outcome.code if outcome else ErrorCode.NONE) is error
    assert bool(decision.changes) is (error is ErrorCode.NONE)


def test_the_configuration_of_an_unregistered_broker_can_be_removed() -> None:
    resource = ConfigResource(ResourceType.BROKER, "9")
    image = image_with().with_changes([ConfigReplaced(resource, {"log.cleaner.threads": "2"})])
    decision = alter_configs(
        image, [ConfigChange(resource, replacement={})], validate=lambda _, entries: entries, current_list=lambda *_: []
    )
    assert decision.changes == (ConfigReplaced(resource, {}),)


SEALED = f"{PREFIX}4096:AAAA:AAAA:AAAA"


@pytest.mark.parametrize(
    "change",
    [
        {"replacement": {"a": SEALED}},
        {"changes": (EntryChange("a", Operation.SET, SEALED),)},
        {"changes": (EntryChange("a", Operation.APPEND, f"{SEALED},b"),)},
        {"changes": (EntryChange("other", Operation.SET, SEALED + "A"),)},
    ],
)
def test_a_client_cannot_set_a_value_that_looks_like_an_encrypted_password(change: dict[str, Any]) -> None:
    resource = ConfigResource(ResourceType.BROKER, "")
    image = image_with().with_changes([ConfigReplaced(resource, {"other": SEALED})])
    decision = alter_configs(
        image,
        [ConfigChange(resource, **change)],
        validate=lambda _, entries: entries,
        current_list=lambda *_: [],
    )
    error = decision.result[0].error
    assert error is not None
    assert error.code is ErrorCode.INVALID_CONFIG
    assert not decision.changes
    assert SEALED not in error.message


def test_passwords_that_brokers_have_encrypted_are_kept() -> None:
    resource = ConfigResource(ResourceType.BROKER, "")
    image = image_with().with_changes([ConfigReplaced(resource, {"other": SEALED})])
    change = ConfigChange(resource, changes=(EntryChange("a", Operation.SET, "1"),))
    decision = alter_configs(image, [change], validate=lambda _, entries: entries, current_list=lambda *_: [])
    assert decision.changes == (ConfigReplaced(resource, {"other": SEALED, "a": "1"}),)


def test_the_changes_of_one_resource_are_all_made_in_order() -> None:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    image = image_with().with_changes([ConfigReplaced(resource, {"a": "1", "b": "2", "list": "x,y"})])
    changes = [
        EntryChange("a", Operation.DELETE, None),
        EntryChange("b", Operation.SET, "3"),
        EntryChange("list", Operation.APPEND, "y,z"),
        EntryChange("other", Operation.SUBTRACT, "y"),
        EntryChange("c", Operation.SET, "4"),
    ]
    decision = alter_configs(
        image,
        [ConfigChange(resource, changes=changes)],
        validate=lambda _, entries: entries,
        current_list=lambda *_: ["x", "y"],
    )
    assert decision.changes == (ConfigReplaced(resource, {"b": "3", "list": "x,y,z", "other": "x", "c": "4"}),)
