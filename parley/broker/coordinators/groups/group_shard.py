"""The groups in one partition of ``__consumer_offsets``: their stored state, and the memberships of classic groups.

Records contain the latest generation of each classic group (``Group.stored``), all other groups, committed offsets, and
offsets committed in open transactions. This state changes only in ``replay`` and ``replay_marker``.

The membership of a classic group is not stored during a rebalance. Decisions change it (``classic/``). When they make
it STABLE or EMPTY they also store it, so it then equals ``stored``. A shard that is read back starts with that
membership and with new sessions. A rebalance that was in progress is lost: waiting requests fail with NOT_COORDINATOR,
and the members rejoin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import KeyValue, ProducerIdentity, Timer
from parley.broker.coordinators.groups.classic.membership import GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import is_plain
from parley.broker.coordinators.groups.consumer.assignors.assignor import PartitionAssignor
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.consumer_records import decode_change, is_of_consumer_group
from parley.broker.coordinators.groups.consumer.settings import GroupSettings
from parley.broker.coordinators.groups.group import NO_MEMBERS, REMOVED, Group
from parley.broker.coordinators.groups.group_records import (
    GROUP_KEY_VERSION,
    OFFSET_KEY_VERSION,
    decode_generation,
    decode_group_key,
    decode_offset,
    decode_offset_key,
    restored,
)
from parley.broker.coordinators.groups.share import share_records
from parley.broker.coordinators.groups.share.settings import MembersSettings
from parley.broker.coordinators.groups.share.share_group import ShareGroup, TopicPartitions
from parley.broker.coordinators.groups.streams import streams_records
from parley.broker.coordinators.groups.streams.settings import StreamsSettings
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup
from parley.broker.coordinators.shard import size_in_batch
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.request_context import RequestContext
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.records.batch_header import HEADER_SIZE
from parley.protocol.uuids import UUID

TypedGroup = TypeVar("TypedGroup", ConsumerGroup, ShareGroup, StreamsGroup)

_log = logging.getLogger(__name__)

KNOWN_MAX: Final = 10_000
"""The number of (group, topic) pairs whose keys a shard caches (a few MB), to avoid decoding them again."""


Note = tuple[str, Mapping[str, object]]
"""A line for the broker's log: a message and its facts."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside a shard that its decisions depend on, and the actions that they start outside it."""

    config: Callable[[], BrokerConfig]
    image: Callable[[], MetadataImage]
    """The cluster's metadata."""
    topics_version: Callable[[], int]
    """Returns the version of the metadata in which topics were last created or deleted."""
    settings: Callable[[str], GroupSettings]
    """Returns the settings of a consumer group."""
    assignors: Mapping[str, PartitionAssignor]
    """The assignors of consumer groups, the default one first."""
    begin_sessions: Callable[[GroupShard, Group], Mapping[Hashable, Timer]]
    """Returns the timers of the members of a loaded group."""
    on_rebalanced: Callable[[], None]
    """Called when a rebalance of a classic group has ended with an assignment."""
    on_epoch_begun: Callable[[], None]
    """Called when a consumer group has started another epoch."""
    assign_in_thread: Callable[[GroupShard, str], None]
    """Starts computing the target assignment of a large consumer group or streams group."""
    match_in_thread: Callable[[GroupShard, str, RequestContext], None]
    """Starts matching the regular expressions of a consumer group against the topics that a client may describe."""
    share_settings: Callable[[str], MembersSettings]
    """Returns the settings of a share group."""
    initialize_share_partitions: Callable[[GroupShard, str, int, Mapping[UUID, TopicPartitions]], None]
    """Starts initializing share partitions of a group at the share coordinator. Called with the shard, the group id,
    the state epoch and the partitions."""
    streams_settings: Callable[[str], StreamsSettings]
    """Returns the settings of a streams group."""
    on_streams_epoch_begun: Callable[[], None]
    """Called when a streams group has started another epoch."""
    batch_bytes_max: Callable[[int], int]
    """Returns the size of the largest batch that a partition accepts. Raises KafkaError if it has no log on this
    broker."""


class GroupShard:
    """The groups in one partition, by id."""

    def __init__(self, partition: int, surroundings: Surroundings) -> None:
        self.partition = partition
        self.config = surroundings.config
        self.image = surroundings.image
        self.topics_version = surroundings.topics_version
        self.settings = surroundings.settings
        self.share_settings = surroundings.share_settings
        self.streams_settings = surroundings.streams_settings
        self.assignors = surroundings.assignors
        self.on_rebalanced = surroundings.on_rebalanced
        self.on_epoch_begun = surroundings.on_epoch_begun
        self.on_streams_epoch_begun = surroundings.on_streams_epoch_begun
        self._surroundings = surroundings
        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[int, set[str]] = {}
        """The groups with offsets in a producer's open transaction, by producer id."""
        self._known: dict[bytes, tuple[Group, str]] = {}  # by the key of an offset's record without the partition

    def find_or_create(self, group_id: str) -> Group:
        """Return a group. Creates it, without members and offsets, if it does not exist."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.partition)
        return group

    def drop_unused(self, group: Group) -> None:
        """Remove a group if it has no records and is not in use.

        Call this after any lookup that may have created the group. Otherwise, groups with arbitrary ids accumulate.
        """
        if group.is_unused and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.membership = REMOVED

    def assign_in_thread(self, group_id: str) -> None:
        """Start computing a group's target assignment in a thread, as ``BackgroundWork.assign`` describes."""
        self._surroundings.assign_in_thread(self, group_id)

    # --- Consumer groups ---

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a consumer group, or None if there is no such group."""
        group = self.groups.get(group_id)
        return None if group is None else group.consumer

    def match_in_thread(self, group_id: str, context: RequestContext) -> None:
        """Start matching the regular expressions of a group in a thread, as ``BackgroundWork.match`` describes."""
        self._surroundings.match_in_thread(self, group_id, context)

    # --- Share groups ---

    def share_group(self, group_id: str) -> ShareGroup | None:
        """Return a share group, or None if there is no such group."""
        group = self.groups.get(group_id)
        return None if group is None else group.share

    def initialize_share_partitions(
        self, group_id: str, state_epoch: int, topics: Mapping[UUID, TopicPartitions]
    ) -> None:
        """Start initializing share partitions of a group at the share coordinator, in the state epoch
        ``state_epoch``."""
        self._surroundings.initialize_share_partitions(self, group_id, state_epoch, topics)

    # --- Streams groups ---

    def streams_group(self, group_id: str) -> StreamsGroup | None:
        """Return a streams group, or None if there is no such group."""
        group = self.groups.get(group_id)
        return None if group is None else group.streams

    def require_group(
        self,
        group_id: str,
        of_type: Callable[[Group], TypedGroup | None],
        type_name: str,
        absent: str = "Group {} not found.",
    ) -> TypedGroup:
        """Return the state of the group with this id for one type of groups. ``of_type`` returns a group's state for
        that type, or None if the group is of another type.

        Raises GROUP_ID_NOT_FOUND if no group has this id, with the message ``absent`` and the id in place of ``{}``.
        Raises GROUP_ID_NOT_FOUND, too, if the group is of another type; the message then contains ``type_name``.
        """
        known = self.groups.get(group_id)
        if known is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, absent.format(group_id))
        found = of_type(known)
        if found is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a {type_name} group.")
        return found

    # --- Size ---

    def accepts(self, record: KeyValue) -> bool:
        """Return True if a batch with this record alone is not too large for the topic. Raises KafkaError if the
        partition has no log on this broker."""
        return HEADER_SIZE + size_in_batch([record]) <= self._surroundings.batch_bytes_max(self.partition)

    # --- Membership ---

    def membership_of(self, group_id: str) -> Membership:
        """Return the membership of a group, or ``NO_MEMBERS`` if the group does not exist."""
        group = self.groups.get(group_id)
        return NO_MEMBERS if group is None else group.membership

    def change_membership(self, group_id: str, membership: Membership, notes: Sequence[Note]) -> None:
        """Replace the membership of a group, and log ``notes``. Creates the group if it does not exist."""
        group = self.find_or_create(group_id)
        group.membership = membership
        self.drop_unused(group)
        for message, facts in notes:
            _log.info(message, extra={"group": group_id, **facts})

    # --- Records ---

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record. Raises MalformedMessage, and changes nothing, if the record cannot be decoded."""
        known = self._known.get(key[:-4])
        if known is not None and value is not None and producer is None and known[0].membership is not REMOVED:
            # By far the most frequent records: loading applies millions of them.
            one = (known[1], int.from_bytes(key[-4:], "big", signed=True))
            if is_plain(value):
                known[0].offsets.set_plain(one, value, offset)
            else:
                known[0].offsets[one] = decode_offset(value, offset)
            return
        if len(key) < 2:
            raise MalformedMessage("a record of __consumer_offsets has no key")
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
        elif is_of_consumer_group(version):
            self._replay_consumer_group(version, key, value)
        elif share_records.is_of_share_group(version):
            self._replay_share_group(version, key, value)
        elif streams_records.is_of_streams_group(version):
            self._replay_streams_group(version, key, value)
        else:
            raise MalformedMessage(f"unknown key version {version}")

    def _remove_offset(self, group_id: str, partition: tuple[str, int]) -> None:
        """Remove an offset, including those that open transactions committed before the tombstone."""
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
        if group.membership.state is GroupState.EMPTY:
            group.membership = replace(group.membership, generation=0)  # a group that is still in use starts over
        self.drop_unused(group)

    def _replay_consumer_group(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id, change, ends = decode_change(kind, key, value)
        group = self.groups.get(group_id)
        if value is None and (group is None or group.consumer is None):
            return
        group = self.find_or_create(group_id)
        if group.consumer is None:
            group.consumer = ConsumerGroup(group_id)
        change(group.consumer)
        if ends:
            group.consumer = None
            self.drop_unused(group)

    def _replay_share_group(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id, change, ends = share_records.decode_change(kind, key, value)
        group = self.groups.get(group_id)
        if value is None and (group is None or group.share is None):
            return
        group = self.find_or_create(group_id)
        if group.share is None:
            group.share = ShareGroup(group_id)
        change(group.share)
        if ends:
            group.share = None
            self.drop_unused(group)

    def _replay_streams_group(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id, change, ends = streams_records.decode_change(kind, key, value)
        group = self.groups.get(group_id)
        if value is None and (group is None or group.streams is None):
            return
        group = self.find_or_create(group_id)
        if group.streams is None:
            group.streams = StreamsGroup(group_id)
        change(group.streams)
        if ends:
            group.streams = None
            self.drop_unused(group)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """End a transaction. If it was committed, its offsets take effect, unless the log contains later commits."""
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
        """Restore the stored membership of every group, and start the sessions of its members."""
        timers: dict[Hashable, Timer] = {}
        for group in self.groups.values():
            if group.stored is not None and group.is_classic:
                group.membership = restored(group.stored)
            timers.update(self._surroundings.begin_sessions(self, group))
        return timers

    def unloaded(self) -> None:
        """Remove all groups. Code that still holds a group finds its membership ``REMOVED``."""
        for group in self.groups.values():
            group.membership = REMOVED
        self.groups.clear()
