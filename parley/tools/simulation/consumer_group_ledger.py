"""The ledger of a consumer group (KIP-848) in a simulation, and the invariants that it checks.

* **OneOwner**: no two members have the same partition in the same epoch. No commit succeeds for a partition that the
  member still has, if another member had got that in a later epoch when it was sent.
* **GroupEpochsRise**: a member's epoch never goes back while it is a member. A member that joins enters no earlier
  epoch than any member has had. A coordinator's group epoch, and that of its target assignment, never go back.
* **GroupProgress**: as in ``group_ledger.py``: in the end every partition belongs to a member, and all is consumed.

A member *hears* of a partition when the coordinator assigns it, and *holds* it from then until it has given it up.
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
    """The place of a member in an epoch. ``who`` is the name of the client."""

    who: str
    member_id: str
    instance_id: str | None
    epoch: int

    @property
    def identity(self) -> str:
        """What stays the same if another process takes the place of a static member."""
        return self.instance_id or self.member_id

    def __str__(self) -> str:
        return f"{self.who} ({self.member_id}) in epoch {self.epoch}"


class ConsumerGroupLedger:
    """What the members of a group of the consumer protocol know about it."""

    PROGRESS: ClassVar = "GroupProgress"
    """The invariant that the group gets on."""

    def __init__(self, history: History, violations: Violations) -> None:
        self.newest_epoch = 0
        """The newest epoch that a member has entered."""
        self.newest_since = history.now()
        """When the last member entered an epoch, or got or gave up a partition."""
        self._history = history
        self.violations = violations
        self._owners: dict[tuple[int, int], MemberPlace] = {}
        self._assigned: dict[int, MemberPlace] = {}
        """The member that got each partition in the latest epoch."""
        self._places: dict[str, MemberPlace] = {}
        self._held: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """The partitions that each client holds, with the latest epoch in which it heard of them."""
        self._committed: defaultdict[int, int] = defaultdict(int)
        self._sent: defaultdict[int, set[int]] = defaultdict(set)
        self._coordinated: dict[object, tuple[object, int, int]] = {}

    # --- Reports of members ---

    def heard(self, place: MemberPlace, assigned: Collection[int], known_epoch: int) -> None:
        """The coordinator has answered a heartbeat. ``known_epoch`` is an epoch that the response must have reached."""
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
        """A member begins to consume a partition."""
        self._history.note(place.who, f"has partition {partition} in epoch {place.epoch}")
        self._held[place.who][partition] = place.epoch
        self.newest_since = self._history.now()

    def gives_up(self, who: str, partitions: Collection[int]) -> None:
        """A client no longer consumes partitions, and is about to say so."""
        self._history.note(who, f"gives up {sorted(partitions)}")
        self.newest_since = self._history.now()
        for partition in partitions:
            self._held[who].pop(partition, None)

    def releases(self, who: str) -> None:
        """A client consumes nothing any more: it is fenced, leaves or has died."""
        if self._places.pop(who, None) is not None:
            self.newest_since = self._history.now()
        self._held.pop(who, None)

    def begins(self, place: MemberPlace, partition: int, offset: int) -> None:
        """A member begins to consume a partition at the offset that the coordinator has for the group."""
        if offset not in self._sent[partition] | {0}:
            text = f"{place} begins partition {partition} at {offset}, which no member has committed"
            self.violations.report("GroupProgress", text)

    def commits(self, place: MemberPlace, offsets: Mapping[int, int]) -> str:
        """A commit is about to be sent. Returns why it must fail; empty if it need not."""
        reason = ""
        for partition, offset in offsets.items():
            self._sent[partition].add(offset)
            owner = self._assigned.get(partition)
            since = self._held[place.who].get(partition)
            if owner is not None and since is not None and owner.member_id != place.member_id and owner.epoch >= since:
                reason = f"partition {partition} belonged to {owner}"
        return reason

    def committed(self, place: MemberPlace, offsets: Mapping[int, int], outdated: str) -> None:
        """A commit succeeded. ``outdated`` is what ``commits`` returned when it was sent."""
        self._history.note(place.who, f"has committed {dict(offsets)} in epoch {place.epoch}")
        if outdated:
            text = f"a commit of {place} succeeded, although {outdated} when it was sent"
            self.violations.report("OneOwner", text)
        for partition, offset in offsets.items():
            self._committed[partition] = max(self._committed[partition], offset)

    # --- Coordinators ---

    def coordinates(self, where: object, state: object, group: Any) -> None:
        """A coordinator has the group like this. ``state`` is the same object until it reads the group again."""
        known = self._coordinated.get(where)
        if known is not None and known[0] is state and (group.epoch < known[1] or group.target_epoch < known[2]):
            text = f"a coordinator went back from {known[1]}, target {known[2]}, to {group.epoch}, {group.target_epoch}"
            self.violations.report("GroupEpochsRise", text)
        self._coordinated[where] = state, group.epoch, group.target_epoch

    # --- The end of the run ---

    def lacks(self, members: Collection[str], ends: Mapping[int, int]) -> list[str]:
        """What the group lacks until it is stable with these members, and has consumed all partitions to these ends."""
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
