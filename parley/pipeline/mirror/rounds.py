"""Runs a mirror: rounds of copying, and the regular work between them.

``Mirror`` gets a function that copies ranges: Spark tasks in a job, a simple loop in a test. A range that is stuck, or
a cluster that does not respond, is reported once and retried, and stops nothing else. The regular work (heartbeats,
topics, groups) has a separate thread, because copying may take long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.mirror.copying import Copied, Range
from parley.pipeline.mirror.flow import Flow
from parley.pipeline.mirror.internal_records import Progress
from parley.pipeline.mirror.settings import MirrorSettings
from parley.protocol.errors import KafkaError

FLUSH_S: Final = 5.0
"""The minimum time between two writes of offset syncs and stored offsets."""
_LOOK_S: Final = 0.1

_log = logging.getLogger(__name__)

Ends = Mapping[int, Mapping[TopicPartition, int]]
"""The offset up to which to copy each partition of each flow, by the flow's number."""


@dataclass(slots=True)
class _Duty:
    """A piece of regular work of a flow. ``due`` is the time of the monotonic clock at which it runs next."""

    flow: Flow
    name: str
    every_s: float
    work: Callable[[], None]
    due: float


class Mirror:
    """All flows of a mirror. As a context manager, it prepares the flows, does the regular work, and flushes at the
    end.

    ``run`` copies ranges. Entering the context raises KafkaError if a cluster cannot be reached.
    """

    def __init__(
        self, settings: MirrorSettings, run: Callable[[list[Range]], Iterable[Copied]], *, now_ms: Callable[[], int]
    ) -> None:
        self.flows = [Flow(number, one, now_ms) for number, one in enumerate(settings.flows)]
        self._run = run
        self._over = threading.Event()
        self._flushed_at = time.monotonic()
        self._duties = [duty for flow in self.flows for duty in _duties(flow)]
        self._worker = threading.Thread(target=self._work, name="mirror-duties", daemon=True)

    def __enter__(self) -> Self:
        for flow in self.flows:
            flow.prepare()
        self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._worker.is_alive():
            self._worker.join()
        for flow in self.flows:
            try:
                if kind is None:
                    self._finish(flow)
            finally:
                flow.close()

    @property
    def copying(self) -> list[Flow]:
        """The flows that copy topics. Other flows only write heartbeats."""
        return [flow for flow in self.flows if flow.settings.choices.enabled]

    def progress(self) -> list[Progress]:
        """Return the progress of all flows."""
        return [flow.progress() for flow in self.copying]

    def ends(self) -> dict[int, dict[TopicPartition, int]]:
        """Return the offset up to which each partition of each flow can be copied now. Raises KafkaError."""
        return {flow.number: flow.ends() for flow in self.copying}

    def copy(self, ends: Ends, on_round: Callable[[], None] = lambda: None) -> None:
        """Copy up to these ends, in rounds. ``on_round`` is called before the first round and after each round.

        Ranges that are stuck, and flows whose clusters do not respond, are left for the next call.
        """
        wanted = {number: dict(some) for number, some in ends.items()}
        for flow in self.copying:
            if flow.is_held_back:
                wanted.pop(flow.number, None)
            elif not _guarded(flow, "looking at both clusters", partial(flow.look, wanted.get(flow.number, {}))):
                wanted.pop(flow.number, None)
                flow.hold_back()
        on_round()
        while ranges := [one for flow in self.copying for one in flow.plan(wanted.get(flow.number, {}))]:
            for done in self._run(ranges):
                if not self.flows[done.flow].take(done):
                    wanted[done.flow].pop(done.partition, None)
            if time.monotonic() >= self._flushed_at + FLUSH_S:
                self.flush()
            on_round()

    def flush(self) -> None:
        """Store the progress of all flows. A flow that fails is logged."""
        for flow in self.copying:
            _guarded(flow, "writing offsets", flow.flush)
        self._flushed_at = time.monotonic()

    def _finish(self, flow: Flow) -> None:
        """Store a flow's progress for the last time, and its checkpoints and groups' offsets if the settings require
        them.
        """
        choices = flow.settings.choices
        if not choices.enabled:
            return
        _guarded(flow, "writing offsets", flow.flush)
        if choices.emit_checkpoints:
            _guarded(flow, "checkpoints", flow.checkpoint)
            if choices.sync_groups:
                _guarded(flow, "offsets of groups", flow.sync_groups)

    def _work(self) -> None:
        while not self._over.wait(_LOOK_S):
            for duty in self._duties:
                if time.monotonic() >= duty.due and not self._over.is_set():
                    _guarded(duty.flow, duty.name, duty.work)
                    duty.due = time.monotonic() + duty.every_s


def _duties(flow: Flow) -> Iterable[_Duty]:
    """Yield the regular work that a flow's settings require."""
    choices = flow.settings.choices
    copies = choices.enabled
    groups = copies and choices.emit_checkpoints
    table: list[tuple[bool, str, float, Callable[[], None], bool]] = [
        # is needed, name, interval, work, runs immediately, too
        (choices.emit_heartbeats, "heartbeats", choices.emit_heartbeats_s, flow.beat, True),
        (copies and choices.refresh_topics, "topics", choices.refresh_topics_s, flow.refresh_topics, False),
        (copies and choices.sync_settings, "settings of topics", choices.sync_settings_s, flow.sync_settings, True),
        (groups and choices.refresh_groups, "groups", choices.refresh_groups_s, flow.refresh_groups, False),
        (groups, "checkpoints", choices.emit_checkpoints_s, flow.checkpoint, False),
        (groups and choices.sync_groups, "offsets of groups", choices.sync_groups_s, flow.sync_groups, False),
    ]
    now = time.monotonic()
    for on, name, every_s, work, at_once in table:
        if on:
            yield _Duty(flow, name, every_s, work, now if at_once else now + every_s)


def _guarded(flow: Flow, what: str, work: Callable[[], None]) -> bool:
    """Run the work. Returns False if a cluster failed: the error is logged, and the work is repeated when it is next
    due.
    """
    try:
        work()
        return True
    except KafkaError as error:
        _log.warning(
            "%s: %s failed and will be repeated: %s: %s", flow.settings.name, what, error.code.name, error.message
        )
        return False
