"""The levels of the features that clients see and operators change (KIP-584).

``transaction.version`` 2 tells producers to use a new epoch for each transaction (KIP-890). The level affects only what
clients do: the version of each request determines its meaning, and brokers serve all versions. ``group.version`` 1
allows groups of the consumer protocol (KIP-848), if all brokers can read their records. In the same way,
``share.version`` 1 allows share groups (KIP-932), and ``streams.version`` 1 streams groups (KIP-1071).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from parley.light_dataclasses import dataclass

TRANSACTION_VERSION: Final = "transaction.version"

GROUP_VERSION: Final = "group.version"

SHARE_VERSION: Final = "share.version"

STREAMS_VERSION: Final = "streams.version"

LEVELS: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1),
    SHARE_VERSION: (0, 1),
    STREAMS_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
}
"""The lowest and the highest level of each feature that this version of Parley supports."""

_DEFAULTS: Final = {GROUP_VERSION: 1, SHARE_VERSION: 1, STREAMS_VERSION: 1, TRANSACTION_VERSION: 2}


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """The levels that operators have chosen. ``epoch`` counts their changes."""

    epoch: int = 0
    chosen: Mapping[str, int] = field(default_factory=dict)

    def level(self, feature: str) -> int:
        """Return the chosen level of a feature, or its default. 0 means that the feature is not used."""
        return self.chosen.get(feature, _DEFAULTS.get(feature, 0))

    def finalized(self) -> dict[str, int]:
        """Return the level of each feature that is used."""
        levels = {feature: self.level(feature) for feature in sorted({**_DEFAULTS, **self.chosen})}
        return {feature: level for feature, level in levels.items() if level > 0}


DEFAULT_LEVELS: Final = FeatureLevels()
