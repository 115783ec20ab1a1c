"""Which quota applies to a request, and which clients share it."""

from __future__ import annotations

import pytest

from parley.broker.quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from parley.broker.quotas.precedence import CACHED_MAX, ClientQuotas, Limit

PRODUCED, FETCHED, CONNECTIONS = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.CONSUMER_BYTE_RATE,
    QuotaKey.CONNECTION_CREATION_RATE,
)

LEVELS = [
    (QuotaEntity("alice", "app"), ("alice", "app")),
    (QuotaEntity("alice", DEFAULT), ("alice", "app")),
    (QuotaEntity("alice"), ("alice", "")),
    (QuotaEntity(DEFAULT, "app"), ("alice", "app")),
    (QuotaEntity(DEFAULT, DEFAULT), ("alice", "app")),
    (QuotaEntity(DEFAULT), ("alice", "")),
    (QuotaEntity(client_id="app"), ("", "app")),
    (QuotaEntity(client_id=DEFAULT), ("", "app")),
]
"""Kafka's order of precedence, and Kafka's metric tags for each level."""


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_level_that_has_a_quota_counts(first: int) -> None:
    stored: dict[QuotaEntity, dict[str, float]] = {QuotaEntity("bob", "app"): {PRODUCED: 99.0}}
    for i in range(first, len(LEVELS)):
        stored[LEVELS[i][0]] = {PRODUCED: 1.0 + i}
    quotas = ClientQuotas(stored)
    expected = Limit(1.0 + first, LEVELS[first][1])
    assert quotas.limit(PRODUCED, "alice", "app") == expected
    assert quotas.limit(PRODUCED, "alice", "app") == expected  # from the cache


def test_each_key_has_levels_of_its_own() -> None:
    quotas = ClientQuotas({QuotaEntity("alice"): {PRODUCED: 1.0}, QuotaEntity(client_id="app"): {FETCHED: 2.0}})
    assert quotas.limit(PRODUCED, "alice", "app") == Limit(1.0, ("alice", ""))
    assert quotas.limit(FETCHED, "alice", "app") == Limit(2.0, ("", "app"))
    assert quotas.limit(QuotaKey.REQUEST_PERCENTAGE, "alice", "app") is None
    assert quotas.limit(PRODUCED, "bob", "app") is None


def test_clients_without_a_client_id_share_the_default() -> None:
    quotas = ClientQuotas({QuotaEntity(client_id=DEFAULT): {PRODUCED: 1.0}})
    assert quotas.limit(PRODUCED, "alice", "") == Limit(1.0, ("", ""))


def test_names_are_not_kept_without_bound() -> None:
    quotas = ClientQuotas({QuotaEntity(client_id=DEFAULT): {PRODUCED: 1.0}})
    for number in range(CACHED_MAX + 10):
        quotas.limit(PRODUCED, "alice", f"app-{number}")
    assert len(quotas._found) <= CACHED_MAX


def test_an_address_may_be_written_in_any_notation() -> None:
    quotas = ClientQuotas({QuotaEntity(ip="::1"): {CONNECTIONS: 5.0}})
    assert quotas.connection_rate("::1") == 5.0
    assert quotas.connection_rate("0:0:0:0:0:0:0:1") == 5.0
    assert quotas.connection_rate("10.0.0.1") is None
    assert ClientQuotas({}).connection_rate("10.0.0.1") is None
    quotas = ClientQuotas({QuotaEntity(ip="10.0.0.1"): {CONNECTIONS: 5.0}, QuotaEntity(ip=DEFAULT): {CONNECTIONS: 7.0}})
    assert quotas.connection_rate("::ffff:10.0.0.1") == 5.0
    assert quotas.connection_rate("::1") == 7.0
    assert quotas.limit(PRODUCED, "alice", "app") is None
