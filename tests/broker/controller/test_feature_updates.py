"""The feature levels that an operator may choose, by Kafka's rules (KIP-584, KIP-778)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.feature_updates import UPDATES_MAX, FeatureUpdate, UpgradeType, update_features
from parley.broker.metadata.feature_levels import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from parley.broker.metadata.feature_support import SUPPORTED_FEATURES, check_can_read
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

TV = "transaction.version"
BROKER = BrokerRegistration(1, 1, UUID(int=1), (), features=SUPPORTED_FEATURES)
OLD = BrokerRegistration(2, 1, UUID(int=2), ())
EMPTY = MetadataImage("c", brokers={1: BROKER})
UP, SAFE, UNSAFE = UpgradeType


def updated(image: MetadataImage, *updates: tuple[str, int, int], validate_only: bool = False) -> MetadataImage:
    wanted = [FeatureUpdate(*update) for update in updates]
    return image.with_changes(update_features(image, wanted, validate_only=validate_only).changes)


def levels(image: MetadataImage) -> dict[str, int]:
    """Return the levels that are in use, without those of groups."""
    of_groups = (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION)
    return {feature: level for feature, level in image.features.finalized().items() if feature not in of_groups}


def test_levels_go_down_and_up_again() -> None:
    assert (levels(EMPTY), EMPTY.features.epoch) == ({TV: 2}, 0)
    lower = updated(EMPTY, (TV, 1, SAFE))
    assert (levels(lower), lower.features.epoch) == ({TV: 1}, 1)
    without = updated(lower, (TV, 0, UNSAFE))
    assert (levels(without), without.features.epoch) == ({}, 2)
    raised = updated(without, (TV, 2, UP))
    assert (levels(raised), raised.features.epoch) == ({TV: 2}, 3)


@pytest.mark.parametrize("update", [(TV, 2, UP), (TV, 2, SAFE)])
def test_a_level_that_is_there_already_changes_nothing(update: tuple[str, int, int]) -> None:
    assert updated(EMPTY, update).features == EMPTY.features


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ((TV, 1, UP), "Can't downgrade the version of this feature without"),
        ((TV, 3, UP), "The controller only supports versions 0-2."),
        ((TV, -1, SAFE), "A feature version cannot be less than 0."),
        ((TV, 1, 0), "does not support the given upgrade type"),
        ((TV, 1, 4), "does not support the given upgrade type"),
        (("unknown", 1, UP), "The controller does not support this feature."),
        (("unknown", 0, SAFE), "Feature unknown not found."),
    ],
)
def test_an_update_that_is_not_allowed_changes_no_feature(update: tuple[str, int, int], text: str) -> None:
    with pytest.raises(KafkaError, match=text) as raised:
        updated(EMPTY, (TV, 2, UP), update)
    assert raised.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert f"Invalid update version {update[1]} for feature {update[0]}." in raised.value.message


def test_the_second_update_of_a_feature_follows_the_first() -> None:
    with pytest.raises(KafkaError, match="Can't downgrade to a newer version"):
        updated(EMPTY, (TV, 0, SAFE), (TV, 1, SAFE))
    assert levels(updated(EMPTY, (TV, 0, SAFE), (TV, 1, UP))) == {TV: 1}


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_request_with_too_many_updates_is_refused_before_any_is_looked_at(validate_only: bool) -> None:
    most = [(TV, 2, SAFE)] * UPDATES_MAX
    assert updated(EMPTY, *most, validate_only=validate_only).features == EMPTY.features
    with pytest.raises(KafkaError, match="The maximum is 100") as raised:
        updated(EMPTY, *most, ("unknown", 1, UP), validate_only=validate_only)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_validation_changes_nothing() -> None:
    assert updated(EMPTY, (TV, 1, SAFE), validate_only=True) == replace(EMPTY, version=EMPTY.version + 1)


def test_every_registered_broker_must_support_the_level_and_be_able_to_read_it() -> None:
    mixed = replace(EMPTY, brokers={1: BROKER, 2: OLD})
    with pytest.raises(KafkaError, match="Broker 2 does not support this feature"):
        updated(mixed, (TV, 1, SAFE))
    limited = replace(OLD, features={TV: (0, 1)})
    with pytest.raises(KafkaError, match="Broker 2 only supports versions 0-1"):
        updated(replace(mixed, brokers={1: BROKER, 2: limited}), (TV, 2, UP))
    with pytest.raises(KafkaError, match=r"these brokers does not support feature levels: 2\."):
        updated(mixed, (TV, 0, SAFE))
    with pytest.raises(KafkaError, match="The cluster uses feature levels"):
        check_can_read(updated(EMPTY, (TV, 1, SAFE)), OLD)


def test_a_broker_without_consumer_groups_is_refused_if_the_operator_chose_them() -> None:
    older = replace(OLD, features={TV: (0, 2)})
    without = updated(EMPTY, (GROUP_VERSION, 0, SAFE))
    check_can_read(EMPTY, older)
    check_can_read(without, older)
    with pytest.raises(KafkaError, match="The cluster uses consumer groups of KIP-848"):
        check_can_read(updated(without, (GROUP_VERSION, 1, UP)), older)
