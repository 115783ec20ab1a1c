"""A share partition agrees with a simple model: a dictionary with an entry for each record."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.broker.coordinators.share_state.persister import ShareState, StateBatch
from parley.broker.share.acknowledgements import ACCEPT, GAP, REJECT, RELEASE, RENEW, AcknowledgementBatch
from parley.broker.share.record_states import ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, RecordState
from parley.broker.share.share_partition import Limits, LogBatch, SharePartition, Wanted, Write
from parley.protocol.errors import KafkaError
from tests.support.proportion import examples

LOCK_S = 10.0
MEMBERS = st.sampled_from(["a", "b", "c"])
OUTCOMES = {ACCEPT: ACKNOWLEDGED, REJECT: ARCHIVED, GAP: ARCHIVED}


@dataclass(frozen=True)
class Entry:
    """What the model knows of one record."""

    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    lock_until: float = 0.0
    pending: tuple[RecordState, int] | None = None


class Stored:
    """What the share coordinator has stored: as an ideal persister keeps it."""

    def __init__(self) -> None:
        self.start = 0
        self.records: dict[int, tuple[int, int]] = {}

    def write(self, write: Write) -> None:
        self.start = write.start_offset
        for batch in write.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.records[offset] = (batch.delivery_state, batch.delivery_count)
        self.records = {offset: kept for offset, kept in self.records.items() if offset >= self.start}

    def state(self) -> ShareState:
        batches = tuple(StateBatch(offset, offset, *kept) for offset, kept in sorted(self.records.items()))
        return ShareState(1, self.start, -1, batches)


class SharePartitionMachine(RuleBasedStateMachine):
    """Members acquire and acknowledge the records of a log that grows, while writes succeed or fail."""

    @initialize(
        locks=st.integers(1, 40),
        deliveries=st.integers(2, 6),
        sizes=st.lists(st.integers(1, 12), min_size=4, max_size=8),
    )
    def begin(self, locks: int, deliveries: int, sizes: list[int]) -> None:
        self.limits = Limits(locks, deliveries)
        self.stored = Stored()
        self.share = SharePartition(self.stored.state(), 0)
        self.model: dict[int, Entry] = {}
        self.log: list[LogBatch] = []
        self.now = 0.0
        self.writing: Write | None = None
        for size in sizes:
            self.append(size, 0, False)

    # --- The log ---

    @rule(size=st.integers(1, 12), gap=st.sampled_from([0, 0, 0, 2]), is_dead=st.sampled_from([False, False, True]))
    def append(self, size: int, gap: int, is_dead: bool) -> None:
        first = (self.log[-1].last + 1 if self.log else 0) + gap
        self.log.append(LogBatch(first, first + size - 1, is_dead))

    @rule(steps=st.integers(1, 5))
    def delete_records(self, steps: int) -> None:
        start = self.share.start_offset + steps
        if self.log and start <= self.log[-1].last + 1:
            self.log = [batch for batch in self.log if batch.last >= start]
            self.share.log_start_moved(start)
            self.model = {offset: entry for offset, entry in self.model.items() if offset >= start}

    # --- Members ---

    @rule(member=MEMBERS, most=st.integers(1, 20), is_exact=st.booleans(), batches=st.integers(1, 4))
    def fetch(self, member: str, most: int, is_exact: bool, batches: int) -> None:
        offset = self.share.next_offset(self.limits)
        if offset is None:
            assert self.share.in_flight >= self.limits.max_record_locks
            return
        known_end = self.share.end_offset
        found = [batch for batch in self.log if batch.last >= offset][:batches]
        acquired = self.share.acquire(member, offset, found, Wanted(most, is_exact), self.limits, self.now + LOCK_S)
        if is_exact:
            assert sum(each.last - each.first + 1 for each in acquired) <= most
        for first, last, count in acquired:
            for each in range(first, last + 1):
                entry = self.model.get(each, Entry())
                assert entry.state is AVAILABLE, "an acquired record is delivered to another member"
                assert any(batch.first <= each <= batch.last and not batch.is_dead for batch in found)
                assert count == entry.count + 1 <= self.limits.delivery_count_limit
                self.model[each] = Entry(ACQUIRED, count, member, self.now + LOCK_S)
        if any(entry.count >= self.limits.delivery_count_limit > 2 for entry in self._of(acquired)):
            assert len(list(self._of(acquired))) == 1, "a record that is delivered for the last time is not alone"
        holes = set(range(offset, self.share.end_offset)) - {
            each for batch in self.log if not batch.is_dead for each in range(batch.first, batch.last + 1)
        }
        for each in holes:
            known = self.model.get(each, Entry())
            if known.state is AVAILABLE and (each >= known_end or self._state(each) is ARCHIVED):
                self.model[each] = replace(known, state=ARCHIVED)

    def _of(self, acquired: list) -> list[Entry]:  # type: ignore[type-arg]
        return [self.model[each] for first, last, _ in acquired for each in range(first, last + 1)]

    def _state(self, offset: int) -> RecordState:
        for span in self.share.spans:
            if span.first <= offset <= span.last:
                return span.state
        return ARCHIVED

    @rule(
        member=MEMBERS,
        first=st.integers(-2, 15),
        types=st.lists(st.sampled_from([ACCEPT, RELEASE, REJECT, GAP, RENEW]), min_size=1, max_size=10),
        is_one=st.booleans(),
    )
    def acknowledge_any(self, member: str, first: int, types: list[int], is_one: bool) -> None:
        self.acknowledge(member, first, types, is_one=is_one)

    def acknowledge(self, member: str, first: int, types: list[int], *, is_one: bool) -> None:
        first = max(0, self.share.start_offset + first)
        last = first + len(types) - 1
        offsets = range(max(first, self.share.start_offset), last + 1)
        is_valid = all(
            (entry := self.model.get(each)) is not None
            and entry.state is ACQUIRED
            and entry.member == member
            and entry.pending is None
            for each in offsets
        )
        batch = AcknowledgementBatch(first, last, types[:1] if is_one else types)
        try:
            self.share.acknowledge(member, [batch], self.limits, self.now + LOCK_S)
        except KafkaError:
            assert not is_valid
            return
        assert is_valid
        for each in offsets:
            kind, entry = types[0 if is_one else each - first], self.model[each]
            if kind == RENEW:
                self.model[each] = replace(entry, lock_until=self.now + LOCK_S)
            else:
                outcome = OUTCOMES.get(kind) or self._released(entry)
                self.model[each] = replace(entry, pending=(outcome, entry.count))

    @rule(
        outcome=st.sampled_from(["", "stored", "lost", "stored but not known"]),
        which=st.integers(0, 100),
        size=st.integers(1, 12),
        kinds=st.lists(st.sampled_from([ACCEPT, RELEASE, RELEASE, REJECT, RENEW]), min_size=12, max_size=12),
    )
    def acknowledge_own(self, outcome: str, which: int, size: int, kinds: list[int]) -> None:
        """A member acknowledges some of what it has acquired, and that is stored or not."""
        if not any(self._is_owned(entry) for entry in self.model.values()):
            self.fetch("a", size, False, 4)
        owned = [offset for offset, entry in sorted(self.model.items()) if self._is_owned(entry)]
        if not owned:
            return
        first = owned[which % len(owned)]
        member = self.model[first].member
        run = 1
        while run < size and first + run in owned and self.model[first + run].member == member:
            run += 1
        self.acknowledge(member, first - self.share.start_offset, kinds[:run], is_one=False)
        if outcome and self.writing is None and self.share.has_changed:
            self.begin_write()
            self.end_write(outcome)

    @staticmethod
    def _is_owned(entry: Entry) -> bool:
        return entry.state is ACQUIRED and entry.pending is None

    def _released(self, entry: Entry) -> RecordState:
        return ARCHIVED if entry.count >= self.limits.delivery_count_limit else AVAILABLE

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.share.release_member(member, self.limits)
        for offset, entry in self.model.items():
            if entry.state is ACQUIRED and entry.pending is None and entry.member == member:
                self.model[offset] = replace(entry, pending=(self._released(entry), entry.count))

    @rule(seconds=st.floats(0, 15))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        ended = self.share.end_locks(self.now, self.limits)
        for offset, entry in self.model.items():
            if entry.state is ACQUIRED and entry.pending is None and entry.lock_until <= self.now:
                self.model[offset] = Entry(self._released(entry), entry.count)
                ended -= 1
        assert ended == 0

    # --- Storing ---

    @precondition(lambda self: self.writing is None and self.share.has_changed)
    @rule()
    def begin_write(self) -> None:
        self.writing = self.share.begin_write()

    @precondition(lambda self: self.writing is not None)
    @rule(outcome=st.sampled_from(["stored", "stored", "lost", "stored but not known"]))
    def end_write(self, outcome: str) -> None:
        write, self.writing = self.writing, None
        assert write is not None
        if outcome != "lost":
            self.stored.write(write)
        self.share.end_write(write, is_stored=outcome == "stored")
        for first, last in write.pending:
            for each in range(first, last + 1):
                entry = self.model.get(each)
                if entry is not None and entry.pending is not None:
                    state, count = entry.pending
                    settled = Entry(state, count)
                    self.model[each] = settled if outcome == "stored" else replace(entry, pending=None)

    @precondition(lambda self: self.writing is None)
    @rule()
    def another_leader(self) -> None:
        """What was stored is what a new leader knows: everything that was acknowledged, nothing that was not."""
        while self.share.has_changed:
            self.begin_write()
            self.end_write("stored")
        other = SharePartition(self.stored.state(), self.stored.start)
        assert other.start_offset >= self.share.start_offset
        for offset in range(self.share.start_offset, self.share.end_offset):
            entry = self.model[offset]
            known = next((span for span in other.spans if span.first <= offset <= span.last), None)
            if known is None:
                assert entry.state.is_final or entry.count <= 1 or offset >= other.end_offset
                assert offset >= other.end_offset or entry.state.is_final
            elif entry.state is not ACQUIRED:
                assert (known.state, known.delivery_count) == (entry.state, entry.count)
            else:
                assert known.state is AVAILABLE
                assert known.delivery_count in (entry.count, entry.count - 1)

    # --- What must always hold ---

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "share"):
            return
        share = self.share
        expected = share.start_offset
        for span in share.spans:
            assert span.first == expected, "the spans have a gap"
            expected = span.last + 1
            for each in range(span.first, span.last + 1):
                entry = self.model[each]
                assert (span.state, span.delivery_count, span.member) == (entry.state, entry.count, entry.member), each
                assert span.pending == entry.pending
        assert expected == share.end_offset
        assert all(
            offset < share.start_offset for offset in self.model if offset not in range(share.start_offset, expected)
        )
        for offset, entry in self.model.items():
            assert offset >= share.start_offset or entry.state.is_final, "an unfinished record is before the window"
        assert share.in_flight <= max(self.limits.max_record_locks, 0) + sum(
            12 for batch in self.log if batch.is_dead
        ) + 2 * len(self.log)
        deadlines = [e.lock_until for e in self.model.values() if e.state is ACQUIRED and e.pending is None]
        assert share.next_lock_end() == min(deadlines, default=None)


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=examples(240), stateful_step_count=40, deadline=None)
