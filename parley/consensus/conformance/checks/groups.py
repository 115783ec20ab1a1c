"""Checks of the group membership recipe on this store."""

from __future__ import annotations

import asyncio
import random

from parley.consensus.backend import Backend, Put
from parley.consensus.conformance.lab import LONG_TTL_MS, Lab, check, equal, refused, require
from parley.consensus.errors import AlreadyExists, Fenced
from parley.consensus.recipes.groups import Groups


async def _groups(client: Backend) -> Groups:
    return Groups(client, await client.open_session(LONG_TTL_MS), random.Random())


@check("group-incarnations")
async def _incarnations(lab: Lab) -> None:
    """Each time a member joins, its incarnation is higher, however it left; the earlier incarnation is fenced."""
    client = await lab.client()
    last = 0
    for round_ in range(6):
        groups = await _groups(client)
        membership = await groups.join("g", "me", b"%d" % round_)
        require(membership.incarnation > last, f"incarnation {membership.incarnation} came after {last}")
        last = membership.incarnation
        match round_ % 3:
            case 0:
                await membership.leave()
            case 1:
                await groups.session.close()
            case _:
                again = await (await _groups(client)).join("g", "me", b"", replace=membership.member)
                require(again.incarnation > last, f"incarnation {again.incarnation} came after {last}")
                last = again.incarnation
                await again.leave()
        await lab.within(30, membership.lost.wait(), "the membership being lost")
        async with refused(Fenced, "a write of a member that has left"):
            await client.txn([membership.guard()], [Put("x", b"")])
    equal(await client.get("x"), None, "the writes of members that had left")


@check("group-members")
async def _members(lab: Lab) -> None:
    """Every client sees the members and their data; one id belongs to one session."""
    one, two = await lab.client(), await lab.client()
    first, second = await _groups(one), await _groups(two)
    expected = {f"member/{n} ü": bytes([n, 255]) for n in range(20)}
    for n, (member, data) in enumerate(expected.items()):
        await (first if n % 2 else second).join("g", member, data)
    await first.join("other", "x", b"")
    async with refused(AlreadyExists, "joining with the id of a present member"):
        await first.join("g", "member/0 ü", b"")
    states = second.watch("g")

    async def until(wanted: dict[str, bytes]) -> None:
        async for members in states:
            if {member.id: member.data for member in members.values()} == wanted:
                return

    await lab.within(30, until(expected), "the watch showing all members")
    await first.session.close()
    expected = {member: data for n, (member, data) in enumerate(expected.items()) if not n % 2}
    await lab.within(30, until(expected), "the watch showing the remaining members")
    found = await second.members("g")
    equal({member: each.data for member, each in found.items()}, expected, "the members listed")
    await asyncio.sleep(0)
