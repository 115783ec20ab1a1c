"""This store's keys in a broker's configuration."""

from __future__ import annotations

from parley.consensus.store_config import ConfigKey, Given, Importance, StoreConfig, ValueType


def options(given: Given) -> dict[str, object]:
    """Return the options for ``PostgresqlBackend.from_url``."""
    password = given.get("postgresql.password", "").strip()
    return {"password": password} if password else {}


CONFIG = StoreConfig(
    title="PostgreSQL",
    doc="Keys for coordination.url=postgresql://...",
    options=options,
    keys=(
        ConfigKey(
            "postgresql.password",
            ValueType.PASSWORD,
            None,
            "The password of the role that coordination.url names. Without it the password comes from ~/.pgpass or "
            "PGPASSWORD.",
            Importance.HIGH,
        ),
    ),
)
