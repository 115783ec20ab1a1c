"""The entries of clients' usage are found again, expire, and are bounded."""

from __future__ import annotations

import sys

from parley.broker.quotas.precedence import Limit
from parley.broker.quotas.rates import SampledRate, Windows
from parley.broker.quotas.usage import ENTRIES_MAX, EXPIRED_S, NAME_MAX, UsageTable


def table(entries_max: int = ENTRIES_MAX) -> UsageTable[SampledRate]:
    return UsageTable(lambda: SampledRate(Windows()), entries_max)


def names(entries: UsageTable[SampledRate]) -> list[tuple[str, str]]:
    return [shared_by for shared_by, _ in entries.latest(100)]


def test_those_who_share_a_quota_have_one_entry() -> None:
    entries = table()
    alice = entries.of(Limit(10.0, ("alice", "")), 1.0)
    assert entries.of(Limit(20.0, ("alice", "")), 2.0) is alice
    assert (alice.limit, alice.last_used_s) == (20.0, 2.0)
    assert entries.of(Limit(20.0, ("alice", "app")), 2.0) is not alice
    assert names(entries) == [("alice", "app"), ("alice", "")]


def test_an_entry_is_forgotten_after_an_hour_without_use() -> None:
    entries = table()
    entries.of(Limit(1.0, ("", "a")), 0.0)
    entries.of(Limit(1.0, ("", "b")), 1.0)
    entries.of(Limit(1.0, ("", "a")), 2.0)
    entries.forget_unused(1.0 + EXPIRED_S - 0.1)
    assert len(entries) == 2
    entries.of(Limit(1.0, ("", "c")), 1.0 + EXPIRED_S)
    assert names(entries) == [("", "c"), ("", "a")]


def test_a_client_that_invents_client_ids_pushes_out_nobody_who_uses_a_quota() -> None:
    entries = table(entries_max=100)
    alice = entries.of(Limit(1.0, ("alice", "")), 0.0)
    for number in range(1000):
        entries.of(Limit(1.0, ("mallory", f"{number}")), number / 1000)
        if number % 50 == 0:
            assert entries.of(Limit(1.0, ("alice", "")), number / 1000) is alice
    assert len(entries) == 100


def test_long_names_take_little_memory_and_remain_distinct() -> None:
    entries = table()
    long, longer = "x" * 30_000, "x" * 30_001
    entry = entries.of(Limit(1.0, ("", long)), 0.0)
    assert entries.of(Limit(1.0, ("", long)), 0.0) is entry
    assert entries.of(Limit(1.0, ("", longer)), 0.0) is not entry
    assert entries.of(Limit(1.0, ("", "\ud800" * 300)), 0.0) is not entry, "a name that is no valid text"
    assert all(len(client_id) <= NAME_MAX for _, client_id in names(entries))
    assert max(sys.getsizeof(client_id) for _, client_id in names(entries)) < 2000
