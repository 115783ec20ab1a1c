"""The ledger of a share group (KIP-932) in a simulation, and the invariants that it checks.

* **AcquiredByOne**: while a member holds the lock of a record, the record is not delivered again with a higher count,
  unless the member has acknowledged it or its session has ended. A later successful request of the session proves that
  the session had not ended.
* **DeliveredWithinCount**: no record is delivered more often than the group allows, and each confirmed release counts.
* **AcknowledgedOnce**: a fetch that was sent after an accept or reject was confirmed does not return the record, unless
  a superseded leader serves it. Such a leader does not know of its successor, and delivers what its state allows, as in
  Kafka.
  A confirmation counts only if it arrived before the lock expired. Later, the leader may already have archived the
  record, because its count was exhausted. It then ignores the acknowledgement and responds without an error, like
  Kafka, although the archived state may not be stored yet. If that leader dies, the next leader delivers it again.
* **NoRecordSkipped**: the group passes a record only if a member accepted or rejected it, or its count is exhausted.
* **ShareProgress**: soon after the faults, the group has passed all records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from parley.broker.share.acknowledgements import ACCEPT, REJECT, RELEASE, RENEW
from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.event_history import History

LOCK_S: Final = 4.0
"""The duration of the lock on an acquired record."""
DELIVERIES_MAX: Final = 5
"""The maximum number of deliveries of a record: the brokers' default."""

Record = tuple[int, int]
"""A partition and an offset."""


class Acknowledgement(NamedTuple):
    """A member's acknowledgement of a record; ``kind`` is a value of ``AcknowledgementBatch.types``."""

    record: Record
    kind: int


@dataclass(slots=True)
class _Holder:
    """The last member that received a record, until it acknowledges or loses the record."""

    who: str
    node: int
    count: int
    until: float
    """The earliest end of the lock, in seconds of virtual time."""


class ShareGroupLedger:
    """The records that the members of a share group acquire and acknowledge, as they report it. Contradictions are
    reported as violations."""

    PROGRESS: ClassVar = "ShareProgress"
    """The name of the invariant that ``lacks`` checks: the group makes progress."""

    def __init__(
        self, history: History, violations: Violations, leads: Callable[[int, int], bool] = lambda partition, node: True
    ) -> None:
        """``leads(partition, node)`` returns True if the store names this broker as the leader of the partition."""
        self.newest_since = history.now()
        self.deliveries = 0
        """The number of records delivered to members, counting redeliveries."""
        self._history = history
        self._violations = violations
        self._leads = leads
        self._holders: dict[Record, _Holder] = {}
        self._suspicions: defaultdict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
        """Events that violate AcquiredByOne if this member's session with this broker had not ended: the time and a
        description."""
        self._locks: dict[tuple[str, Record], float] = {}
        """The earliest end of the last lock of each member on each record, in seconds of virtual time."""
        self._unseen: defaultdict[int, int] = defaultdict(int)
        """The number of fetches of a partition that got no response. It is unknown what they delivered."""
        self._assigned: dict[str, frozenset[int]] = {}
        self._decided: set[Record] = set()
        """The records that a member has accepted or rejected, confirmed or not."""
        self._settled: dict[Record, float] = {}
        """The time at which accepting or rejecting a record was confirmed."""
        self._releases: defaultdict[Record, list[float]] = defaultdict(list)
        """The times at which releases of a record were confirmed."""
        self._last_deliveries: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """The time of the last delivery, by partition and offset."""
        self._most_deliveries: defaultdict[Record, int] = defaultdict(int)
        self._starts: defaultdict[int, int] = defaultdict(int)

    # --- Reports of members ---

    def assigned(self, who: str, partitions: frozenset[int]) -> None:
        """Record the partitions assigned to a member."""
        if self._assigned.get(who) != partitions:
            self._history.note(who, f"shares {sorted(partitions)}")
            self._assigned[who] = partitions

    def acquired(self, who: str, records: Iterable[Record], count: int, sent: float, node: int) -> None:
        """Record that a member has acquired records with this delivery count, by a fetch that it sent at ``sent``."""
        records = list(records)
        self.deliveries += len(records)
        self._history.note(who, f"acquires {_text(records)} from {node}, delivery {count}")
        for record in records:
            holder = self._holders.get(record)
            if holder is not None and count > holder.count and self._history.now() < holder.until:
                text = f"{who} got {record} from broker {node}, delivery {count}, while {holder.who} held it"
                self._suspicions[holder.who, holder.node].append((self._history.now(), text))
            released = sum(at <= sent for at in self._releases[record])
            if not released < count <= DELIVERIES_MAX:
                text = f"{who} got {record} from broker {node}, delivery {count} after {released} releases"
                self._violations.report("DeliveredWithinCount", text)
            settled = self._settled.get(record)
            if settled is not None and settled <= sent and self._leads(record[0], node):
                text = f"{who} got {record} from broker {node}, {sent - settled:.3f} s after it was settled"
                self._violations.report("AcknowledgedOnce", text)
            self._most_deliveries[record] = max(self._most_deliveries[record], count)
            self._last_deliveries[record[0]][record[1]] = self._history.now()
            self._holders[record] = _Holder(who, node, count, sent + LOCK_S)
            self._locks[who, record] = sent + LOCK_S

    def session_lives(self, who: str, node: int, sent: float) -> None:
        """Record that a broker has accepted a request of a session that the member sent at ``sent``. Suspicions from
        before that time become violations."""
        known = self._suspicions.pop((who, node), [])
        for at, text in known:
            if at <= sent:
                self._violations.report("AcquiredByOne", text)
        later = [each for each in known if each[0] > sent]
        if later:
            self._suspicions[who, node] = later

    def session_ended(self, who: str, node: int, records: Iterable[Record], partitions: Iterable[int]) -> None:
        """Record that a session has ended because a request for these partitions had no response. Its records are free
        again."""
        self._suspicions.pop((who, node), None)
        for partition in partitions:
            self._unseen[partition] += 1
        self.loses(who, records)

    def lacks_records(self, who: str, records: Collection[Record], node: int) -> None:
        """Report a violation: a response lists these records as acquired, but does not contain them."""
        self._violations.report("NoRecordSkipped", f"broker {node} did not send {who} {_text(records)}")

    def acknowledges(self, who: str, acknowledgements: Sequence[Acknowledgement]) -> None:
        """Record that a member is about to send acknowledgements."""
        for record, kind in acknowledgements:
            if kind in (ACCEPT, REJECT):
                self._decided.add(record)
            if kind != RENEW:
                self._let_go(who, record)

    def confirmed(self, who: str, acknowledgements: Sequence[Acknowledgement], sent: float) -> None:
        """Record that the acknowledgements that a member sent at ``sent`` were confirmed."""
        now = self._history.now()
        for kind in sorted({each.kind for each in acknowledgements}):
            records = [each.record for each in acknowledgements if each.kind == kind]
            self._history.note(who, f"has acknowledged {_text(records)} with {kind}")
            for record in records:
                if kind == RENEW:
                    self._renew(who, record, sent + LOCK_S)
                elif now >= self._locks.get((who, record), 0.0):
                    continue
                elif kind == RELEASE:
                    self._releases[record].append(now)
                elif kind in (ACCEPT, REJECT):
                    self._settled.setdefault(record, now)

    def _renew(self, who: str, record: Record, until: float) -> None:
        holder = self._holders.get(record)
        if holder is not None and holder.who == who:
            holder.until = self._locks[who, record] = until

    def loses(self, who: str, records: Iterable[Record]) -> None:
        """Record that a member no longer holds records: it has acknowledged them, perhaps without success."""
        for record in records:
            self._let_go(who, record)

    def _let_go(self, who: str, record: Record) -> None:
        holder = self._holders.get(record)
        if holder is not None and holder.who == who:
            del self._holders[record]

    def releases(self, who: str) -> None:
        """Record that a client no longer consumes anything, because it leaves or has died."""
        for partition in self._assigned.pop(who, ()):
            self._unseen[partition] += 1
        for session in [each for each in self._suspicions if each[0] == who]:
            del self._suspicions[session]
        self.loses(who, [record for record, holder in self._holders.items() if holder.who == who])

    # --- Coordinators ---

    def stored(self, partition: int, start_offset: int) -> None:
        """Check the start offset that a share coordinator has stored. The group may pass a record only if it was
        decided or its deliveries are exhausted."""
        now = self._history.now()
        for offset in range(self._starts[partition], start_offset):
            record = partition, offset
            # Members do not see a delivery whose response is lost. It ends with the session, or with the lock.
            unseen = int((now - self._last_delivery(partition, offset)) / LOCK_S) + self._unseen[partition]
            if record not in self._decided and self._most_deliveries[record] + unseen < DELIVERIES_MAX:
                text = f"the group has passed {record} after only {self._most_deliveries[record]} deliveries"
                self._violations.report("NoRecordSkipped", text)
        self._starts[partition] = max(self._starts[partition], start_offset)

    def _last_delivery(self, partition: int, offset: int) -> float:
        """Return when the record was last delivered. If it never was, return when the first record after it was
        delivered."""
        last = self._last_deliveries[partition]
        if offset in last:
            return last[offset]
        return min((at for later, at in last.items() if later > offset), default=self._history.now())

    # --- The end of the run ---

    def lacks(self, members: Collection[str], ends: Mapping[int, int]) -> list[str]:
        """Return descriptions of what is missing until the group has passed all records of the partitions up to
        ``ends``. The result is empty if nothing is missing."""
        found = [f"{who} has no partitions" for who in members if who not in self._assigned]
        for partition, end in ends.items():
            if self._starts[partition] < end:
                found.append(f"the group has passed partition {partition} up to {self._starts[partition]} of {end}")
        return found


def _text(records: Iterable[Record]) -> str:
    return " ".join(f"{partition}@{offset}" for partition, offset in records)
