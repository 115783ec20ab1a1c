"""Which resources may be configured, and what changes do to their entries."""

from __future__ import annotations

import pytest

from parley.broker.config.dynamic_changes import EntryChange, Operation
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
        validate=lambda *_: None,
        current_list=lambda *_: [],
    )
    outcome = decision.result[0].error
    assert (outcome.code if outcome else ErrorCode.NONE) is error
    assert bool(decision.changes) is (error is ErrorCode.NONE)


def test_the_configuration_of_an_unregistered_broker_can_be_removed() -> None:
    resource = ConfigResource(ResourceType.BROKER, "9")
    image = image_with().with_changes([ConfigReplaced(resource, {"log.cleaner.threads": "2"})])
    decision = alter_configs(
        image, [ConfigChange(resource, replacement={})], validate=lambda *_: None, current_list=lambda *_: []
    )
    assert decision.changes == (ConfigReplaced(resource, {}),)


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
        validate=lambda *_: None,
        current_list=lambda *_: ["x", "y"],
    )
    assert decision.changes == (ConfigReplaced(resource, {"b": "3", "list": "x,y,z", "other": "x", "c": "4"}),)
