"""Decisions about feature levels (UpdateFeatures, KIP-584 and KIP-778). Either all updates of a request succeed, or
none."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import FeatureLevelsReplaced
from parley.broker.metadata.feature_levels import LEVELS, TRANSACTION_VERSION, FeatureLevels
from parley.broker.metadata.feature_support import check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError

UPDATES_MAX: Final = 100
"""The maximum number of updates in one request, far above the number of features. It limits the time that the
controller spends on one request."""


class UpgradeType(IntEnum):
    """How a level may change. A downgrade of Parley's features loses no metadata, so safe and unsafe downgrades are the
    same."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """One feature's new level. ``upgrade_type`` may be any number that a client sends."""

    feature: str
    level: int
    upgrade_type: int


def update_features(image: MetadataImage, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> Decision[None]:
    """Change the levels of features. With ``validate_only``, only validate the request.

    Raises KafkaError INVALID_UPDATE_VERSION if a feature, level or upgrade type is not allowed, UNSUPPORTED_VERSION if
    a registered broker cannot read levels, and INVALID_REQUEST if there are more than ``UPDATES_MAX`` updates.
    """
    if len(updates) > UPDATES_MAX:
        text = f"The request contains {len(updates)} feature updates. The maximum is {UPDATES_MAX}."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    chosen = dict(image.features.chosen)
    levels = FeatureLevels(image.features.epoch, chosen)
    for update in updates:
        _check(image, levels, update)
        chosen[update.feature] = update.level
    if validate_only or levels.finalized() == image.features.finalized():
        return Decision((), None)
    check_all_support(TRANSACTION_VERSION, image)
    known = {feature: level for feature, level in chosen.items() if feature in LEVELS}
    return Decision((FeatureLevelsReplaced(FeatureLevels(levels.epoch + 1, known)),), None)


def _check(image: MetadataImage, levels: FeatureLevels, update: FeatureUpdate) -> None:
    feature, level, upgrade_type = update
    if upgrade_type not in tuple(UpgradeType):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    _check_support(image, update)
    if level < levels.level(feature) and upgrade_type == UpgradeType.UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if level > levels.level(feature) and upgrade_type != UpgradeType.UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")


def _check_support(image: MetadataImage, update: FeatureUpdate) -> None:
    """Raise KafkaError unless this version of Parley and every registered broker support the level.

    Every broker supports level 0 of the features that Parley knows.
    """
    if update.feature not in LEVELS and not update.level:
        raise _invalid(update, f"Feature {update.feature} not found.")
    brokers = {f"Broker {each.broker_id}": each.features for each in image.brokers.values()}
    supporters = {"The controller": LEVELS, **brokers}
    for name, supported in supporters.items() if update.level > 0 else ():
        if update.feature not in supported:
            raise _invalid(update, f"{name} does not support this feature.")
        low, high = supported[update.feature]
        if not low <= update.level <= high:
            raise _invalid(update, f"{name} only supports versions {low}-{high}.")


def _invalid(update: FeatureUpdate, reason: str) -> KafkaError:
    text = f"Invalid update version {update.level} for feature {update.feature}. {reason}"
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, text)
