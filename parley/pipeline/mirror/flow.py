"""The state of one pair of clusters, and all work for it except copying records.

A ``Flow`` lives in the driver. The topic of stored offsets on the target (``notes``, with the anchors of ``copying``)
records how far each partition has been copied, and the offset syncs map the source's offsets to the target's. Both are
written at intervals. Nothing is kept on the mirror's own machine.

A cluster that does not respond is skipped for a while (``HELD_BACK_MS``), and a partition without a leader until it has
one, because all flows copy in the same rounds and wait for each other.

Locking: copying and the regular work run in two threads. State that both access is changed under the flow's lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, Connection
from parley.pipeline.client.fetching import Isolation, OffsetOutOfRange, TopicPartition
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.mirror import admin
from parley.pipeline.mirror.appending import new_producer, peek, tail
from parley.pipeline.mirror.checkpoints import new_checkpoints, to_commit
from parley.pipeline.mirror.copying import Anchor, Copied, Range, cut_at
from parley.pipeline.mirror.internal_records import Checkpoint, Encoded, Heartbeat, OffsetSync, Progress
from parley.pipeline.mirror.naming import HEARTBEATS
from parley.pipeline.mirror.notes import Notes, Place
from parley.pipeline.mirror.settings import FlowSettings
from parley.pipeline.mirror.topics import missing
from parley.pipeline.mirror.translation import Translations
from parley.protocol.errors import KafkaError

COPIED_AT_ONCE: Final = 200_000
"""The number of offsets of one partition that one round copies. Progress is shown and stored between rounds."""
OFFSETS_PARTITIONS: Final = 25
"""The number of partitions of the topic of stored offsets, as Connect creates it."""
PATIENCE_MS: Final = 20_000
"""How long (ms) a request without a response is retried. One partition can delay a round for this long."""
HELD_BACK_MS: Final = 30_000
_COMPACT: Final = {"cleanup.policy": "compact"}

_log = logging.getLogger(__name__)


class Flow:
    """The flow from one cluster to another. Every method that sends requests raises KafkaError."""

    def __init__(self, number: int, settings: FlowSettings, now_ms: Callable[[], int]) -> None:
        self.number = number
        self.settings = settings
        self.source_connection = Connection(
            bootstrap=settings.source.bootstrap,
            client_id=f"mirror-{settings.name}",
            api_timeout_ms=PATIENCE_MS,
            security=settings.source.security,
        )
        self.target_connection = replace(
            self.source_connection, bootstrap=settings.target.bootstrap, security=settings.target.security
        )
        self.source = Cluster(self.source_connection)
        self.target = Cluster(self.target_connection)
        self.isolation = Isolation[settings.choices.isolation.upper()]
        self.records = 0
        self.size_bytes = 0
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._places: dict[TopicPartition, Place] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._topic_ids: Mapping[str, str] = {}
        self._leaderless: frozenset[TopicPartition] = frozenset()
        self._held_back: dict[TopicPartition, int] = {}
        alias = settings.source.alias
        self._notes = Notes(self.target, settings.policy.offsets(alias), alias, now_ms)
        self._translations = Translations()
        self._syncs: list[OffsetSync] = []
        self._checkpoints: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self._groups: list[str] = []
        self._problems: dict[TopicPartition, str] = {}

    def close(self) -> None:
        """Close the connections."""
        self.source.close()
        self.target.close()

    # Preparation.

    def prepare(self) -> None:
        """Create the internal topics, read their records, and find the topics and groups to mirror."""
        settings, choices = self.settings, self.settings.choices
        source, target = admin.overview(self.source), admin.overview(self.target)
        if choices.emit_heartbeats:
            self._make(self.target, HEARTBEATS, "heartbeats.topic.replication.factor", target)
        if not choices.enabled:
            return
        self._make(self.target, self._notes.topic, "replication.factor", target, OFFSETS_PARTITIONS)
        if choices.emit_offset_syncs:
            there = (self.source, source) if settings.offset_syncs_at_source else (self.target, target)
            self._make(there[0], settings.offset_syncs_topic, "offset-syncs.topic.replication.factor", there[1])
            for sync in admin.read_decoded(there[0], settings.offset_syncs_topic, OffsetSync.decode):
                self._translations.add(sync)
        if choices.emit_checkpoints:
            topic = settings.policy.checkpoints(settings.source.alias)
            self._make(self.target, topic, "checkpoints.topic.replication.factor", target)
            for one in admin.read_decoded(self.target, topic, Checkpoint.decode):
                self._checkpoints[one.group, TopicPartition(one.topic, one.partition)] = one
        self._notes.read(target.topics.get(self._notes.topic, OFFSETS_PARTITIONS))
        self.refresh_topics()
        if choices.emit_checkpoints:
            self.refresh_groups()

    def _make(self, cluster: Cluster, topic: str, replicas: str, there: admin.Overview, partitions: int = 1) -> None:
        if topic in there.topics:
            return
        count = self.settings.replicas(replicas, len(there.brokers))
        problems = admin.create_topics(cluster, {topic: partitions}, count, {topic: _COMPACT})
        for name, problem in problems.items():
            _log.error("%s: cannot create the topic %s: %s", self.settings.name, name, problem)

    # Topics.

    def refresh_topics(self) -> None:
        """Find the topics to copy, create or grow them on the target, and find the start of each new partition. Forget
        deleted topics.
        """
        settings = self.settings
        source, target = admin.overview(self.source), admin.overview(self.target)
        names = {
            topic: settings.policy.remote(settings.source.alias, topic) for topic in settings.topics.of(source.topics)
        }
        wanted = missing({names[topic]: source.topics[topic] for topic in names}, target.topics)
        made_from = {remote: topic for topic, remote in names.items() if remote in wanted.create}
        described = admin.topic_settings(self.source, list(made_from.values()))
        at_creation = settings.topic_settings.at_creation
        problems = admin.create_topics(
            self.target,
            wanted.create,
            settings.replicas("replication.factor", len(target.brokers)),
            {remote: at_creation(described.get(topic, {})) for remote, topic in made_from.items()},
        )
        problems |= admin.grow_topics(self.target, wanted.grow)
        for remote, problem in problems.items():
            _log.error("%s: cannot create or grow the topic %s: %s", settings.name, remote, problem)
        for topic in made_from.values():
            _log.info("%s: mirroring topic %s to %s", settings.name, topic, names[topic])
        ready = [topic for topic in names if names[topic] not in problems]
        partitions = (TopicPartition(topic, number) for topic in ready for number in range(source.topics[topic]))
        self._begin(partitions, source.ids)
        gone = {place for place in self._places if place.topic not in source.topics}
        with self._lock:
            for place in gone:
                del self._places[place]
                self._ends.pop(place, None)

    def sync_settings(self) -> None:
        """Copy the settings of the source's topics to the target's."""
        settings = self.settings
        remote = {topic: settings.policy.remote(settings.source.alias, topic) for topic in self.topics()}
        there = admin.overview(self.target).topics
        described = admin.topic_settings(self.source, [topic for topic, name in remote.items() if name in there])
        changes = {remote[topic]: settings.topic_settings.later(found) for topic, found in described.items()}
        for topic, problem in admin.alter_settings(self.target, changes).items():
            _log.warning("%s: the settings of %s are not synchronized: %s", settings.name, topic, problem)

    def topics(self) -> list[str]:
        """Return the topics that are copied."""
        with self._lock:
            return sorted({place.topic for place in self._places})

    def _begin(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Find the start of each new partition, and record it before anything is copied."""
        new = [place for place in partitions if place not in self._places]
        if not new:
            return
        latest = self.settings.choices.reset == "latest"
        first = self.source.offsets(dict.fromkeys(new, LATEST if latest else EARLIEST), self.isolation)
        ends = self.target.offsets(dict.fromkeys(map(self.remote, new), LATEST))
        group = admin.committed(self.source, self.settings.commits_as) if self.settings.commits_as else {}
        found = {place: known for place in new if (known := self._notes.place(place)) is not None}
        fresh = [place for place in new if place not in found]
        if fresh:
            producer = new_producer(self.target)
            for place in fresh:
                begin = group[place].offset if place in group else first[place]
                noted = self._notes.upstream(place)
                anchor = Anchor(begin if noted is None else noted, ends[self.remote(place)], producer)
                found[place] = Place(anchor, topic_ids.get(place.topic, ""))
            self._notes.write({place: found[place] for place in fresh})
            agreed = self._notes.first(fresh)
            self._notes.write({place: known for place, known in agreed.items() if known != found[place]})
            found |= agreed
        with self._lock:
            self._places |= found

    def remote(self, partition: TopicPartition) -> TopicPartition:
        """Return the target's partition for a partition of the source."""
        topic = self.settings.policy.remote(self.settings.source.alias, partition.topic)
        return TopicPartition(topic, partition.partition)

    # Copying.

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset up to which each partition can be copied now."""
        with self._lock:
            places = list(self._places)
        return self.source.offsets(dict.fromkeys(places, LATEST), self.isolation) if places else {}

    def look(self, ends: Mapping[TopicPartition, int]) -> None:
        """Store these ends of the source's logs, and find out which copies must be restarted.

        These are the copies of topics that were created again on the source, and of records that either cluster has
        lost.
        """
        with self._lock:
            self._ends |= {place: end for place, end in ends.items() if place in self._places}
        source, target = admin.overview(self.source), admin.overview(self.target)
        with self._lock:
            self._topic_ids = source.ids
            self._leaderless = source.leaderless | {
                place for place in self._places if self.remote(place) in target.leaderless
            }
        self._find_recreated()
        self._find_shorter(ends)
        self._find_lost(ends)

    def _find_recreated(self) -> None:
        """Restart the copies of topics that were deleted and created again on the source."""
        with self._lock:
            ids = {place: self._topic_ids.get(place.topic, "") for place in self._places}
            recreated = [place for place, known in self._places.items() if known.topic_id not in ("", ids[place])]
            for place, known in self._places.items():
                if not known.topic_id:
                    self._places[place] = replace(known, topic_id=ids[place])
        latest = self.settings.choices.reset == "latest"
        for place in recreated:
            if ids[place]:
                begin = self.source.offsets({place: LATEST if latest else EARLIEST}, self.isolation)[place]
                self._begin_again(place, begin, "the topic was created again")

    def _find_shorter(self, ends: Mapping[TopicPartition, int]) -> None:
        """Restart the copies of partitions whose log on the source now ends before the position of the copy."""
        with self._lock:
            shorter = {
                place: known.anchor
                for place, known in self._places.items()
                if ends.get(place, known.anchor.upstream) < known.anchor.upstream
            }
        for place, anchor in shorter.items():
            try:
                # The leader decides: another broker's end may be outdated.
                self.source.run(partial(peek, partition=place, offset=anchor.upstream))
            except OffsetOutOfRange as error:
                self._reset(place, anchor, error.log_start, error.log_end)

    def _find_lost(self, ends: Mapping[TopicPartition, int]) -> None:
        """Restart the copies of partitions without new records whose copied records the target has lost."""
        now = self._now_ms()
        with self._lock:
            idle = {
                place: known.anchor
                for place, known in self._places.items()
                if ends.get(place, 0) <= known.anchor.upstream
                and place not in self._leaderless
                and self._held_back.get(place, 0) <= now
            }
        try:
            there = self.target.offsets(dict.fromkeys(map(self.remote, idle), LATEST)) if idle else {}
        except KafkaError:
            with self._lock:
                self._held_back |= dict.fromkeys(idle, now + HELD_BACK_MS)
            return
        for place, anchor in idle.items():
            remote = self.remote(place)
            if there[remote] < anchor.downstream:
                lost = cut_at(tail(self.target, remote, anchor.producer, anchor.downstream), anchor)
                if lost is not None:
                    self._copy_again(place, lost)

    def hold_back(self) -> None:
        """Copy nothing for ``HELD_BACK_MS``, because one of the clusters does not respond."""
        with self._lock:
            self._held_back |= dict.fromkeys(self._places, self._now_ms() + HELD_BACK_MS)

    @property
    def is_held_back(self) -> bool:
        """True if all partitions are held back, so that nothing can be copied now."""
        now = self._now_ms()
        with self._lock:
            return bool(self._places) and all(self._held_back.get(place, 0) > now for place in self._places)

    def plan(self, ends: Mapping[TopicPartition, int]) -> list[Range]:
        """Return the ranges for one round of copying up to these ends: at most ``COPIED_AT_ONCE`` offsets of each
        partition.

        Leaves out partitions that are held back, and those without a leader whose copy has already failed.
        """
        now = self._now_ms()
        with self._lock:
            held = {place for place, until in self._held_back.items() if until > now}
            held |= self._leaderless & self._problems.keys()
            return [
                Range(
                    self.number,
                    self.source_connection,
                    self.target_connection,
                    place,
                    self.remote(place),
                    known.anchor,
                    min(end, known.anchor.upstream + COPIED_AT_ONCE),
                    end,
                    self.isolation,
                )
                for place, end in sorted(ends.items())
                if (known := self._places.get(place)) is not None and known.anchor.upstream < end and place not in held
            ]

    def take(self, done: Copied) -> bool:
        """Apply the result of a task. Returns False if the copy is stuck, so that this call of ``Mirror.copy`` must
        leave it out.
        """
        with self._lock:
            known = self._places.get(done.partition)
            if known is None:
                return False
            self._places[done.partition] = replace(known, anchor=done.anchor)
            for run in done.runs:
                self._add(done.partition, run.upstream, run.downstream)
                self._add(done.partition, run.last, run.last - run.distance)
            self.records += done.records
            self.size_bytes += done.size_bytes
            if done.waited:
                self._held_back[done.partition] = self._now_ms() + HELD_BACK_MS
        if done.out_of_range is not None:
            self._reset(done.partition, done.anchor, *done.out_of_range)
        elif done.cut_at is not None:
            self._copy_again(done.partition, done.cut_at)
        elif done.refused:
            why = "the target rejects the following records: some later records may be copied twice"
            self._begin_again(done.partition, done.anchor.upstream, why)
        else:
            self._log_problem(done)
            return not done.problem
        return True

    def _add(self, place: TopicPartition, upstream: int, downstream: int) -> None:
        before = self._translations.latest(*place)
        if before is not None and before[0] == upstream and before[1] == downstream:
            return
        sync = OffsetSync(*place, upstream, downstream)
        self._translations.add(sync)
        last = self._syncs[-1] if self._syncs else None
        before_last = self._syncs[-2] if len(self._syncs) > 1 else None
        if last and before_last and _same_run(before_last, last) and _same_run(last, sync):
            self._syncs.pop()
        self._syncs.append(sync)

    def _reset(self, place: TopicPartition, anchor: Anchor, log_start: int, log_end: int) -> None:
        """Restart the copy, because the source no longer has its next records.

        It restarts at the log start if those records were deleted. If the log was truncated or created again,
        ``auto.offset.reset`` decides.
        """
        if anchor.upstream < log_start:
            self._begin_again(place, log_start, "records were deleted before they were copied")
        else:
            begin = log_end if self.settings.choices.reset == "latest" else log_start
            self._begin_again(place, begin, "the topic was created again, or its log was truncated")

    def _copy_again(self, place: TopicPartition, lost: int) -> None:
        """Restart at the first record that the target has lost, at offset ``lost``. If the source's record is unknown,
        restart at its log start.
        """
        with self._lock:
            upstream = self._translations.upstream(*place, lost)
        if upstream is None:
            upstream = self.source.offsets({place: EARLIEST})[place]
        why = f"{self.remote(place)} has lost copied records from offset {lost} on"
        self._begin_again(place, upstream, why)

    def _begin_again(self, place: TopicPartition, upstream: int, why: str) -> None:
        """Continue at offset ``upstream`` under a new producer id, which is stored before it is used. ``why`` is for
        the log.
        """
        remote = self.remote(place)
        end = self.target.offsets({remote: LATEST})[remote]
        found = Place(Anchor(upstream, end, new_producer(self.target)), self._topic_ids.get(place.topic, ""))
        self._notes.write({place: found})
        with self._lock:
            before = self._places.get(place, found)
            self._places[place] = found
        _log.warning(
            "%s: %s continues at offset %d instead of %d: %s",
            self.settings.name,
            place,
            upstream,
            before.anchor.upstream,
            why,
        )

    def _log_problem(self, done: Copied) -> None:
        before = self._problems.pop(done.partition, "")
        if done.problem:
            self._problems[done.partition] = done.problem
            if done.problem != before:
                _log.error("%s: %s is no longer copied: %s", self.settings.name, done.partition, done.problem)
        elif before:
            _log.info("%s: %s is copied again", self.settings.name, done.partition)

    @property
    def problems(self) -> dict[TopicPartition, str]:
        """The partitions whose copies are stuck, and the reasons."""
        return dict(self._problems)

    @property
    def lag(self) -> int:
        """The number of source offsets that have not been copied yet, up to the last known ends."""
        with self._lock:
            return sum(max(0, end - self._places[place].anchor.upstream) for place, end in self._ends.items())

    def progress(self) -> Progress:
        """Return the progress since this mirror was started."""
        return Progress(self.settings.name, len(self.topics()), self.records, self.size_bytes, self.lag)

    # Stored progress.

    def flush(self) -> None:
        """Store the progress: write offset syncs and stored offsets, and commit the offsets of the first MirrorMaker's
        group.
        """
        settings = self.settings
        with self._lock:
            syncs, self._syncs = self._syncs, []
            places = {place: known for place, known in self._places.items() if self._notes.place(place) != known}
        if syncs and settings.choices.emit_offset_syncs:
            cluster = self.source if settings.offset_syncs_at_source else self.target
            try:
                self._write(cluster, settings.offset_syncs_topic, [sync.encode() for sync in syncs])
            except KafkaError:
                with self._lock:
                    self._syncs[:0] = syncs
                raise
        self._notes.write(places)
        if settings.commits_as and places:
            offsets = {place: Committed(known.anchor.upstream) for place, known in places.items()}
            for place, problem in admin.commit(self.source, settings.commits_as, offsets).items():
                _log.warning(
                    "%s: group %s: progress in %s is not committed: %s",
                    settings.name,
                    settings.commits_as,
                    place,
                    problem,
                )

    def _write(self, cluster: Cluster, topic: str, some: list[Encoded]) -> None:
        admin.write(cluster, TopicPartition(topic, 0), some, self._now_ms())

    # Heartbeats and groups.

    def beat(self) -> None:
        """Write a heartbeat with the flow's progress to the target."""
        source, target = self.settings.source.alias, self.settings.target.alias
        progress = self.progress() if self.settings.choices.enabled else None
        self._write(self.target, HEARTBEATS, [Heartbeat(source, target, self._now_ms(), progress).encode()])

    def refresh_groups(self) -> None:
        """Look up the groups whose offsets are mirrored."""
        self._groups = [group for group in admin.consumer_groups(self.source) if group in self.settings.groups]

    def checkpoint(self) -> None:
        """Write a checkpoint for each group and partition with a new position: its offset on the source and on the
        target.
        """
        settings = self.settings
        alias, chosen = settings.source.alias, settings.topics.topics
        new: list[Checkpoint] = []
        for group in self._groups:
            offsets = {
                place: one for place, one in admin.committed(self.source, group).items() if place.topic in chosen
            }
            with self._lock:
                new += new_checkpoints(
                    group,
                    offsets,
                    self._translations.downstream,
                    lambda topic: settings.policy.remote(alias, topic),
                    self._checkpoints,
                )
        if new:
            self._write(self.target, settings.policy.checkpoints(alias), [one.encode() for one in new])
        self._checkpoints |= {(one.group, TopicPartition(one.topic, one.partition)): one for one in new}

    def sync_groups(self) -> None:
        """Commit the translated offsets on the target, for groups without members there."""
        by_group: dict[str, list[Checkpoint]] = {}
        for one in self._checkpoints.values():
            by_group.setdefault(one.group, []).append(one)
        for group, some in by_group.items():
            if group not in self._groups:
                continue
            state = admin.group_state(self.target, group)
            offsets = to_commit(some, state, admin.committed(self.target, group))
            for place, problem in admin.commit(self.target, group, offsets).items():
                _log.warning("%s: group %s: %s is not committed: %s", self.settings.name, group, place, problem)


def _same_run(one: OffsetSync, other: OffsetSync) -> bool:
    """Return True if both syncs belong to the same partition and have the same distance between source and target."""
    same = (one.topic, one.partition) == (other.topic, other.partition)
    return same and one.upstream - one.downstream == other.upstream - other.downstream
