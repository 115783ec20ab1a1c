"""The policy for protocol changes of groups with members: ``group.consumer.migration.policy`` (KIP-848)."""

from __future__ import annotations

from enum import StrEnum

from parley.broker.config import BrokerConfig


class MigrationPolicy(StrEnum):
    """The values of ``group.consumer.migration.policy``."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        """True if a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        """True if a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


def migration_policy(config: BrokerConfig) -> MigrationPolicy:
    """Return the migration policy that a broker's configuration specifies."""
    return MigrationPolicy(config.group_consumer_migration_policy.lower())
