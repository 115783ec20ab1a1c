"""The ledger of a consumer group (KIP-848) in a simulation, and the invariants that it checks.

* **OneOwner**: no two members own the same partition in the same epoch. A commit for a partition fails if, when it was
  sent, another member had been assigned the partition in a later epoch.
* **GroupEpochsRise**: a member's epoch never decreases while it is a member. A joining member never enters an epoch
  older than the newest epoch of any member. A coordinator's group epoch and target assignment epoch never decrease.
* **GroupProgress**: as in ``group_ledger.py``: at the end every partition belongs to a member, and every record is
  consumed.

A member *hears* of a partition when the coordinator assigns it, and *holds* it while it consumes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.event_history import History


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """A member in an epoch. ``who`` is the name of the client."""

    who: str
    member_id: str
    instance_id: str | None
    epoch: int

    @property
    def identity(self) -> str:
        """The id that stays the same if another process replaces a static member."""
        return self.instance_id or self.member_id

    def __str__(self) -> str:
        return f"{self.who} ({self.member_id}) in epoch {self.epoch}"


class ConsumerGroupLedger:
    """The epochs, partitions and commits that the members of a group of the consumer protocol report. Contradictions
    are reported as violations."""

    PROGRESS: ClassVar = "GroupProgress"
    """The name of the invariant that ``lacks`` checks: the group makes progress."""

    def __init__(self, history: History, violations: Violations) -> None:
        self.newest_epoch = 0
        """The newest epoch that a member has entered."""
        self.newest_since = history.now()
        """The last time a member entered an epoch, or took or gave up a partition."""
        self._history = history
        self.violations = violations
        self._owners: dict[tuple[int, int], MemberPlace] = {}
        self._assigned: dict[int, MemberPlace] = {}
        """The member that was assigned each partition in the latest epoch."""
        self._places: dict[str, MemberPlace] = {}
        self._held: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """The partitions that each client holds, each with the latest epoch in which it was assigned."""
        self._committed: defaultdict[int, int] = defaultdict(int)
        self._sent: defaultdict[int, set[int]] = defaultdict(set)
        self._coordinated: dict[object, tuple[object, int, int]] = {}

    # --- Reports of members ---

    def heard(self, place: MemberPlace, assigned: Collection[int], known_epoch: int) -> None:
        """Record the assignment in the response to a heartbeat. Reports a violation if the member's epoch is below
        ``known_epoch``, or if another member has one of the partitions in the same epoch."""
        before = self._places.get(place.who)
        if before != place:
            self._history.note(place.who, f"is in epoch {place.epoch} with {sorted(assigned)}")
            self.newest_since = self._history.now()
        if place.epoch < known_epoch:
            text = f"{place} entered it after epoch {known_epoch} had begun"
            self.violations.report("GroupEpochsRise", text)
        self._places[place.who] = place
        self.newest_epoch = max(self.newest_epoch, place.epoch)
        for partition in assigned:
            owner = self._owners.setdefault((place.epoch, partition), place)
            if owner.identity != place.identity:
                self.violations.report("OneOwner", f"partition {partition} belongs to {owner} and to {place}")
            latest = self._assigned.get(partition)
            if latest is None or latest.epoch <= place.epoch:
                self._assigned[partition] = place
            if partition in self._held[place.who]:
                self._held[place.who][partition] = place.epoch

    def holds(self, place: MemberPlace, partition: int) -> None:
        """Record that a member starts to consume a partition."""
        self._history.note(place.who, f"has partition {partition} in epoch {place.epoch}")
        self._held[place.who][partition] = place.epoch
        self.newest_since = self._history.now()

    def gives_up(self, who: str, partitions: Collection[int]) -> None:
        """Record that a client no longer consumes these partitions. Its next heartbeat reports that."""
        self._history.note(who, f"gives up {sorted(partitions)}")
        self.newest_since = self._history.now()
        for partition in partitions:
            self._held[who].pop(partition, None)

    def releases(self, who: str) -> None:
        """Record that a client no longer consumes anything, because it is fenced, leaves or has died."""
        if self._places.pop(who, None) is not None:
            self.newest_since = self._history.now()
        self._held.pop(who, None)

    def begins(self, place: MemberPlace, partition: int, offset: int) -> None:
        """Check that the offset at which a member starts to consume a partition is 0 or was committed by a member."""
        if offset not in self._sent[partition] | {0}:
            text = f"{place} starts partition {partition} at {offset}, which no member has committed"
            self.violations.report("GroupProgress", text)

    def commits(self, place: MemberPlace, offsets: Mapping[int, int]) -> str:
        """Record that a commit is about to be sent. Returns why it must fail, or an empty string if it may succeed."""
        reason = ""
        for partition, offset in offsets.items():
            self._sent[partition].add(offset)
            owner = self._assigned.get(partition)
            since = self._held[place.who].get(partition)
            if owner is not None and since is not None and owner.member_id != place.member_id and owner.epoch >= since:
                reason = f"partition {partition} belonged to {owner}"
        return reason

    def committed(self, place: MemberPlace, offsets: Mapping[int, int], outdated: str) -> None:
        """Record that a commit succeeded. ``outdated`` is what ``commits`` returned for it: if it is not empty, the
        success is a violation."""
        self._history.note(place.who, f"has committed {dict(offsets)} in epoch {place.epoch}")
        if outdated:
            text = f"a commit of {place} succeeded, although {outdated} when it was sent"
            self.violations.report("OneOwner", text)
        for partition, offset in offsets.items():
            self._committed[partition] = max(self._committed[partition], offset)

    # --- Coordinators ---

    def coordinates(self, where: object, state: object, group: Any) -> None:
        """Check that the epochs of a group never decrease at the coordinator ``where``. ``state`` stays the same object
        until the coordinator loads the group again."""
        known = self._coordinated.get(where)
        if known is not None and known[0] is state and (group.epoch < known[1] or group.target_epoch < known[2]):
            text = f"a coordinator went back from {known[1]}, target {known[2]}, to {group.epoch}, {group.target_epoch}"
            self.violations.report("GroupEpochsRise", text)
        self._coordinated[where] = state, group.epoch, group.target_epoch

    # --- The end of the run ---

    def lacks(self, members: Collection[str], ends: Mapping[int, int]) -> list[str]:
        """Return descriptions of what is missing until the group is stable with these members and has consumed all
        partitions up to ``ends``. The result is empty if nothing is missing."""
        places = {who: self._places[who] for who in members if who in self._places}
        found = [f"{who} is in no epoch" for who in members if who not in places]
        epochs = sorted({place.epoch for place in places.values()})
        if len(epochs) > 1:
            found.append(f"its members are in the epochs {epochs}")
        for partition, end in ends.items():
            owners = [who for who in members if partition in self._held.get(who, {})]
            if len(owners) != 1:
                found.append(f"partition {partition} belongs to {owners or 'no member'}")
            if self._committed[partition] < end:
                found.append(f"partition {partition} is consumed up to {self._committed[partition]} of {end}")
        return found
