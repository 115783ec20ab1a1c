"""The ledger of a streams group (KIP-1071) in a simulation, and the invariants that it checks.

The invariants of ``consumer_group_ledger.py`` apply to the partitions of tasks. In addition:

* **OneOwner**: a coordinator never assigns an active task to two members, including members that are still giving it
  up.
* **GroupProgress**: at the end each task has its standby task, if there is more than one member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup
from parley.broker.coordinators.groups.streams.tasks import ids_of
from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger
from parley.tools.simulation.event_history import History


class StreamsGroupLedger(ConsumerGroupLedger):
    """The tasks, epochs and commits that the members and coordinators of a streams group report. Contradictions are
    reported as violations."""

    def __init__(self, history: History, violations: Violations) -> None:
        super().__init__(history, violations)
        self._copies: dict[str, frozenset[int]] = {}
        """The standby tasks of each client."""

    def copies(self, who: str, partitions: frozenset[int]) -> None:
        """Record the standby tasks that a client has from now on."""
        self._copies[who] = partitions

    def releases(self, who: str) -> None:
        super().releases(who)
        self._copies.pop(who, None)

    def coordinates(self, where: object, state: object, group: StreamsGroup) -> None:
        """Check a coordinator's state of the group: its epochs, and that no active task has two owners. ``state`` stays
        the same object until the coordinator loads the group again."""
        super().coordinates(where, state, group)
        owners: dict[tuple[str, int], str] = {}
        for member in group.members.values():
            for tasks in (member.progress.assigned, member.progress.revoking):
                for task in ids_of(tasks.active):
                    owner = owners.setdefault(task, member.member_id)
                    if owner != member.member_id:
                        text = f"a coordinator gave task {task[0]}_{task[1]} to {owner} and to {member.member_id}"
                        self.violations.report("OneOwner", text)

    def lacks(self, members: Collection[str], ends: Mapping[int, int]) -> list[str]:
        found = super().lacks(members, ends)
        for partition in ends:
            copies = [who for who in members if partition in self._copies.get(who, ())]
            if len(copies) != min(1, len(members) - 1):
                found.append(f"the standby tasks of partition {partition} are with {copies or 'no member'}")
        return found
