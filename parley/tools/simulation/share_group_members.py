"""Simulated share consumers (KIP-932), which record what they acquire and acknowledge in the ``ShareGroupLedger``.

One task sends heartbeats. Another task fetches from the leaders of the member's partitions, and acknowledges with the
next fetch or by a separate request. A seed decides what happens to each record: it is accepted, rejected, released, or
kept beyond its lock, or its lock is renewed. Some records are poison: every member releases them until their delivery
count is exhausted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from random import Random
from typing import Any, Final

from parley.broker.share.acknowledgements import ACCEPT, REJECT, RELEASE, RENEW
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.uuids import UUID
from parley.tools.simulation.client_invariants import Ledger
from parley.tools.simulation.group_processes import SESSION_S
from parley.tools.simulation.group_reading import GroupReader
from parley.tools.simulation.keyed_records import text_of
from parley.tools.simulation.share_group_ledger import LOCK_S, Acknowledgement, Record, ShareGroupLedger

SHARE_GROUP: Final = "share-group"
HEARTBEAT_S: Final = 1.5
PROPERTIES: Final = {
    **{f"group.share.{each}session.timeout.ms": str(int(SESSION_S * 1000)) for each in ("", "min.")},
    **{f"group.share.{each}heartbeat.interval.ms": str(int(HEARTBEAT_S * 1000)) for each in ("", "min.")},
    **{f"group.share.{each}record.lock.duration.ms": str(int(LOCK_S * 1000)) for each in ("", "min.")},
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "5000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "10000",
}
"""Broker settings that make sessions as short as those of classic groups, and locks short enough to expire within a
run."""
GROUP_CONFIGS: Final = {"share.auto.offset.reset": "earliest"}
POISON_EVERY: Final = 101
"""One in this many records is poison."""
HEARTBEAT_VERSION: Final = 1
VERSION: Final = 2
"""The version of ShareFetch and ShareAcknowledge; it supports renewals."""
_ABANDON: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
_JOIN: Final = 0
_LEAVE: Final = -1
_FINAL: Final = -1
"""The epoch of a request that ends a share session."""


class ShareGroupMember(GroupReader):
    """A process of a share consumer."""

    def __init__(
        self, name: str, bootstrap: Iterable[tuple[str, int]], ledger: Ledger, groups: ShareGroupLedger, rng: Random
    ) -> None:
        super().__init__(SHARE_GROUP, name, bootstrap, ledger, rng)
        self._groups = groups
        self._member_id = str(UUID(int=rng.getrandbits(128)))
        self._epoch = _JOIN
        self._assigned: frozenset[int] = frozenset()
        self._topic_id = UUID(int=0)
        self._sessions: dict[int, int] = {}
        """The last epoch of the share session with each broker."""
        self._in_session: defaultdict[int, set[int]] = defaultdict(set)
        """The partitions of each session."""
        self._held: dict[Record, tuple[int, int]] = {}
        """The broker and the delivery count of each record that the member has acquired."""

    async def live(self, topic: str, partitions: Sequence[int]) -> None:
        """Consume with the group until ``stopping`` is set, or until another process has replaced this member."""
        heartbeats = asyncio.ensure_future(self._send_heartbeats(topic))
        try:
            while not self.stopping and self.is_newest:
                for node, led in (await self._leaders_of(topic)).items():
                    await self._fetch_from(topic, node, led)
                await self.pause(0.05 if self.is_settled else 0.3)
            for node in list(self._sessions):
                decided = [each for each in self._decisions(node) if each.kind != RENEW]
                await self._acknowledge(node, decided, ends=True)
            heartbeats.cancel()
            self._groups.releases(self.name)
            await self._leave()
        finally:
            heartbeats.cancel()
            self._groups.releases(self.name)
            await self.client.close()

    # --- Heartbeats ---

    async def _send_heartbeats(self, topic: str) -> None:
        while True:
            try:
                await self._beat(topic)
            except KafkaError as error:
                await self.retry_later("heartbeat", error)
                continue
            await asyncio.sleep(HEARTBEAT_S)

    async def _beat(self, topic: str) -> None:
        """Send a heartbeat, and process the coordinator's response. Raises KafkaError if there is none, or if it
        contains an error: the member may then have to rejoin."""
        request = ShareGroupHeartbeatRequest(
            group_id=SHARE_GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=[topic] if self._epoch == _JOIN else None,
        )
        answer = await self.ask_coordinator(request, HEARTBEAT_VERSION)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self.coordinator = None
            if code in _ABANDON:
                self._epoch = _JOIN
            raise KafkaError(code)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            found = set()
            for each in answer.assignment.topic_partitions:
                self._topic_id = each.topic_id
                found.update(each.partitions)
            self._assigned = frozenset(found)
            self._groups.assigned(self.name, self._assigned)

    async def _leave(self) -> None:
        """Leave the group. Like Kafka's consumer, try only once."""
        request = ShareGroupHeartbeatRequest(group_id=SHARE_GROUP, member_id=self._member_id, member_epoch=_LEAVE)
        with suppress(KafkaError):
            await self.ask_coordinator(request, HEARTBEAT_VERSION)

    # --- Fetching ---

    async def _leaders_of(self, topic: str) -> dict[int, list[int]]:
        """Return the member's partitions by leader. A broker with which the member has a session, but that leads none
        of them, has an empty list."""
        found: dict[int, list[int]] = {node: [] for node in self._sessions}
        for partition in sorted(self._assigned):
            try:
                if partition not in self._leaders:
                    known_epoch = self.leader_epochs.get(partition, -1)
                    self._leaders[partition] = await self._leader(topic, partition, known_epoch)
            except KafkaError as error:
                await self.retry_later(f"leader of {topic}-{partition}", error)
                continue
            node, self.leader_epochs[partition] = self._leaders[partition]
            found.setdefault(node, []).append(partition)
        return found

    async def _fetch_from(self, topic: str, node: int, partitions: list[int]) -> None:
        """Fetch partitions from their leader. Acknowledge before the fetch, or with it."""
        decided = self._decisions(node)
        if any(each.kind == RENEW for each in decided) or self.rng.random() < 0.5:
            if not await self._acknowledge(node, decided):
                return
            decided = []
        epoch = self._next_epoch(node)
        known = self._in_session[node]
        acknowledged = _batches(decided, ShareFetchRequest.AcknowledgementBatch)
        named = sorted({*acknowledged, *(set(partitions) - known)} if epoch else set(partitions))
        forgotten = known - set(partitions) if epoch else set[int]()
        request = ShareFetchRequest(
            group_id=SHARE_GROUP,
            member_id=self._member_id,
            share_session_epoch=epoch,
            max_wait_ms=self.rng.choice((0, 100, 300)),
            min_bytes=1,
            max_bytes=65_536,
            max_records=500 if self.is_settled else self.rng.choice((1, 20, 200)),
            batch_size=self.rng.randint(1, 8),
            share_acquire_mode=self.rng.randint(0, 1),
            topics=self._topics(ShareFetchRequest.FetchTopic, ShareFetchRequest.FetchPartition, named, acknowledged),
            forgotten_topics_data=self._forgotten(forgotten),
        )
        self._groups.acknowledges(self.name, decided)
        sent = asyncio.get_running_loop().time()
        response = await self._ask(node, request)
        if response is None:
            return
        self._sessions[node], self._in_session[node] = epoch, (known | set(named)) - forgotten
        for each in (partition for found in response.responses for partition in found.partitions):
            partition = each.partition_index
            if each.error_code:
                self._failed(partition, each.error_code)
            self._settle(partition, decided, each.acknowledge_error_code, sent)
            if each.acquired_records:
                self._take(topic, partition, node, each, sent)

    def _next_epoch(self, node: int) -> int:
        return self._sessions[node] + 1 if node in self._sessions else 0

    def _topics(
        self, topic: Any, partition: Any, named: Iterable[int], acknowledged: dict[int, list[Any]]
    ) -> list[Any]:
        partitions = [
            partition(partition_index=index, acknowledgement_batches=acknowledged.get(index, [])) for index in named
        ]
        return [topic(topic_id=self._topic_id, partitions=partitions)] if partitions else []

    def _forgotten(self, partitions: set[int]) -> list[ShareFetchRequest.ForgottenTopic]:
        make = ShareFetchRequest.ForgottenTopic
        return [make(topic_id=self._topic_id, partitions=sorted(partitions))] if partitions else []

    def _take(self, topic: str, partition: int, node: int, found: Any, sent: float) -> None:
        """Process the records that the member has acquired."""
        data = bytes(found.records or b"")
        values = {
            each.offset: text_of(each)
            for at, header in headers(data)
            for each in records(data[at : at + header.size_bytes])
        }
        for batch in found.acquired_records:
            acquired = [(partition, offset) for offset in range(batch.first_offset, batch.last_offset + 1)]
            self._groups.acquired(self.name, acquired, batch.delivery_count, sent, node)
            missing = [record for record in acquired if record[1] not in values]
            if missing:
                self._groups.lacks_records(self.name, missing, node)
            for record in acquired:
                if record not in missing:
                    self.ledger.read(self.name, topic, partition, record[1], values[record[1]], node)
                self._held[record] = node, batch.delivery_count

    # --- Acknowledging ---

    def _decisions(self, node: int) -> list[Acknowledgement]:
        """Decide what happens to the records acquired from a broker. Returns the acknowledgements; some records stay
        undecided for now."""
        decided = []
        for record, (leader, count) in sorted(self._held.items()):
            if leader != node or self.rng.random() < 0.2:
                continue
            kind = self._decision(record, count)
            if kind is None:
                del self._held[record]  # the lock expires
            else:
                decided.append(Acknowledgement(record, kind))
        return decided

    def _decision(self, record: Record, count: int) -> int | None:
        if record[1] % POISON_EVERY == POISON_EVERY - 1:
            return RELEASE
        if self.is_settled:
            return ACCEPT
        draw = self.rng.random()
        if draw < 0.02:
            return REJECT
        if draw < 0.05:
            return RENEW
        if draw < 0.10 and count < 3:
            return RELEASE
        if draw < 0.11 and count < 2:
            return None
        return ACCEPT

    async def _acknowledge(self, node: int, decided: list[Acknowledgement], *, ends: bool = False) -> bool:
        """Acknowledge records by a separate request, which ends the session if ``ends``. Returns False if the request
        failed, which also ends the session."""
        if not decided and not ends:
            return True
        acknowledged = _batches(decided, ShareAcknowledgeRequest.AcknowledgementBatch)
        topic, partition = ShareAcknowledgeRequest.AcknowledgeTopic, ShareAcknowledgeRequest.AcknowledgePartition
        epoch = _FINAL if ends else self._next_epoch(node)
        request = ShareAcknowledgeRequest(
            group_id=SHARE_GROUP,
            member_id=self._member_id,
            share_session_epoch=epoch,
            is_renew_ack=any(each.kind == RENEW for each in decided),
            topics=self._topics(topic, partition, sorted(acknowledged), acknowledged),
        )
        self._groups.acknowledges(self.name, decided)
        sent = asyncio.get_running_loop().time()
        response = await self._ask(node, request)
        if response is None:
            return False
        for each in (partition for found in response.responses for partition in found.partitions):
            self._settle(each.partition_index, decided, each.error_code, sent)
        if ends:
            self._end_session(node)
        else:
            self._sessions[node] = epoch
        return True

    def _settle(self, partition: int, decided: Sequence[Acknowledgement], code: int, sent: float) -> None:
        """Record whether the acknowledgements of a partition succeeded. The member keeps a renewed record."""
        settled = [each for each in decided if each.record[0] == partition]
        if code:
            self._failed(partition, code)
        elif settled:
            self._groups.confirmed(self.name, settled, sent)
        for record, kind in settled:
            if code or kind != RENEW:
                self._held.pop(record, None)
                self._groups.loses(self.name, [record])

    def _failed(self, partition: int, code: int) -> None:
        self.ledger.history.trace(f"{self.name} partition {partition}: {ErrorCode(code).name}")
        self._leaders.pop(partition, None)

    # --- Sessions ---

    async def _ask(self, node: int, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Any:
        """Send a request of the session with a broker. Returns the response, or None if the request failed: the session
        has then ended."""
        sent = asyncio.get_running_loop().time()
        try:
            response = await self.client.send(request, node=node, version=VERSION)
        except KafkaError as error:
            code = error.code
        else:
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                self._groups.session_lives(self.name, node, sent)
                return response
        self._end_session(node)
        self._leaders.clear()
        await self.retry_later(f"{type(request).__name__} to {node}", code)
        return None

    def _end_session(self, node: int) -> None:
        """Forget the session with a broker, and the records acquired in it."""
        self._sessions.pop(node, None)
        partitions = self._in_session.pop(node, ())
        lost = [record for record, (leader, _) in self._held.items() if leader == node]
        self._groups.session_ended(self.name, node, lost, partitions)
        for record in lost:
            del self._held[record]


def _batches(decided: Sequence[Acknowledgement], make: Any) -> dict[int, list[Any]]:
    """Return acknowledgements as the batches of a request, by partition. ``make`` creates a batch. Adjacent offsets
    share a batch."""
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for (partition, _), run in groupby(enumerate(sorted(decided)), _run_of):
        members = [each for _, each in run]
        kinds = [each.kind for each in members]
        first, last = members[0].record[1], members[-1].record[1]
        types = kinds[:1] if len(set(kinds)) == 1 else kinds
        found[partition].append(make(first_offset=first, last_offset=last, acknowledge_types=types))
    return found


def _run_of(numbered: tuple[int, Acknowledgement]) -> tuple[int, int]:
    """Return a key that is the same for adjacent records of a partition."""
    number, ((partition, offset), _) = numbered
    return partition, offset - number
