"""Compute the changes between two samples of a cluster as rates, and format them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.output import table_lines
from parley.tools.cli.top.sampling import PartitionSample, Sample
from parley.tools.plurals import plural


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """A topic: records written per second, and the bytes of its leaders. None if unknown."""

    topic: str
    partitions: int
    records_per_sec: float | None
    size: int | None
    under_replicated: int
    without_leader: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A group: its lag in records, and the records that it commits per second. None if unknown."""

    group: str
    state: str
    lag: int | None
    records_per_sec: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that is shown: the brokers by id, topics by rate, groups by lag."""

    sample: Sample
    interval_s: float
    topics: tuple[TopicFigures, ...]
    groups: tuple[GroupFigures, ...]

    @property
    def records_per_sec(self) -> float:
        return sum(one.records_per_sec or 0.0 for one in self.topics)

    def as_data(self) -> dict[str, Any]:
        """Return the data of ``--output``."""
        return {
            "intervalMs": round(self.interval_s * 1000),
            "underReplicated": self.sample.under_replicated,
            "withoutLeader": self.sample.without_leader,
            "brokers": [
                {
                    "broker": one.id,
                    "address": one.address,
                    "running": one.is_running,
                    "controller": one.is_controller,
                    "leaders": one.leaders,
                    "replicas": one.replicas,
                    "bytes": one.size,
                }
                for one in self.sample.brokers
            ],
            "topics": [
                {
                    "topic": one.topic,
                    "partitions": one.partitions,
                    "recordsPerSec": one.records_per_sec,
                    "bytes": one.size,
                    "underReplicated": one.under_replicated,
                    "withoutLeader": one.without_leader,
                }
                for one in self.topics
            ],
            "groups": [
                {"group": one.group, "state": one.state, "lag": one.lag, "recordsPerSec": one.records_per_sec}
                for one in self.groups
            ],
            "groupsLeftOut": self.sample.groups_left_out,
        }

    def lines(self, height: int | None = None) -> list[str]:
        """Return the screen's lines, at most ``height``, or all if it is None. Topics and groups share the lines that
        the brokers do not use."""
        data = self.as_data()
        for row in (*data["brokers"], *data["topics"]):
            row["size"] = None if (size := row.pop("bytes")) is None else bytes_text(size)
        brokers = table_lines(data["brokers"])
        internal = sum(each.leaders for each in self.sample.brokers) - len(self.sample.partitions)
        more = f" and {internal} of internal topics" if internal > 0 else ""
        running = sum(each.is_running for each in self.sample.brokers)
        of_all = plural(len(self.sample.brokers), "broker")
        brokers_text = f"{running} of {of_all}" if running < len(self.sample.brokers) else of_all
        head = (
            f"{brokers_text}, {plural(len(self.sample.partitions), 'partition')}{more}, "
            f"{self.records_per_sec:g} records/s, over {self.interval_s:.1f} s"
        )
        lines = [head, *self._unhealthy(), "", *brokers]
        left = None if height is None else max(6, height - len(lines) - 2)
        topics, groups = table_lines(data["topics"]), table_lines(data["groups"])
        if left is not None:
            for_groups = min(len(groups), max(left // 2, left - len(topics)))
            topics, groups = topics[: left - for_groups], groups[:for_groups]
        lines += ["", *topics] if topics else []
        lines += ["", *groups] if groups else []
        return lines if height is None else lines[:height]

    def _unhealthy(self) -> Iterator[str]:
        """Yield a line about the partitions, including internal ones, that lack a leader or in-sync replicas."""
        without, short = self.sample.without_leader, self.sample.under_replicated
        if without or short:
            yield (
                f"partitions without a leader: {without}, under-replicated: {short} (internal topics included); "
                "see parley doctor"
            )


def between(before: Sample, after: Sample) -> Figures:
    """Compute the figures from two samples."""
    seconds = max(1e-3, after.at - before.at)
    topics: dict[str, list[tuple[PartitionSample | None, PartitionSample]]] = {}
    for place, one in after.partitions.items():
        topics.setdefault(place[0], []).append((before.partitions.get(place), one))
    earlier = {group.name: group for group in before.groups}
    groups = []
    for group in after.groups:
        was = earlier.get(group.name)
        is_known = was is not None and was.lag is not None and group.lag is not None
        rate = round(max(0, group.committed - was.committed) / seconds, 1) if is_known and was else None
        groups.append(GroupFigures(group.name, group.state, group.lag, rate))
    return Figures(
        after,
        seconds,
        tuple(sorted((_topic(name, pairs, seconds) for name, pairs in topics.items()), key=_by_rate)),
        tuple(sorted(groups, key=lambda one: (-(one.lag or 0), one.group))),
    )


def _topic(name: str, pairs: Sequence[tuple[PartitionSample | None, PartitionSample]], seconds: float) -> TopicFigures:
    written = [
        # The end offset decreases if an unclean election has lost records, which does not count as writing.
        max(0, now.end - was.end)
        for was, now in pairs
        if was is not None and was.end is not None and now.end is not None
    ]
    rate = round(sum(written) / seconds, 1) if written else None
    return TopicFigures(
        name,
        len(pairs),
        rate,
        _sum(now.size for _, now in pairs),
        sum(now.is_under_replicated for _, now in pairs),
        sum(now.leader < 0 for _, now in pairs),
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _by_rate(one: TopicFigures) -> tuple[float, int, str]:
    return -(one.records_per_sec or 0.0), -(one.size or 0), one.topic
