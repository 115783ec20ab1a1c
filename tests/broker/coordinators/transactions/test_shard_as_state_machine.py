"""Any order of events: the state equals the replayed log, ids are allocated once, and a stored outcome is final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.broker.coordinators.decision import Decision, ProducerIdentity
from parley.broker.coordinators.transactions.transaction import EPOCH_MAX, Transaction, TransactionState
from parley.broker.coordinators.transactions.transaction_records import transaction_record
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.transactions.driven_shard import ID, DrivenShard, refusal
from tests.support.proportion import examples

PARTITION = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2))
EXPECTED = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
OUTCOME = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


def attempt(call: Callable[[], ProducerIdentity]) -> ProducerIdentity | ErrorCode:
    try:
        return call()
    except KafkaError as error:
        return error.code


class TransactionalId(RuleBasedStateMachine):
    """One transactional id with a current producer, those that it replaced, and a coordinator that dies."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = DrivenShard()
        self.producer: ProducerIdentity | None = None
        self.replaced: list[ProducerIdentity] = []
        self.given: set[ProducerIdentity] = set()
        self.prepared: Transaction | None = None

    @initialize(near_the_end=st.booleans())
    def begin(self, near_the_end: bool) -> None:
        self.new_producer()
        if near_the_end:
            worn = self.shard.transaction._replace(producer_epoch=EPOCH_MAX - 3)
            self.shard.submit(lambda state, now_ms: Decision(None, [transaction_record(ID, worn)]))
            self.new_producer()

    def given_out(self, identity: ProducerIdentity) -> None:
        assert identity not in self.given, "no two producers have the same identity"
        assert identity.producer_epoch < EPOCH_MAX, "the last epoch is for markers"
        self.given.add(identity)
        if self.producer is not None:
            self.replaced.append(self.producer)
        self.producer = identity

    @rule()
    def new_producer(self) -> None:
        outcome = attempt(self.shard.initialize)
        if isinstance(outcome, ProducerIdentity):
            self.given_out(outcome)
        else:
            assert outcome is ErrorCode.CONCURRENT_TRANSACTIONS

    @rule(loses_response=st.booleans())
    def continue_after_an_error(self, loses_response: bool) -> None:
        before = self.producer
        assert before is not None
        is_repeated = before.producer_id != self.shard.transaction.producer_id  # the coordinator has chosen a new id
        outcome = attempt(lambda: self.shard.initialize(before))
        if not isinstance(outcome, ProducerIdentity):
            assert outcome in EXPECTED
            return
        if loses_response:  # a request that names the previous id counts as repeated already, as in Kafka
            again = attempt(lambda: self.shard.initialize(before))
            assert again == (ErrorCode.PRODUCER_FENCED if is_repeated else outcome)
        self.given_out(outcome)

    @rule(partitions=st.lists(PARTITION, min_size=1, max_size=3), version=st.sampled_from([0, 2]))
    def add(self, partitions: list[tuple[str, int]], version: int) -> None:
        assert self.producer is not None
        code = refusal(lambda: self.shard.add(self.producer, *partitions, version=version))  # type: ignore[arg-type]
        if code is ErrorCode.NONE:
            assert self.shard.transaction.partitions >= set(partitions)
        else:
            assert code in EXPECTED

    @rule(committed=st.booleans(), version=st.sampled_from([0, 2]), loses_response=st.booleans())
    def end(self, committed: bool, version: int, loses_response: bool) -> None:
        before = self.producer
        assert before is not None
        was_open = self.shard.transaction.state is TransactionState.ONGOING
        is_current = before == self.shard.transaction.identity
        following = attempt(lambda: self.shard.end(before, committed=committed, version=version))
        if not isinstance(following, ProducerIdentity):
            assert following in EXPECTED
            assert not (was_open and is_current), "the current producer can always end its transaction"
            return
        if loses_response and self.shard.transaction.state not in OUTCOME:
            again = refusal(lambda: self.shard.end(before, committed=committed, version=version))
            assert again is ErrorCode.NONE
        if following != before and following not in self.given:
            self.given_out(following)

    @precondition(lambda self: self.replaced)
    @rule(data=st.data(), partition=PARTITION)
    def a_zombie_is_fenced(self, data: st.DataObject, partition: tuple[str, int]) -> None:
        zombie = data.draw(st.sampled_from(self.replaced))
        before = self.shard.transaction
        assert refusal(lambda: self.shard.add(zombie, partition)) is not ErrorCode.NONE
        for version in (0, 2):
            for committed in (True, False):
                refusal(lambda v=version, c=committed: self.shard.end(zombie, committed=c, version=v))  # type: ignore[misc]
        assert self.shard.transaction == before, "a zombie changes nothing"

    @rule()
    def markers_are_written(self) -> None:
        before = self.shard.transaction
        self.shard.complete()
        if before.state in OUTCOME:
            assert self.shard.transaction.state is OUTCOME[before.state]

    @rule(ms=st.integers(1, 100_000))
    def time_passes(self, ms: int) -> None:
        self.shard.now_ms += ms
        self.shard.run_timers()

    @rule()
    def the_coordinator_dies(self) -> None:
        self.shard.markers.sent.clear()
        self.shard.state = self.shard.read_back()
        self.shard.run_timers()

    @invariant()
    def the_state_equals_its_log(self) -> None:
        read_back = self.shard.read_back()
        assert read_back.transactions == self.shard.state.transactions
        assert set(read_back.ongoing) == set(self.shard.state.ongoing)
        assert set(read_back.prepared) == set(self.shard.state.prepared)
        counts = Counter(each.state for each in read_back.transactions.values())
        assert {state: count for state, count in read_back.counts.items() if count} == counts

    @invariant()
    def a_prepared_transaction_has_its_markers_sent_and_keeps_its_outcome(self) -> None:
        if ID not in self.shard.state.transactions:
            return
        now = self.shard.transaction
        if self.prepared is not None and now != self.prepared:
            assert now.state is OUTCOME[self.prepared.state]
        self.prepared = now if now.state in OUTCOME else None
        if self.prepared is not None:
            assert (ID, self.prepared) in self.shard.markers.sent


TestTransactionalId = TransactionalId.TestCase
TestTransactionalId.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
