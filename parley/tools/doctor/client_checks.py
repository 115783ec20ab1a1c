"""Checks of problems that clients see: groups, transactions, quotas. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from parley.tools.doctor.facts import Cluster, Group, GroupSample
from parley.tools.doctor.findings import Seen, some
from parley.tools.plurals import plural

REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
THROTTLED_HARD_S: Final = 1.0
"""The lowest average delay of responses, in seconds, at which a client counts as heavily throttled."""


def stuck_groups(cluster: Cluster) -> Iterator[Seen]:
    """Find groups with members that commit nothing although there are records to read."""
    for group, first, last in _seen_twice(cluster):
        if not last.members or last.state in REBALANCING or not _total(last):
            continue
        waiting = [where for where in first.lags if first.lags[where] > 0]
        if waiting and all(last.committed.get(where) == first.committed.get(where) for where in waiting):
            yield Seen(
                f"group {group.name} has {plural(last.members, 'member')} and committed nothing in "
                f"{cluster.interval_s:.0f} s, while it has a lag of {plural(_total(last), 'record')}",
                [f"{topic}-{index}: lag {last.lags.get((topic, index), 0):,}" for topic, index in waiting[:5]],
            )


def growing_groups(cluster: Cluster) -> Iterator[Seen]:
    """Find groups whose lag grows."""
    for group, first, last in _seen_twice(cluster):
        before, after = _total(first), _total(last)
        if after > before and after > 0:
            who = "it has no members" if not last.members else f"it has {plural(last.members, 'member')}"
            yield Seen(
                f"the lag of group {group.name} grows: from {before:,} to {after:,} records in "
                f"{cluster.interval_s:.0f} s; {who}",
                [f"state {last.state}"],
            )


def rebalancing_groups(cluster: Cluster) -> Iterator[Seen]:
    """Find groups that were rebalancing in both samples."""
    for group, first, last in _seen_twice(cluster):
        if first.state in REBALANCING and last.state in REBALANCING:
            yield Seen(
                f"group {group.name} was rebalancing, and still was {cluster.interval_s:.0f} s later",
                [f"states {first.state}, {last.state}; {plural(last.members, 'member')}"],
            )


def _seen_twice(cluster: Cluster) -> Iterator[tuple[Group, GroupSample, GroupSample]]:
    for group in cluster.groups or ():
        if group.last is not None:
            yield group, group.first, group.last


def _total(sample: GroupSample) -> int:
    return sum(sample.lags.values())


def hanging(cluster: Cluster) -> Iterator[Seen]:
    """Find open transactions that no coordinator will end."""
    for each in cluster.hanging or ():
        where = f"--topic {each.topic} --partition {each.partition}"
        yield Seen(
            f"a transaction hangs in {each.topic}-{each.partition}: readers of committed records stop at offset "
            f"{each.start_offset}",
            [f"producer id {each.producer_id}, last write {each.last_write.isoformat(timespec='seconds')}"],
            each.last_write,
            (
                f"parley transactions find-hanging {where}",
                f"parley transactions abort {where} --start-offset {each.start_offset}",
            ),
        )


def throttled(cluster: Cluster) -> Iterator[Seen]:
    """Find clients whose responses quotas delay by at least ``THROTTLED_HARD_S`` on average."""
    for broker in cluster.brokers:
        if broker.metrics is None:
            continue
        spent = {
            _who(labels): value for labels, value in broker.metrics.of("parley_client_quota_throttle_seconds_total")
        }
        times = {_who(labels): value for labels, value in broker.metrics.of("parley_client_quota_throttles_total")}
        for who, seconds in sorted(spent.items()):
            count = times.get(who, 0)
            if count and seconds / count >= THROTTLED_HARD_S:
                quota, user, client = who
                named = some([f"user {user}"] * bool(user) + [f"client id {client}"] * bool(client)) or "all clients"
                yield Seen(
                    f"broker {broker.id} throttles {named} hard: {count:,.0f} responses were held back for "
                    f"{seconds / count:.1f} s on average by the quota {quota}",
                    [f"{seconds:,.1f} s in all; {broker.metrics.address}/metrics"],
                )


def _who(labels: Mapping[str, str]) -> tuple[str, str, str]:

    return labels.get("quota", ""), labels.get("user", ""), labels.get("client_id", "")
