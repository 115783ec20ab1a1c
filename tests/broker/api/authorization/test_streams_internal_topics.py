"""The internal topics of a streams application are created with the permissions of its client."""

from __future__ import annotations

import asyncio

from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode
from tests.broker.api.authorization.test_hidden_names import SECRET, Doors, doors
from tests.broker.api.test_streams_groups import POLL_S, Member, details
from tests.broker.coordinators.groups.streams.bench import subtopology, topology

__all__ = ["doors"]

CHANGELOG = "g-store-changelog"


async def test_topics_are_created_with_the_rights_of_the_client(doors: Doors) -> None:
    wanted = topology(subtopology("0", [SECRET], changelogs=(CHANGELOG,)))
    member = Member(doors.alice, "g")
    await doors.allow(Operation.DESCRIBE, ResourceType.GROUP, "g")
    assert (await member.join(wanted)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    await doors.allow(Operation.READ, ResourceType.GROUP, "g")
    await doors.allow(Operation.DESCRIBE)
    assert (await member.join(wanted)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await doors.allow(Operation.DESCRIBE, ResourceType.TOPIC, CHANGELOG)
    response = await member.join(wanted)
    assert f"Internal topics are missing: {CHANGELOG}; Unauthorized to CREATE on topics {CHANGELOG}." in details(
        response
    )

    await doors.allow(Operation.CREATE, ResourceType.TOPIC, CHANGELOG)
    while "Internal topics are missing" in details(response):
        await asyncio.sleep(POLL_S)
        response = await member.beat()
        assert "Creation failed" not in details(response)
    assert CHANGELOG in {each.name for each in (await doors.admin.metadata()).topics}
