"""Translates offsets of a source's partition to the target's, by the offset syncs (KIP-382, KIP-656, KIP-894).

A sync means that record ``u`` of the source is record ``d`` of the target. Between two syncs with the same distance
``u - d``, every record was copied, because the target has the source's records in order. Such syncs form one run, in
which every offset is translated exactly. Between two runs, some unknown records were not copied (markers of
transactions, aborted or compacted records). An offset there is translated to the offset after the end of the run before
it. That is never too far: a reader that continues there sees some records again but misses none.

MirrorMaker 2 keeps syncs at growing distances instead, and translates to at most one offset after a sync. Its result is
never further than this one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from parley.pipeline.mirror.internal_records import OffsetSync

RUNS_MAX: Final = 10_000
"""How many runs of one partition are kept. Offsets before the oldest run are no longer translated."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of records that were copied without a gap: the source's ``upstream`` to ``last`` are the target's from
    ``downstream`` on.
    """

    upstream: int
    last: int
    downstream: int

    @property
    def distance(self) -> int:
        return self.upstream - self.downstream


class Translation:
    """The syncs of one partition, in the order in which they were written."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    @property
    def latest(self) -> tuple[int, int] | None:
        """The upstream and downstream offsets of the last sync; None if there is none."""
        if not self._runs:
            return None
        run = self._runs[-1]
        return run.last, run.last - run.distance

    def add(self, upstream: int, downstream: int) -> None:
        """Add a sync. If an offset decreases, a topic was created again, so the earlier runs are dropped."""
        latest = self.latest
        if latest is not None and (upstream < latest[0] or downstream < latest[1]):
            self._runs.clear()
        if self._runs and self._runs[-1].distance == upstream - downstream:
            last = self._runs[-1]
            self._runs[-1] = Run(last.upstream, upstream, last.downstream)
            return
        if self._runs and self._runs[-1].last == upstream:
            # The same record twice: it was copied again, and the later copy counts.
            self._shorten()
        self._runs.append(Run(upstream, upstream, downstream))
        if len(self._runs) > RUNS_MAX:
            del self._runs[0]

    def _shorten(self) -> None:
        run = self._runs.pop()
        if run.last > run.upstream:
            self._runs.append(Run(run.upstream, run.last - 1, run.downstream))

    def downstream(self, upstream: int) -> int | None:
        """Return the target's offset for a reader whose next offset in the source is ``upstream``.

        Returns None for a reader before the first sync.
        """
        at = bisect_right(self._runs, upstream, key=lambda run: run.upstream) - 1
        if at < 0:
            return None
        run = self._runs[at]
        return run.downstream + min(upstream, run.last + 1) - run.upstream

    def upstream(self, downstream: int) -> int | None:
        """Return the source's offset from which to copy again if the target's log was truncated at ``downstream``; None
        if it is unknown.
        """
        at = bisect_right(self._runs, downstream, key=lambda run: run.downstream) - 1
        if at < 0:
            return None
        run = self._runs[at]
        return run.upstream + min(downstream - run.downstream, run.last + 1 - run.upstream)


class Translations:
    """The translations of all partitions of a source."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[str, int], Translation] = defaultdict(Translation)

    def add(self, sync: OffsetSync) -> None:
        self._of[sync.topic, sync.partition].add(sync.upstream, sync.downstream)

    def latest(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return the upstream and downstream offsets of a partition's last sync; None if there is none."""
        found = self._of.get((topic, partition))
        return None if found is None else found.latest

    def downstream(self, topic: str, partition: int, upstream: int) -> int | None:
        """Return the target's offset for a reader whose next offset in the source's partition is ``upstream``; None
        before the first sync.
        """
        found = self._of.get((topic, partition))
        return None if found is None else found.downstream(upstream)

    def upstream(self, topic: str, partition: int, downstream: int) -> int | None:
        """Return the source's offset from which to copy the partition again if the target's log was truncated at
        ``downstream``; None if it is unknown.
        """
        found = self._of.get((topic, partition))
        return None if found is None else found.upstream(downstream)
