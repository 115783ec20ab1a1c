"""The groups of one partition of ``__consumer_offsets``: what its records say, and the membership beside them.

The records hold the latest generation of each group that was assigned (``Group.stored``), committed offsets, and
offsets committed in transactions that are still open. These change here alone, by replay. Membership (members, the
rebalance in progress) is not stored until the rebalance ends. ``GroupMembership`` changes it; loading restores it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Protocol

from parley.broker.coordinators.decision import ProducerIdentity, Timer
from parley.broker.coordinators.groups.group import Group, GroupState
from parley.broker.coordinators.groups.group_records import (
    GROUP_KEY_VERSION,
    OFFSET_KEY_VERSION,
    decode_generation,
    decode_group_key,
    decode_offset,
    decode_offset_key,
    restore_membership,
)
from parley.protocol.errors import ErrorCode, MalformedMessage

KNOWN_MAX: Final = 10_000
"""The most pairs of a group and a topic whose keys a shard remembers (a few MB), so as not to decode them again."""


class Members(Protocol):
    """The members of the groups, beside their records."""

    def start_sessions(self, group: Group) -> None:
        """Begin the sessions of the members of a group that was loaded."""
        ...

    def abandon(self, group: Group, code: ErrorCode) -> None:
        """Stop a group that is no longer coordinated here: its waiting requests fail with ``code``."""
        ...


class GroupShard:
    """The groups of one partition, by id."""

    def __init__(self, partition: int, members: Members) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[int, set[str]] = {}
        """The groups with offsets in a producer's open transaction, by producer id."""
        self._members = members
        self._known: dict[bytes, tuple[Group, str]] = {}  # by the key of an offset without its partition

    def find_or_create(self, group_id: str) -> Group:
        """Return a group, after creating it, without members and offsets, if it does not exist."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.partition)
        return group

    def drop_unused(self, group: Group) -> None:
        """Remove a group if it has no records and is not in use.

        Call this after any lookup that may have created a group, or arbitrary ids accumulate.
        """
        if group.is_unused and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.enter(GroupState.DEAD, group.state_since_ms)

    # --- Records ---

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record. Raises MalformedMessage, and changes nothing, if it is neither a group nor an offset."""
        known = self._known.get(key[:-4])
        if known is not None and value is not None and producer is None and known[0].state is not GroupState.DEAD:
            # Most records by far: loading applies millions of them.
            known[0].offsets[known[1], int.from_bytes(key[-4:], "big", signed=True)] = decode_offset(value, offset)
            return
        if len(key) < 2:
            raise MalformedMessage("a record of the offsets topic has no key")
        version = key[0] << 8 | key[1]
        if version <= OFFSET_KEY_VERSION:
            group_id, partition = decode_offset_key(key)
            if value is None:
                self._remove_offset(group_id, partition)
                return
            committed = decode_offset(value, offset)
            group = self.find_or_create(group_id)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key[:-4]] = group, partition[0]
            if producer is None:
                group.offsets[partition] = committed
            else:
                group.add_pending_offset(producer.producer_id, partition, committed)
                self.open_transactions.setdefault(producer.producer_id, set()).add(group_id)
        elif version == GROUP_KEY_VERSION:
            self._replay_group(decode_group_key(key), value)
        else:
            raise MalformedMessage(f"unknown key version {version}")

    def _remove_offset(self, group_id: str, partition: tuple[str, int]) -> None:
        """Remove an offset; offsets of open transactions that the log has before the tombstone are removed, too."""
        group = self.groups.get(group_id)
        if group is None:
            return
        group.offsets.pop(partition, None)
        for producer_id in list(group.pending_producers.get(partition, ())):
            group.remove_pending_offset(producer_id, partition)
            if producer_id not in group.pending_offsets:
                self._end_transaction(producer_id, group)
        self.drop_unused(group)

    def _end_transaction(self, producer_id: int, group: Group) -> None:
        groups = self.open_transactions[producer_id]
        groups.discard(group.group_id)
        if not groups:
            del self.open_transactions[producer_id]

    def _replay_group(self, group_id: str, value: bytes | None) -> None:
        if value is not None:
            stored = decode_generation(value)
            self.find_or_create(group_id).stored = stored
            return
        group = self.groups.get(group_id)
        if group is None:
            return
        group.stored = None
        if group.state is GroupState.EMPTY:
            group.generation = 0  # the group begins again if it is still in use
        self.drop_unused(group)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """End a transaction. Its offsets count if it was committed, unless the log has a later commit."""
        for group_id in list(self.open_transactions.get(producer_id, ())):
            group = self.groups[group_id]
            for partition, found in list(group.pending_offsets[producer_id].items()):
                group.remove_pending_offset(producer_id, partition)
                known = group.offsets.get(partition)
                if committed and (known is None or known.log_offset < found.log_offset):
                    group.offsets[partition] = found
            self._end_transaction(producer_id, group)
            self.drop_unused(group)

    # --- Serving ---

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        """Restore the membership of every group as it was stored, and begin the sessions of its members."""
        for group in self.groups.values():
            if group.stored is not None:
                restore_membership(group, group.stored)
                self._members.start_sessions(group)
        return {}

    def unloaded(self) -> None:
        """Fail the waiting requests of all members."""
        groups, self.groups = self.groups, {}
        for group in groups.values():
            self._members.abandon(group, ErrorCode.NOT_COORDINATOR)
