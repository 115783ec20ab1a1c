"""Rates and token buckets, in virtual time. The numbers of the first tests are from Kafka's own classes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.quotas.rates import THROTTLE_MAX_S, SampledRate, TokenBucket, Windows, milliseconds

LIMIT = 1000.0
RUN_S = 1100.0
"""A hundred times the windows: what a new client may use at once is a hundredth of it."""


def test_a_new_client_may_immediately_use_the_quota_of_all_windows_but_one() -> None:
    rate = SampledRate(Windows(11, 1.0))
    rate.record(10 * LIMIT, 5.0)
    assert rate.per_second(5.0) == LIMIT
    assert rate.wait_s(LIMIT, 5.0) == 0.0
    assert rate.left(LIMIT, 5.0) == 0.0
    rate.record(LIMIT / 2, 5.0)
    assert rate.wait_s(LIMIT, 5.0) == 0.5
    assert rate.left(LIMIT, 5.0) == -LIMIT / 2
    assert rate.wait_s(LIMIT, 5.25) == 0.25
    assert rate.wait_s(LIMIT, 5.5) == 0.0


def test_a_window_counts_until_nothing_of_it_is_younger_than_all_windows() -> None:
    rate = SampledRate(Windows(3, 1.0))
    rate.record(100, 0.0)
    rate.record(100, 0.9)
    rate.record(100, 1.5)
    assert rate.per_second(3.8) == pytest.approx(300 / 3.8)
    assert rate.per_second(3.9) == pytest.approx(100 / 2.4)
    assert rate.per_second(4.5) == 0.0
    assert rate.wait_s(1, 4.5) == 0.0


def test_usage_that_is_taken_back_does_not_count() -> None:
    rate = SampledRate(Windows())
    rate.record(700, 1.0)
    rate.record(500, 3.0)
    rate.record(-500, 3.0)
    assert rate.left(LIMIT, 3.0) == pytest.approx(10 * LIMIT - 700)


def test_a_throttle_is_never_longer_than_a_response_can_say() -> None:
    rate, bucket = SampledRate(Windows()), TokenBucket(Windows())
    rate.record(1e18, 0.0)
    bucket.record(1e18, LIMIT, 0.0)
    assert rate.wait_s(1, 0.0) == rate.wait_s(0, 0.0) == THROTTLE_MAX_S
    assert bucket.wait_s(1, 0.0) == bucket.wait_s(0, 0.0) == THROTTLE_MAX_S
    assert milliseconds(THROTTLE_MAX_S) == milliseconds(float("inf")) == 2**31 - 1


def test_a_bucket_is_full_at_first_and_refused_only_when_it_is_overdrawn() -> None:
    """The example in KIP-599: a quota of 5, a burst of 500, and 560 changes take 12 seconds to be allowed again."""
    bucket = TokenBucket(Windows(100, 1.0))
    assert bucket.tokens(5, 50.0) == 500
    bucket.record(560, 5, 50.0)
    assert bucket.wait_s(5, 50.0) == 12.0
    assert bucket.wait_s(5, 56.0) == 6.0
    assert bucket.wait_s(5, 62.0) == 0.0
    assert bucket.tokens(5, 1000.0) == 500


def test_a_bucket_follows_a_changed_quota() -> None:
    bucket = TokenBucket(Windows(10, 1.0))
    bucket.record(150, 10, 0.0)
    assert bucket.wait_s(10, 0.0) == 5.0
    assert bucket.wait_s(50, 0.0) == 1.0
    assert bucket.tokens(1, 3600.0) == 10


def accepted(record: Callable[[float, float], float], amounts: list[float], pauses: list[float], clients: int) -> float:
    """Let clients send as fast as they may. ``record(amount, now)`` returns a wait. Returns the rate over the run."""
    waiting = [(0.0, client) for client in range(clients)]
    total, number = 0.0, 0
    while waiting[0][0] <= RUN_S:
        now, client = heapq.heappop(waiting)
        amount, pause = amounts[number % len(amounts)], pauses[number % len(pauses)]
        number += 1
        total += amount
        heapq.heappush(waiting, (now + max(record(amount, now), pause), client))
    return total / RUN_S


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    amounts=st.lists(st.floats(0.05, 0.5), min_size=1, max_size=20),
    pauses=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=20),
    offset=st.floats(0.0, 1e6),
)
def test_over_a_long_run_the_rate_is_that_of_the_quota(
    amounts: list[float], pauses: list[float], offset: float
) -> None:
    """Requests take a twentieth to a half of what a second allows, and come as fast as that."""
    rate = SampledRate(Windows())

    def record(amount: float, now: float) -> float:
        rate.record(amount, offset + now)
        return rate.wait_s(1.0, offset + now)

    assert accepted(record, amounts, pauses, clients=1) == pytest.approx(1.0, rel=0.05)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    wanted=st.lists(st.floats(0.05, 40.0), min_size=1, max_size=20),
    clients=st.integers(1, 5),
)
def test_over_a_long_run_fetches_of_any_size_get_the_rate_of_the_quota(wanted: list[float], clients: int) -> None:
    """A fetch gets what is left, at least that of a quarter of a second. Beyond the quota it waits without records."""
    rate = SampledRate(Windows())
    fetched = 0.0

    def record(amount: float, now: float) -> float:
        nonlocal fetched
        amount = min(amount, max(rate.left(1.0, now), 0.25))
        rate.record(amount, now)
        wait_s = rate.wait_s(1.0, now)
        if wait_s > 0:
            rate.record(-amount, now)
        else:
            fetched += amount
        return wait_s

    accepted(record, wanted, [0.005], clients)
    assert fetched / RUN_S == pytest.approx(1.0, rel=0.05)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    amounts=st.lists(st.integers(1, 100), min_size=1, max_size=20),
    limit=st.floats(1.0, 1000.0),
)
def test_over_a_long_run_a_bucket_allows_the_rate_of_the_quota(amounts: list[int], limit: float) -> None:
    bucket = TokenBucket(Windows())

    def record(amount: float, now: float) -> float:
        bucket.record(amount, limit, now)
        return bucket.wait_s(limit, now)

    most = max(amounts) / limit / RUN_S  # may be on loan at the end
    assert accepted(record, [float(each) for each in amounts], [0.0005], 1) / limit == pytest.approx(
        1.0, rel=0.05 + most
    )
