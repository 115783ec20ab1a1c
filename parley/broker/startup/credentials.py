"""A phase of startup: reads from the store what the first connections need, before this broker knows the metadata."""

from __future__ import annotations

from parley.broker.controller.stored_metadata import BROKERS, DELEGATION_TOKENS, SCRAM, SECRETS, read_image
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment


async def read_credentials(environment: Environment, parts: Parts) -> None:
    """Read from the store the credentials with which clients log in before this broker knows the cluster's metadata.

    No listener accepts connections before this, because clients treat a refused login as final. Raises
    CoordinationError if the store cannot be read.
    """
    if not any(listener.is_sasl for listener in environment.config.bound):
        return
    environment.health.starting("reading the users of the cluster")
    stored = {}
    for prefix in (SCRAM, DELEGATION_TOKENS, SECRETS):
        async for entry in parts.lifecycle.store.entries(prefix):
            stored[entry.key] = entry.value
    parts.credentials.stored = read_image(parts.identity.cluster_id, stored)


async def read_broker_listeners(environment: Environment, parts: Parts) -> None:
    """Read from the store which listeners the registered brokers use among themselves. Raises CoordinationError if the
    store cannot be read."""
    if len(environment.config.bound) > 1:
        stored = [registration_from_bytes(entry.value) async for entry in parts.lifecycle.store.entries(BROKERS)]
        parts.broker_listeners.stored = {each.broker_id: each for each in stored}
