"""Any order of events: a shard of share partitions agrees with a simple model, and so does its log, pruned or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, Held, KeyValue
from parley.broker.coordinators.share_state import decisions
from parley.broker.coordinators.share_state.batches import combined
from parley.broker.coordinators.share_state.persister import NO_CHECK, ShareState, StateBatch
from parley.broker.coordinators.share_state.pruning import forget_deleted, prune, store_cold
from parley.broker.coordinators.share_state.records import snapshot_record, update_record
from parley.broker.coordinators.share_state.shard import ShareStateShard, Surroundings
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.support.proportion import examples

T = TypeVar("T")

OFFSETS_MAX = 30
KEYS = [
    SharePartitionKey("g", UUID(int=1), 0),
    SharePartitionKey("g", UUID(int=1), 1),
    SharePartitionKey("h", UUID(int=2), 0),
]
CONFIG = BrokerConfig.from_properties({"share.coordinator.snapshot.update.records.per.snapshot": "3"})
COLD_MS = CONFIG.share_coordinator_cold_partition_snapshot_interval_ms

Offsets = dict[int, tuple[int, int]]
"""The delivery count and the delivery state of each offset."""


@st.composite
def batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, OFFSETS_MAX))
    last = draw(st.integers(first, OFFSETS_MAX))
    return StateBatch(first, last, draw(st.sampled_from([0, 2, 4])), draw(st.integers(0, 3)))


BATCHES = st.lists(batch(), max_size=4)


def offsets_of(batches: list[StateBatch] | tuple[StateBatch, ...], start_offset: int, known: Offsets) -> Offsets:
    """What the rule says, offset by offset: the higher delivery count counts, then the higher state."""
    merged = dict(known)
    for each in batches:
        for offset in range(each.first_offset, each.last_offset + 1):
            now = (each.delivery_count, each.delivery_state)
            merged[offset] = max(now, merged.get(offset, now))
    return {offset: state for offset, state in merged.items() if offset >= start_offset}


def check_form(batches: tuple[StateBatch, ...]) -> None:
    for before, after in pairwise(batches):
        assert before.last_offset < after.first_offset, "in order, without overlaps"
        touches = before.last_offset + 1 == after.first_offset
        assert not (touches and before[2:] == after[2:]), "neighbors with the same state are one batch"


@given(BATCHES, BATCHES, st.integers(-1, OFFSETS_MAX))
@settings(max_examples=examples(400), deadline=None)
def test_batches_are_merged_offset_by_offset(known: list[StateBatch], added: list[StateBatch], start: int) -> None:
    merged = combined(known, added, start)
    check_form(merged)
    assert offsets_of(merged, -1, {}) == offsets_of(added, start, offsets_of(known, start, {}))


def test_batches_that_no_leader_writes_are_passed_over() -> None:
    """A record on the disk may have any. A leader could not load the share partition."""
    shard = ShareStateShard(
        0, Surroundings(lambda: CONFIG, lambda: MetadataImage("c"), lambda _: 1 << 20, lambda *_: None, {})
    )
    batches = (StateBatch(7, 3, 0, 1), StateBatch(-5, 3, 2, 1), StateBatch(4, 5, 1, 1), StateBatch(6, 6, 2, -1))
    sound = StateBatch(8, 9, 2, 1)
    state = StoredState(0, 0, 0, 0, 0, 0, 0, batches=(*batches, sound))
    for record in (snapshot_record(KEYS[0], state), update_record(KEYS[0], 0, 0, 0, 0, batches)):
        shard.replay(*record, None, 0)
        assert shard.states[KEYS[0]].batches == (sound,)


def test_a_leader_is_stored_by_its_first_read_only() -> None:
    """The record fences earlier leaders. To read again, or without an epoch, costs no record."""
    machine = SharePartitions()
    machine.submit(partial(decisions.initialize, KEYS[0], 0, 0, NO_CHECK))
    for leader_epoch, records in ((3, 1), (3, 0), (-1, 0), (4, 1)):
        before = machine.end
        machine.submit(partial(decisions.read, KEYS[0], leader_epoch))
        assert machine.end == before + records


@dataclass
class Known:
    """What the model knows of a share partition."""

    state_epoch: int
    start_offset: int
    count: int
    fence: int
    leader: int = -1
    """The epoch of the leader that has read the state; -1 if none has."""
    offsets: Offsets = field(default_factory=dict)


class SharePartitions(RuleBasedStateMachine):
    """Three share partitions, a clock, and a log that is pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.log: dict[int, KeyValue] = {}
        self.end = 0
        self.now_ms = 1_000_000
        self.image = MetadataImage("c", topic_names={UUID(int=1): "a", UUID(int=2): "b"})
        self.surroundings = Surroundings(lambda: CONFIG, lambda: self.image, lambda _: 1 << 20, self.delete_before, {})
        self.shard = ShareStateShard(0, self.surroundings)
        self.model: dict[SharePartitionKey, Known] = {}

    def delete_before(self, partition: int, offset: int) -> None:
        self.log = {at: record for at, record in self.log.items() if at >= offset}

    def submit(self, decide: Callable[[ShareStateShard, int], Decision[T]]) -> T:
        decision = decide(self.shard, self.now_ms)
        for key, value in decision.records:
            self.shard.replay(key, value, None, self.end)
            self.log[self.end] = (key, value)
            self.end += 1
        if decision.then is not None:
            decision.then()
        assert not isinstance(decision.reply, Held)
        return decision.reply

    def refused(self, decide: Callable[[ShareStateShard, int], Decision[T]]) -> ErrorCode:
        try:
            self.submit(decide)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    @rule(key=st.sampled_from(KEYS), epoch=st.integers(0, 4), start=st.integers(-1, 20))
    def initialize(self, key: SharePartitionKey, epoch: int, start: int) -> None:
        known = self.model.get(key)
        code = self.refused(partial(decisions.initialize, key, epoch, start, NO_CHECK))
        if known is not None and known.state_epoch > epoch:
            assert code is ErrorCode.FENCED_STATE_EPOCH
            return
        assert code is ErrorCode.NONE
        if known is not None and (known.state_epoch, -1) == (epoch, start):
            return  # done before
        self._begin(key, epoch, start)

    def _begin(self, key: SharePartitionKey, epoch: int, start: int) -> None:
        known = self.model.get(key)
        fence = -1 if known is None else known.fence
        leader = known.leader if known is not None and known.state_epoch == epoch else -1
        self.model[key] = Known(epoch, start, -1 if start == -1 else 0, fence, leader)

    def _refusal(self, key: SharePartitionKey, leader: int, epoch: int) -> ErrorCode:
        """Return the error of a leader that changes what it has read."""
        known = self.model.get(key)
        if known is None:
            return ErrorCode.INVALID_REQUEST
        if leader != -1 and leader < known.fence:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch not in (-1, known.state_epoch) or leader > known.leader:
            return ErrorCode.FENCED_STATE_EPOCH
        return ErrorCode.NONE

    @rule(key=st.sampled_from(KEYS), leader=st.integers(0, 4), epoch=st.integers(0, 4), start=st.integers(0, 20))
    def a_leader_begins_again(self, key: SharePartitionKey, leader: int, epoch: int, start: int) -> None:
        expected = self._refusal(key, leader, epoch)
        assert self.refused(partial(decisions.initialize, key, epoch, start, leader)) is expected
        if expected is ErrorCode.NONE:
            self._begin(key, epoch, start)

    @rule(
        key=st.sampled_from(KEYS),
        leader=st.integers(-1, 4),
        epoch=st.integers(-1, 4),
        start=st.integers(-1, 20),
        count=st.integers(0, 9),
        batches=BATCHES,
    )
    def write(
        self, key: SharePartitionKey, leader: int, epoch: int, start: int, count: int, batches: list[StateBatch]
    ) -> None:
        expected = self._refusal(key, leader, epoch)
        assert self.refused(partial(decisions.write, key, leader, epoch, start, count, batches)) is expected
        if expected is ErrorCode.NONE:
            known = self.model[key]
            known.start_offset = known.start_offset if start == -1 else start
            known.count = count
            known.offsets = offsets_of(batches, known.start_offset, known.offsets)

    @rule(key=st.sampled_from(KEYS), leader=st.integers(-1, 4))
    def read(self, key: SharePartitionKey, leader: int) -> None:
        known = self.model.get(key)
        decide = partial(decisions.read, key, leader)
        if known is None or -1 < leader < known.fence:
            code = self.refused(decide)
            assert code is (ErrorCode.INVALID_REQUEST if known is None else ErrorCode.FENCED_LEADER_EPOCH)
            return
        state: ShareState = self.submit(decide)
        known.fence = max(known.fence, leader)
        known.leader = known.leader if leader == -1 else leader
        assert (state.state_epoch, state.start_offset) == (known.state_epoch, known.start_offset)
        assert offsets_of(state.batches, -1, {}) == known.offsets

    @rule(key=st.sampled_from(KEYS), batches=st.lists(st.builds(StateBatch, *[st.integers(-9, 9)] * 4), min_size=1))
    def write_malformed(self, key: SharePartitionKey, batches: list[StateBatch]) -> None:
        is_sound = all(
            0 <= each.first_offset <= each.last_offset and each.delivery_state in (0, 2, 4) and each.delivery_count >= 0
            for each in batches
        )
        if not is_sound:
            before = self.end
            code = self.refused(partial(decisions.write, key, -1, -1, -1, 0, batches))
            assert code is ErrorCode.INVALID_REQUEST
            assert self.end == before

    @rule(key=st.sampled_from(KEYS), epoch=st.integers(-1, 4))
    def delete(self, key: SharePartitionKey, epoch: int) -> None:
        known = self.model.get(key)
        code = self.refused(partial(decisions.delete, key, epoch))
        if known is not None and epoch != NO_CHECK and known.state_epoch > epoch:
            assert code is ErrorCode.FENCED_STATE_EPOCH
            return
        assert code is ErrorCode.NONE
        self.model.pop(key, None)

    @rule(topics=st.sets(st.sampled_from([1, 2])))
    def topics_are_deleted(self, topics: set[int]) -> None:
        left = {UUID(int=each): str(each) for each in (1, 2) if each not in topics}
        self.image = MetadataImage("c", topic_names=left)
        self.submit(forget_deleted)
        self.model = {key: known for key, known in self.model.items() if key.topic_id in left}

    @rule(ms=st.integers(1, COLD_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.submit(store_cold)
        self.submit(prune)

    @rule()
    def the_coordinator_dies(self) -> None:
        self.shard = self.read_back()
        for key, known in self.model.items():
            # A leader epoch from before the last initialization is forgotten if its record was pruned.
            known.fence = self.shard.states[key].fenced_below

    def read_back(self) -> ShareStateShard:
        shard = ShareStateShard(0, self.surroundings)
        for offset, (key, value) in self.log.items():
            shard.replay(key, value, None, offset)
        return shard

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        assert self.shard.states.keys() == self.model.keys()
        for key, known in self.model.items():
            state = self.shard.states[key]
            check_form(state.batches)
            assert (state.state_epoch, state.start_offset) == (known.state_epoch, known.start_offset)
            assert state.delivery_complete_count == known.count
            assert offsets_of(state.batches, -1, {}) == known.offsets
            assert state.updates <= 3

    @invariant()
    def the_log_says_so(self) -> None:
        read_back = self.read_back()
        assert read_back.states.keys() == self.shard.states.keys()
        for key, state in self.shard.states.items():
            same = read_back.states[key]
            # A leader epoch of a snapshot that was pruned since is forgotten: the leader reads again anyway.
            assert (same.batches, same.start_offset, same.state_epoch) == (
                state.batches,
                state.start_offset,
                state.state_epoch,
            )
            assert same.fenced_below <= state.fenced_below
            assert same.leader_epoch == state.leader_epoch
        assert read_back.superseded_before == self.shard.superseded_before or not self.log

    @invariant()
    def the_log_stays_short(self) -> None:
        assert all(offset >= 0 for offset in self.log)
        oldest = min(self.shard.snapshots.values(), default=self.end)
        assert list(self.shard.snapshots.values()) == sorted(self.shard.snapshots.values())
        assert self.shard.superseded_before <= oldest


TestSharePartitions = SharePartitions.TestCase
TestSharePartitions.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
