"""The ledger of a classic consumer group in a simulation, and the invariants that it checks.

* **OneOwner**: no two members hold the same partition in the same generation. A commit fails if it was sent after a
  member had received its assignment in a newer generation, or after another process had replaced the member.
* **AssignmentOfLeader**: each member gets the partitions that the leader of its generation assigned to it.
* **GroupProgress**: soon after the faults, the group is stable and has consumed everything. A member starts to consume
  only at an offset that a member has committed, so that it skips nothing.

Until a member has received its assignment, a generation may be lost with its coordinator. The next coordinator then
uses the number of that generation again. This is why a generation may have several leaders, but all its members get the
assignments of the same leader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.event_history import History

Plan = Mapping[str, tuple[int, ...]]
"""The partitions that a leader assigns, by the identity of the member."""


@dataclass(frozen=True, slots=True)
class Place:
    """A member in a generation. ``who`` is the name of the client."""

    who: str
    member_id: str
    instance_id: str | None
    generation: int

    @property
    def identity(self) -> str:
        """The id that stays the same if another process replaces a static member."""
        return self.instance_id or self.member_id

    def __str__(self) -> str:
        return f"{self.who} ({self.member_id}) in generation {self.generation}"


class GroupLedger:
    """The generations, assignments and commits that the members of a group report. Contradictions are reported as
    violations."""

    PROGRESS: ClassVar = "GroupProgress"
    """The name of the invariant that ``lacks`` checks: the group makes progress."""

    def __init__(self, history: History, violations: Violations) -> None:
        self.newest_generation = 0
        """The newest generation in which a member has received its assignment."""
        self.newest_since = history.now()
        """The time when the first member of the newest generation received its assignment."""
        self._history = history
        self._violations = violations
        self._plans: defaultdict[int, list[Plan]] = defaultdict(list)
        self._owners: dict[tuple[int, int], Place] = {}
        self._ids: defaultdict[str, set[str]] = defaultdict(set)  # by group instance id
        self._replaced: set[str] = set()
        self._held: dict[str, tuple[Place, tuple[int, ...]]] = {}
        self._committed: defaultdict[int, int] = defaultdict(int)
        self._sent: defaultdict[int, set[int]] = defaultdict(set)

    # --- Reports of members ---

    def assigns(self, leader: Place, plan: Plan) -> None:
        """Record that a leader is about to send the assignments of its generation."""
        self._history.note(leader.who, f"assigns in generation {leader.generation} {dict(plan)}")
        self._plans[leader.generation].append(plan)

    def ids_of(self, instance_id: str | None) -> set[str]:
        """Return the member ids with which clients of this group instance id have received assignments so far."""
        return set(self._ids[instance_id]) if instance_id is not None else set()

    def assigned(self, place: Place, partitions: tuple[int, ...], replaced: Collection[str]) -> None:
        """Record a member's assignment. ``replaced`` is what ``ids_of`` returned before the member requested it.
        Reports a violation if another member has one of the partitions, or if the leader did not assign them."""
        self._history.note(place.who, f"has {list(partitions)} in generation {place.generation}")
        for partition in partitions:
            owner = self._owners.setdefault((place.generation, partition), place)
            if owner.identity != place.identity:
                self._violations.report("OneOwner", f"partition {partition} belongs to {owner} and to {place}")
        plans = self._plans[place.generation]
        possible = [plan for plan in plans if plan.get(place.identity, ()) == partitions]
        if not possible:
            planned = " or ".join(str(dict(plan)) for plan in plans)
            text = f"{place} got {list(partitions)}; the leader assigned {planned or 'nothing'}"
            self._violations.report("AssignmentOfLeader", text)
        self._plans[place.generation] = possible or plans
        if place.generation > self.newest_generation:
            self.newest_generation, self.newest_since = place.generation, self._history.now()
        self._replaced |= set(replaced) - {place.member_id}
        if place.instance_id is not None:
            self._ids[place.instance_id].add(place.member_id)
        self._held[place.who] = place, partitions

    def begins(self, place: Place, partition: int, offset: int) -> None:
        """Check that the offset at which a member starts to consume a partition is 0 or was committed by a member."""
        if offset not in self._sent[partition] | {0}:
            text = f"{place} starts partition {partition} at {offset}, which no member has committed"
            self._violations.report("GroupProgress", text)

    def releases(self, who: str) -> None:
        """Record that a client stops consuming its partitions: it rejoins, leaves or has died."""
        self._held.pop(who, None)

    def commits(self, place: Place, offsets: Mapping[int, int]) -> str:
        """Record that a commit is about to be sent. Returns why it must fail, or an empty string if it may succeed."""
        for partition, offset in offsets.items():
            self._sent[partition].add(offset)
        if place.generation < self.newest_generation:
            return f"generation {self.newest_generation} had its assignments"
        return "another process had taken its place" if place.member_id in self._replaced else ""

    def committed(self, place: Place, offsets: Mapping[int, int], outdated: str) -> None:
        """Record that a commit succeeded. ``outdated`` is what ``commits`` returned for it: if it is not empty, the
        success is a violation."""
        self._history.note(place.who, f"has committed {dict(offsets)} in generation {place.generation}")
        if outdated:
            text = f"a commit of {place} succeeded, although {outdated} when it was sent"
            self._violations.report("OneOwner", text)
        for partition, offset in offsets.items():
            self._committed[partition] = max(self._committed[partition], offset)

    # --- The end of the run ---

    def lacks(self, members: Collection[str], ends: Mapping[int, int]) -> list[str]:
        """Return descriptions of what is missing until the group is stable with these members and has consumed all
        partitions up to ``ends``. The result is empty if nothing is missing."""
        held = {who: self._held[who] for who in members if who in self._held}
        found = [f"{who} has no assignment" for who in members if who not in held]
        generations = sorted({place.generation for place, _ in held.values()})
        if len(generations) > 1:
            found.append(f"its members are in the generations {generations}")
        consumed = {partition for _, partitions in held.values() for partition in partitions}
        for partition, end in ends.items():
            if partition not in consumed:
                found.append(f"partition {partition} belongs to no member")
            if self._committed[partition] < end:
                found.append(f"partition {partition} is consumed up to {self._committed[partition]} of {end}")
        return found
