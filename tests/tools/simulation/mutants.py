"""Brokers with one planted bug each, of the kinds that lose data, which the simulation must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.api.refused_batches import Refusals
from parley.broker.controller import brokers
from parley.broker.controller.elections import leader_choice as election
from parley.broker.controller.stored_metadata import TERMS
from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups import coordinator as group_coordinator
from parley.broker.coordinators.groups import offset_decisions
from parley.broker.coordinators.groups.classic import member_decisions, rebalance
from parley.broker.coordinators.groups.classic.member_decisions import sync
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.classic.rebalance import MembershipChange
from parley.broker.coordinators.groups.classic.responses import sync_response
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.shard import Shard
from parley.broker.coordinators.transactions import coordinator as transaction_coordinator
from parley.broker.coordinators.transactions import initialization, marker_sender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.coordinators.transactions.transaction import AT_REST
from parley.broker.coordinators.waiting_replies import WaitingReplies
from parley.broker.membership.store_rollback import StoreRollback
from parley.broker.metadata.types import PartitionState
from parley.broker.replication import fetcher, follower_fetch_session, isr_decisions
from parley.broker.replication.partition import Partition
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.groups import SyncGroupRequest, SyncGroupResponse
from parley.protocol.messages.transactions import WriteTxnMarkersRequest
from parley.protocol.records.batch import assemble, build, records
from parley.protocol.records.batch_header import HEADER_SIZE, LOG_OVERHEAD, read_header
from parley.storage import checkpoints, durability, producer_snapshots, segments, trusted_segments
from parley.storage.compaction import compactor
from parley.storage.compaction._offset_map import OffsetMap, note_keys
from parley.storage.compaction.compacted_batches import Batch, with_records
from parley.storage.compaction.tombstone_checkpoint import TombstoneCheckpoint
from parley.storage.damage.log_integrity import LogIntegrity
from parley.storage.log import Log
from parley.storage.meta_properties import DirectoryIdentity
from parley.storage.recovery_scan import RecoveryScan
from parley.tools.simulation.faults import Fault, Kind
from parley.tools.simulation.scenario import TRANSFERS, Outcome, Settings, simulate
from tests.tools.simulation import consumer_group_mutants as consumer
from tests.tools.simulation import share_group_mutants as share
from tests.tools.simulation import streams_group_mutants as streams

Mutate = Callable[[pytest.MonkeyPatch], None]


def acknowledge_early(patch: pytest.MonkeyPatch) -> None:
    """A leader acknowledges acks=all as soon as it has appended the records itself."""
    patch.setattr(Partition, "append_outcome", lambda self, offset: ErrorCode.NONE if self.is_leader else None)


def skip_truncation(patch: pytest.MonkeyPatch) -> None:
    """A follower does not send the epoch of its last record, so the leader does not detect where their logs diverge."""
    position_of = follower_fetch_session.position_of
    patch.setattr(fetcher, "position_of", lambda *args: position_of(*args)._replace(last_fetched_epoch=-1))


def reuse_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new leader gets the epoch of the previous leader."""
    decide = election.next_partition_state

    def keep_epoch(known: PartitionState, *args: Any, **options: Any) -> PartitionState:
        after = decide(known, *args, **options)
        return after if after is known else replace(after, leader_epoch=known.leader_epoch)

    patch.setattr(election, "next_partition_state", keep_epoch)


def write_unguarded(patch: pytest.MonkeyPatch) -> None:
    """A controller writes to the store without checking that it is still the controller, and the last to write."""
    txn = KeyValue.txn

    async def unguarded(self: KeyValue, checks: Any, ops: Any, *, guard: Any = None) -> Any:
        return await txn(self, [check for check in checks if check.key != TERMS], ops)

    patch.setattr(KeyValue, "txn", unguarded)


def join_early(patch: pytest.MonkeyPatch) -> None:
    """A follower is proposed for the ISR before it has all committed records."""
    patch.setattr(isr_decisions, "may_join_isr", lambda view, progress, *times: True)


def forget_refusals(patch: pytest.MonkeyPatch) -> None:
    """Batches sent after a rejected batch are checked independently: librdkafka then sends records again that are
    already in the log."""
    patch.setattr(Refusals, "check", lambda *args: None)


def trust_restarted_brokers(patch: pytest.MonkeyPatch) -> None:
    """Replicas stay in the ISR and are elected even if their disk has lost data (as before KIP-966)."""
    patch.setattr(brokers, "conditions", lambda *args: None)


def serve_unverified(patch: pytest.MonkeyPatch) -> None:
    """Records read from disk are served and replicated without checking their checksums."""
    patch.setattr(LogIntegrity, "is_unverified", lambda *args: False)


def believe_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """A recovery trusts the leader epochs in a segment without a digest."""
    patch.setattr(RecoveryScan, "_are_epochs_covered", lambda self, segment: True)


def forget_epochs(patch: pytest.MonkeyPatch) -> None:
    """A log whose ``leader-epoch-checkpoint`` is lost after a clean shutdown knows no leader epochs."""
    patch.setattr(trusted_segments._Opener, "_scan_unknown_epochs", lambda self, segments: None)


def accept_any_directory(patch: pytest.MonkeyPatch) -> None:
    """A broker starts on the log directories of another broker."""
    patch.setattr(DirectoryIdentity, "require", lambda *args: None)


def supersede_themselves(patch: pytest.MonkeyPatch) -> None:
    """The cleaner's table contains the offset after the last record of a key, so that record is removed, too."""

    def note_next(records: bytes, count: int, base_offset: int, start: int, keys: OffsetMap) -> bool:
        return note_keys(records, count, base_offset + 1, start, keys)

    patch.setattr(compactor, "note_keys", note_next)


def close_gaps(patch: pytest.MonkeyPatch) -> None:
    """The cleaner renumbers the records that it keeps in a batch without gaps."""

    def renumbered(batch: Batch, payload: bytes, count: int, max_timestamp: int) -> Batch:
        kept = with_records(batch, payload, count, max_timestamp)
        first = kept.header.base_offset
        close = [record._replace(offset=first + number) for number, record in enumerate(records(kept.data))]
        body = memoryview(build(close, base_offset=first, keep_offsets=True))[HEADER_SIZE:]
        length = HEADER_SIZE - LOG_OVERHEAD + len(body)
        data = assemble(kept.header._replace(length=length, base_timestamp=close[0].timestamp), body)
        return Batch(read_header(data), data, kept.end)

    patch.setattr(compactor, "with_records", renumbered)


def forget_removed_tombstones(patch: pytest.MonkeyPatch) -> None:
    """A replica that was offline while compaction removed tombstones keeps the records that they delete,
    as in Kafka."""
    patch.setattr(TombstoneCheckpoint, "set", lambda self, offset: None)


def trust_restored_store(patch: pytest.MonkeyPatch) -> None:
    """A store that was rolled back to an older state is trusted: its ISRs and leader epochs."""

    async def trust(*args: Any) -> None:
        pass

    async def never(*args: Any) -> None:
        await asyncio.Event().wait()

    patch.setattr(StoreRollback, "check_store", trust)
    patch.setattr(StoreRollback, "until_rolled_back", never)
    patch.setattr(StoreRollback, "check_members", trust)
    patch.setattr(brokers, "distrust_outdated", lambda *args: [])


def leave_names_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A flush syncs the contents of files, but not the names of new files."""
    for module in (checkpoints, durability, producer_snapshots, segments):
        patch.setattr(module, "sync_directory", lambda path: None)


# --- Transactions ---


def tear_transactions(patch: pytest.MonkeyPatch) -> None:
    """The marker of a committed transaction aborts it in one of its partitions."""
    request_of = marker_sender._request

    def torn(parts: list[Any]) -> WriteTxnMarkersRequest:
        request = request_of(parts)
        for marker in request.markers:
            if any(topic.name == TRANSFERS and 0 in topic.partition_indexes for topic in marker.topics):
                marker.transaction_result = False
        return request

    patch.setattr(marker_sender, "_request", torn)


def reply_early(patch: pytest.MonkeyPatch) -> None:
    """A coordinator replies before the in-sync replicas have its records: a commit may be lost afterwards."""
    patch.setattr(WaitingReplies, "add", lambda self, offset, replies, effects, **_: self._complete(replies, effects))


def name_no_aborted(patch: pytest.MonkeyPatch) -> None:
    """A fetch response does not name the aborted transactions, so that consumers do not skip their records."""
    patch.setattr(Log, "aborted_transactions", lambda *args: [])


def ignore_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """A reader of committed records does not stop at the first open transaction."""
    patch.setattr(Log, "last_stable_offset", property(lambda self: self.high_watermark))


def fence_nobody(patch: pytest.MonkeyPatch) -> None:
    """A new instance of a transactional producer gets the epoch of the previous instance."""
    decide = initialization.initialize

    def keep_epoch(shard: TransactionShard, now_ms: int, *, transactional_id: str, **options: Any) -> Decision[Any]:
        known = shard.transactions.get(transactional_id)
        if known is not None and known.state in AT_REST:
            return Decision(known.identity)
        return decide(shard, now_ms, transactional_id=transactional_id, **options)

    patch.setattr(transaction_coordinator, "initialize", keep_epoch)


def forget_markers(patch: pytest.MonkeyPatch) -> None:
    """A group coordinator appends the marker of a transaction to its log, and does not apply it to its state."""
    append = Shard._append_marker

    def append_only(self: Any, *args: Any) -> None:
        state, self.state = self.state, SimpleNamespace(replay_marker=lambda *args: None)
        try:
            append(self, *args)
        finally:
            self.state = state

    patch.setattr(Shard, "_append_marker", append_only)


# --- Groups ---


def keep_generation(patch: pytest.MonkeyPatch) -> None:
    """A rebalance gives the group a new assignment without a new generation."""
    begin = MembershipChange._begin_generation

    def begin_again(self: MembershipChange) -> None:
        if self.membership.generation > 0:
            self.membership.generation -= 1
        begin(self)

    patch.setattr(MembershipChange, "_begin_generation", begin_again)


def accept_outdated_commits(patch: pytest.MonkeyPatch) -> None:
    """A commit of a former member is accepted, for example of a member that slept."""
    patch.setattr(offset_decisions, "check_may_commit", lambda group, committer: None)


def assign_too_early(patch: pytest.MonkeyPatch) -> None:
    """A member that asks for its assignment before the leader has sent it gets an empty one."""

    def sync_at_once(request: SyncGroupRequest, shard: GroupShard, now_ms: int) -> Decision[SyncGroupResponse]:
        membership = shard.membership_of(request.group_id)
        is_early = membership.state is GroupState.COMPLETING_REBALANCE and membership.leader_id != request.member_id
        decision = sync(request, shard, now_ms)
        return Decision(sync_response(membership, request.member_id)) if is_early else decision

    patch.setattr(group_coordinator, "sync", sync_at_once)


def let_members_wait(patch: pytest.MonkeyPatch) -> None:
    """The members that wait for the leader's assignments get no response when these arrive."""
    release = MembershipChange._release

    def release_others(self: MembershipChange, key: tuple[str, str, str], response: Any) -> None:
        if key[0] != "sync" or key == self._caller:
            release(self, key, response)

    patch.setattr(MembershipChange, "_release", release_others)


def keep_dead_members(patch: pytest.MonkeyPatch) -> None:
    """A member's session never expires, so that it keeps its partitions after its death."""
    patch.setattr(rebalance, "_session", lambda group_id, member_id, timeout_ms: {})


def ignore_heartbeats(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat does not begin the member's session again: a live member is removed."""
    patch.setattr(member_decisions, "session", lambda group_id, member: {})
    patch.setattr(offset_decisions, "session", lambda group_id, member: {})


def replace_unstored(patch: pytest.MonkeyPatch) -> None:
    """A restarted static member gets its place only in the coordinator's memory; the change is not stored."""
    patch.setattr(MembershipChange, "store_replacement", lambda self: None)


def late_leaders(broker: int) -> list[Fault]:
    """Brokers stop one after another, and the next leaders learn of their leadership late: clients know
    of it earlier."""
    faults = []
    for turn in range(8):
        late, first, stops = [(broker + turn + i) % 3 + 1 for i in range(3)]
        faults.append(Fault(1.0 + turn * 1.6, Kind.DEAFEN, late, first, 0.7, 0.0))
        faults.append(Fault(1.05 + turn * 1.6, Kind.SHUT_DOWN, stops, late, 0.5, 0.0))
    return faults


def late_writes(broker: int) -> list[Fault]:
    """A broker cannot reach the store for longer than its session timeout, while another broker dies."""
    other = broker % 3 + 1
    return [Fault(2.0, Kind.LOSE_STORE, broker, other, 11.0, 1.0), Fault(3.0, Kind.KILL, other, broker, 4.0, 0.0)]


def restored_store(broker: int) -> list[Fault]:
    """All brokers stop cleanly, so only the store shows which of them lacks records. Then the store is restored to an
    older state."""
    others = [each for each in (1, 2, 3) if each != broker]
    return [
        Fault(3.0, Kind.SHUT_DOWN, broker, broker, 9.0, 0.0),
        *(Fault(6.5, Kind.SHUT_DOWN, other, other, 5.5, 0.0) for other in others),
        Fault(8.0, Kind.RESTORE_STORE, broker, broker, 3.0, 60.0),
    ]


def power_cuts(broker: int) -> list[Fault]:
    """All machines lose power soon after the start. Then two at a time do, while the third is down."""
    others = [each for each in (1, 2, 3) if each != broker]
    cuts = [(0.4, 1), (0.4, 2), (0.4, 3), *((0.4 + turn * 3.5, other) for turn in range(1, 5) for other in others)]
    faults = [Fault(at, Kind.CRASH, each, each, 1.0, 0.0) for at, each in cuts]
    return sorted([*faults, Fault(2.4, Kind.KILL, broker, broker, 15.0, 0.0)], key=lambda fault: fault.at)


def long_absence(broker: int) -> list[Fault]:
    """A broker is offline until the end, for longer than ``delete.retention.ms``."""
    return [Fault(3.0, Kind.SHUT_DOWN, broker, broker, 17.0, 0.0)]


def altered_after_a_clean_stop(broker: int) -> list[Fault]:
    """Bytes change that a recovery does not read again, because the broker stopped cleanly after writing them."""
    flips = [Fault(at, Kind.FLIP, broker, broker, 1.0, 0.0) for at in (10.0, 12.0, 14.0)]
    return [Fault(8.0, Kind.SHUT_DOWN, broker, broker, 1.0, 0.0), *flips]


def altered_after_kills(broker: int) -> list[Fault]:
    """Bytes of a broker's segments change while it is killed, alone and with all others in turn."""
    scopes = (-200.0, 200.0, -200.0, 200.0, -200.0)
    return [Fault(3.0 + 3.0 * turn, Kind.FLIP, broker, broker, 1.0, scope) for turn, scope in enumerate(scopes)]


def without_followers(broker: int) -> list[Fault]:
    """A broker cannot reach the two others, but clients can reach it. It is replaced after a while."""
    others = [broker % 3 + 1, (broker + 1) % 3 + 1]
    return [Fault(at, Kind.PART, broker, other, 8.0, 0.0) for at in (2.0, 12.0) for other in others]


def lost_checkpoints(broker: int) -> list[Fault]:
    """Five times, a broker with records that no follower has shuts down, loses its checkpoints, and restarts."""
    others = [broker % 3 + 1, (broker + 1) % 3 + 1]
    return [
        fault
        for begin in (2.0, 6.0, 10.0, 14.0, 18.0)
        for fault in (
            *(Fault(begin, Kind.PART, broker, other, 1.0, 0.0) for other in others),
            Fault(begin + 0.5, Kind.LOSE_CHECKPOINTS, broker, broker, 1.5, -200.0),
        )
    ]


def kills(broker: int) -> list[Fault]:
    """Each broker in turn is killed and starts again: leaders and coordinators move."""
    return [Fault(1.5 + 2.0 * turn, Kind.KILL, each, each, 1.0, 0.0) for turn, each in enumerate((1, 2, 3, 1, 2, 3))]


@dataclass(frozen=True)
class Mutant:
    """A bug, and how to find it: with the faults of these seeds in turn, or with the given faults.

    The first seed is one that finds the bug soon. There are many seeds, because each change of a broker changes the
    effect of a seed.
    """

    mutate: Mutate
    seeds: range
    faults: Callable[[int], list[Fault]] | None = None
    """The faults, injected for each broker in turn."""
    kinds: tuple[Kind, ...] = ()
    """The kinds of faults; empty: the seed chooses them."""
    compacts: bool = False
    """True if there is also a compacted topic."""
    transactions: bool = False
    """True if there are also transactional producers."""
    groups: bool = False
    """True if there is also a group of the classic protocol."""
    consumer_groups: bool = False
    """True if there is also a group of the consumer protocol."""
    share_groups: bool = False
    """True if there is also a share group."""
    streams_groups: bool = False
    """True if there is also a streams group."""
    invariant: str = ""
    """The invariant that must be violated; empty: any."""

    @property
    def clients(self) -> tuple[bool, ...]:
        """The kinds of clients that reveal the bug, in addition to producers and readers."""
        groups = (self.groups, self.consumer_groups, self.share_groups, self.streams_groups)
        return self.compacts, self.transactions, *groups


def no_faults(broker: int) -> list[Fault]:
    """The bug shows without any fault."""
    return []


MUTANTS = (
    Mutant(acknowledge_early, range(1, 40)),
    Mutant(skip_truncation, range(17, 57)),
    Mutant(reuse_epoch, range(1, 40)),
    Mutant(write_unguarded, range(1, 20), late_writes),
    Mutant(join_early, range(7, 50)),
    Mutant(forget_refusals, range(66, 118), late_leaders),
    Mutant(trust_restarted_brokers, range(1, 40), kinds=(Kind.LOSE_DISK,)),
    Mutant(trust_restarted_brokers, range(1, 40), kinds=(Kind.EXCHANGE_DISKS,)),
    Mutant(accept_any_directory, range(1, 10), kinds=(Kind.MISPLACE_DISKS,), invariant="OwnDisk"),
    Mutant(serve_unverified, range(16, 46), altered_after_a_clean_stop),
    Mutant(believe_any_epoch, range(2, 30), altered_after_kills, invariant="ReplicasAgree"),
    Mutant(forget_epochs, range(1, 30), lost_checkpoints),
    Mutant(trust_restored_store, range(1, 10), restored_store),
    Mutant(leave_names_unsynced, range(1, 60), power_cuts),
    Mutant(close_gaps, range(1, 20), compacts=True, invariant="OffsetsNeverChange"),
    Mutant(supersede_themselves, range(1, 20), compacts=True, invariant="LastValuePerKey"),
    Mutant(forget_removed_tombstones, range(7, 40), long_absence, compacts=True, invariant="LastValuePerKey"),
    Mutant(name_no_aborted, range(1, 10), no_faults, transactions=True, invariant="NoAbortedRead"),
    Mutant(tear_transactions, range(1, 10), no_faults, transactions=True, invariant="AtomicVisibility"),
    Mutant(reply_early, range(2, 40), without_followers, transactions=True),
    Mutant(ignore_open_transactions, range(1, 10), no_faults, transactions=True, invariant="NoAbortedRead"),
    Mutant(fence_nobody, range(1, 10), no_faults, transactions=True, invariant="FencedZombie"),
    Mutant(forget_markers, range(1, 10), no_faults, transactions=True, invariant="ReplayEqualsLive"),
    Mutant(keep_generation, range(1, 20), no_faults, groups=True, invariant="OneOwner"),
    Mutant(accept_outdated_commits, range(7, 46), no_faults, groups=True, invariant="OneOwner"),
    Mutant(assign_too_early, range(2, 22), no_faults, groups=True, invariant="AssignmentOfLeader"),
    Mutant(let_members_wait, range(1, 20), no_faults, groups=True, invariant="GroupProgress"),
    Mutant(keep_dead_members, range(11, 51), no_faults, groups=True, invariant="GroupProgress"),
    Mutant(ignore_heartbeats, range(1, 20), no_faults, groups=True, invariant="GroupProgress"),
    Mutant(reply_early, range(2, 40), without_followers, groups=True, invariant="OneOwner"),
    Mutant(replace_unstored, range(1, 20), no_faults, groups=True, invariant="ReplayEqualsLive"),
    *(
        Mutant(
            mutate,
            range(first, first + 40),
            no_faults,
            consumer_groups=True,
            invariant=invariant,
        )
        for mutate, first, invariant in (
            (consumer.assign_what_others_have, 1, "OneOwner"),
            (consumer.revoke_at_once, 1, "OneOwner"),
            (consumer.accept_commits_of_removed_members, 117, "OneOwner"),
            (consumer.join_in_the_first_epoch, 1, "GroupEpochsRise"),
            (consumer.go_back_an_epoch, 1, "GroupEpochsRise"),
            (consumer.keep_dead_consumers, 1, "GroupProgress"),
            (consumer.never_hand_over, 3, "GroupProgress"),
        )
    ),
    *(
        Mutant(
            mutate,
            range(first, first + 40),
            faults,
            share_groups=True,
            invariant=invariant,
        )
        for mutate, faults, first, invariant in (
            (share.end_locks_early, no_faults, 2, "AcquiredByOne"),
            (share.deliver_without_limit, no_faults, 2, "DeliveredWithinCount"),
            (share.forget_deliveries, kills, 2, "DeliveredWithinCount"),
            (share.store_no_outcome, kills, 2, "AcknowledgedOnce"),
            (share.confirm_unstored, kills, 42, "AcknowledgedOnce"),
            (share.archive_released, no_faults, 2, "NoRecordSkipped"),
            (share.send_other_records, no_faults, 2, "NoRecordSkipped"),
            (share.keep_locks, no_faults, 4, "ShareProgress"),
        )
    ),
    *(
        Mutant(mutate, range(1, 41), faults, streams_groups=True, invariant=invariant)
        for mutate, faults, invariant in (
            (streams.ignore_owners, no_faults, "OneOwner"),
            (streams.revoke_at_once, no_faults, "OneOwner"),
            (streams.join_in_the_first_epoch, no_faults, "GroupEpochsRise"),
            (streams.go_back_an_epoch, no_faults, "GroupEpochsRise"),
            (reply_early, without_followers, "GroupEpochsRise"),
            (streams.keep_dead_programs, no_faults, "GroupProgress"),
            (streams.never_hand_over, no_faults, "GroupProgress"),
            (streams.assign_no_copies, no_faults, "GroupProgress"),
            (streams.remove_unstored, no_faults, "ReplayEqualsLive"),
        )
    ),
)


def hunt(mutant: Mutant) -> Outcome | None:
    """Run seeds until one violates the invariant. Returns None if none does."""
    schedules: list[list[Fault] | None] = [None]
    if mutant.faults is not None:
        made = [mutant.faults(broker) for broker in (1, 2, 3)]
        schedules = [*made[:1], *(each for each in made[1:] if each != made[0])]
    for seed in mutant.seeds:
        for faults in schedules:
            settings = Settings(
                seconds=20.0,
                compacts=mutant.compacts,
                faults=faults,
                kinds=mutant.kinds,
                transactions=mutant.transactions,
                groups=mutant.groups,
                consumer_groups=mutant.consumer_groups,
                share_groups=mutant.share_groups,
                streams_groups=mutant.streams_groups,
            )
            outcome = simulate(seed, settings)
            if any(each.invariant == (mutant.invariant or each.invariant) for each in outcome.violations):
                return outcome
    return None


def runs_in_soak(mutant: Mutant) -> bool:
    """Return True if only ``make soak`` searches for it. ``make test`` searches for the first quickly found bug of each
    kind of client."""
    return mutant is not next(each for each in MUTANTS if each.clients == mutant.clients)
