"""The groups of a run, with three members each: classic and consumer groups, share groups, and streams groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from parley.tools.simulation.client_invariants import Ledger, Violations
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger
from parley.tools.simulation.consumer_protocol_members import ConsumerProtocolMember
from parley.tools.simulation.group_ledger import GroupLedger
from parley.tools.simulation.group_members import ClassicMember
from parley.tools.simulation.group_processes import SESSION_S, Addresses, Begin, GroupConsumer
from parley.tools.simulation.share_group_ledger import ShareGroupLedger
from parley.tools.simulation.share_group_members import ShareGroupMember
from parley.tools.simulation.streams_group_ledger import StreamsGroupLedger
from parley.tools.simulation.streams_group_members import StreamsProgram
from parley.tools.simulation.world import World

PROGRESS_S: Final = 60.0
"""The time within which a group must be stable and have consumed everything, once the cluster has recovered. It allows
for several sessions and rebalances in a row."""
STABLE_S: Final = 2 * SESSION_S
"""A group is stable once it has kept its assignment for this long, because by then the session of every silent member
has expired."""


@dataclass
class RunningGroup:
    """A group in a run: its ledger, its members, and their tasks once they run."""

    ledger: GroupLedger | ConsumerGroupLedger | ShareGroupLedger
    members: Sequence[GroupConsumer]
    lives: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, topic: str, partitions: Sequence[int]) -> None:
        """Start the members."""
        self.lives = [asyncio.ensure_future(each.live(topic, partitions)) for each in self.members]

    def settle(self) -> None:
        """Stop disturbing the members, so that they consume what is left."""
        for member in self.members:
            member.settle()

    def lacks(self, ends: Mapping[int, int]) -> list[str]:
        """Return descriptions of what is missing until the group is stable and has consumed all partitions up to
        ``ends``."""
        return self.ledger.lacks([each.consuming for each in self.members if each.consuming is not None], ends)

    async def get_on(self, world: World, ends: Mapping[int, int], violations: Violations) -> None:
        """Wait until the group is stable and has consumed everything, then make its members leave.

        If that takes too long, reports a violation and never returns: the run ends because of the violation. Stops
        waiting if a member's task ends early; the task in ``lives`` then has the error.
        """

        def is_stable() -> bool:
            duration_s = world.loop.time() - self.ledger.newest_since
            return duration_s >= STABLE_S and not self.lacks(ends)

        try:
            await world.until(lambda: is_stable() or any(life.done() for life in self.lives), timeout=PROGRESS_S)
        except TimeoutError:
            what = "; ".join(self.lacks(ends)) or "its last rebalance is new"
            violations.report(self.ledger.PROGRESS, f"not within {PROGRESS_S:g} s: {what}")
            await asyncio.Event().wait()
        for member in self.members:
            member.stop()


def classic_group(world: World, ledger: Ledger, groups: GroupLedger) -> RunningGroup:
    """Return a group of the classic protocol."""

    def begin(name: str, addresses: Addresses, rng: Random, instance_id: str | None) -> ClassicMember:
        return ClassicMember(name, addresses, ledger, groups, rng, instance_id)

    return RunningGroup(groups, _members(world, "member", groups.releases, begin))


def consumer_group(world: World, ledger: Ledger, groups: ConsumerGroupLedger) -> RunningGroup:
    """Return a group of the consumer protocol."""

    def begin(name: str, addresses: Addresses, rng: Random, instance_id: str | None) -> ConsumerProtocolMember:
        return ConsumerProtocolMember(name, addresses, ledger, groups, rng, instance_id)

    return RunningGroup(groups, _members(world, "consumer", groups.releases, begin))


def share_group(world: World, ledger: Ledger, groups: ShareGroupLedger) -> RunningGroup:
    """Return a share group."""

    def begin(name: str, addresses: Addresses, rng: Random, instance_id: str | None) -> ShareGroupMember:
        return ShareGroupMember(name, addresses, ledger, groups, rng)

    return RunningGroup(groups, _members(world, "sharer", groups.releases, begin, has_static=False))


def streams_group(world: World, ledger: Ledger, groups: StreamsGroupLedger) -> RunningGroup:
    """Return a streams group."""

    def begin(name: str, addresses: Addresses, rng: Random, instance_id: str | None) -> StreamsProgram:
        return StreamsProgram(name, addresses, ledger, groups, rng)

    return RunningGroup(groups, _members(world, "program", groups.releases, begin, has_static=False))


def _members(
    world: World, prefix: str, releases: Callable[[str], None], begin: Begin, *, has_static: bool = True
) -> list[GroupConsumer]:
    """Return three members. The second is static if ``has_static``. The seed decides whether the third is static, too,
    and whether it outlives the faults."""
    rng = world.random(f"{prefix}s")
    is_static, stays_away = rng.random() < 0.5, rng.random() < 0.5
    return [
        GroupConsumer(f"{prefix}-1", world, releases, begin, is_static=False, stays_away=False),
        GroupConsumer(f"{prefix}-2", world, releases, begin, is_static=has_static, stays_away=False),
        GroupConsumer(f"{prefix}-3", world, releases, begin, is_static=is_static and has_static, stays_away=stays_away),
    ]
