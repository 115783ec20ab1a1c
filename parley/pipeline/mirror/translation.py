"""An offset of a source's partition as one of the target's, from the offset syncs (KIP-382, KIP-656, KIP-894).

A sync says that record ``u`` here is record ``d`` there. Between two syncs with the same distance ``u - d`` every
record was copied, since each record there comes from one of here, in order: so they make one run, within which every
offset is translated exactly. Between two runs some records were not copied (markers of transactions, aborted or
compacted records), and it is unknown which: there an offset becomes the one after the end of the run before it, which
is never too far, so that a reader who goes on from there sees some records again but misses none.

MirrorMaker 2 keeps syncs at growing distances instead and always translates to at most one after a sync: what it says
is never further than what this says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from parley.pipeline.mirror.internal_records import OffsetSync

RUNS_MAX: Final = 10_000
"""Runs kept of one partition; offsets before the oldest are no longer translated."""


@dataclass(frozen=True, slots=True)
class Run:
    """Records ``upstream`` to ``last`` here are records ``downstream`` and following there."""

    upstream: int
    last: int
    downstream: int

    @property
    def distance(self) -> int:
        return self.upstream - self.downstream


class Translation:
    """What the syncs of one partition say, in the order in which they were written."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    @property
    def latest(self) -> tuple[int, int] | None:
        """The upstream and downstream offsets of the last sync."""
        if not self._runs:
            return None
        run = self._runs[-1]
        return run.last, run.last - run.distance

    def add(self, upstream: int, downstream: int) -> None:
        """Take a sync. One that goes back, here or there, means that the topic was created again: forget the runs."""
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
        """Where a reader that would read ``upstream`` next here has to go on there; None if that is not known.

        Of a reader that is behind the first sync nothing is known.
        """
        at = bisect_right(self._runs, upstream, key=lambda run: run.upstream) - 1
        if at < 0:
            return None
        run = self._runs[at]
        return run.downstream + min(upstream, run.last + 1) - run.upstream

    def upstream(self, downstream: int) -> int | None:
        """From where on to copy again, if the log there was cut off at ``downstream``; None if that is not known."""
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
        """The upstream and downstream offsets of a partition's last sync."""
        found = self._of.get((topic, partition))
        return None if found is None else found.latest

    def downstream(self, topic: str, partition: int, upstream: int) -> int | None:
        """As `Translation.downstream`."""
        found = self._of.get((topic, partition))
        return None if found is None else found.downstream(upstream)

    def upstream(self, topic: str, partition: int, downstream: int) -> int | None:
        """As `Translation.upstream`."""
        found = self._of.get((topic, partition))
        return None if found is None else found.upstream(downstream)
