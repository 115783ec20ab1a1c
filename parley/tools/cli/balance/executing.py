"""Execute a plan: a few moves at a time, throttled, electing the preferred leader after each.

No state is kept outside the cluster. To continue an execution that was killed, plan again: moves in progress count as
done, and the new plan contains what is still missing. Throttles left behind are found in the configuration of topics
and brokers, and removed at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from parley.protocol.client import Client
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.balance.plan import Move, Plan
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.cli.cluster_client import check
from parley.tools.cli.elect_leaders import ELECTION_TYPES, elect, failures
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.reassign import requests
from parley.tools.cli.reassign.plan import ANY_DIRECTORY, Target, name_of
from parley.tools.cli.reassign.throttles import (
    FOLLOWER_RATE,
    LEADER_RATE,
    TOPIC_THROTTLES,
    Ongoing,
    brokers_of,
    moves,
    throttled_replicas,
)
from parley.tools.plurals import plural

_PAUSE_S: Final = 0.5
"""The interval at which the controller is queried for the moves in progress."""
_TOPICS_AT_ONCE: Final = 500
_OWN_SOURCES: Final = (1, 2)
"""The source codes in DescribeConfigs responses for settings that are set for the topic or the broker itself."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How to execute a plan."""

    throttle: int | None = None
    """The maximum bytes per second that a broker sends, and receives, for moves."""
    at_once: int = 10
    """The number of partitions that move at the same time."""


async def execute(client: Client, plan: Plan, how: Execution, say: Callable[[str], None]) -> None:
    """Make all moves of the plan. Returns when they and the moves already in progress are complete.

    Raises ``CommandError`` if the cluster rejects a move or a leader election, or if a move in progress has no leader
    to copy from.
    """
    waiting = {(move.topic, move.index): move for move in plan.moves}
    ongoing = await requests.ongoing(client)
    stuck = await _without_leader(client, ongoing)
    if ongoing:
        say(f"Already moving: {plural(len(ongoing), 'partition')}.")
    if how.throttle is not None and (waiting or ongoing):
        await _throttle(client, plan, ongoing, how.throttle)
        say(f"Moves are throttled to {bytes_text(how.throttle)} per second and broker.")
    refused = await _run(client, waiting, ongoing, stuck, how.at_once, say)
    refused += [
        f"{name_of(where)}: it is moving, but has no leader to copy from. Start its brokers, or stop the move with "
        "parley reassign --cancel (docs/operations.md#partitions-without-a-leader)."
        for where in sorted(stuck)
    ]
    refused += await _elect(client, plan.elections)
    if await _unthrottle(client):
        say("The throttles are removed.")
    if refused:
        raise CommandError("\n".join(["Part of the plan was not executed. Run the command again.", *refused]))


async def _run(
    client: Client,
    waiting: dict[TopicPartition, Move],
    ongoing: Mapping[TopicPartition, Ongoing],
    stuck: Collection[TopicPartition],
    at_once: int,
    say: Callable[[str], None],
) -> list[str]:
    """Start moves as others finish, until only the ``stuck`` ones are left. Returns one line for each move or leader
    election that the cluster rejected."""
    refused: list[str] = []
    ongoing = _except(stuck, ongoing)
    total, bytes_done = len(waiting), 0
    started: dict[TopicPartition, Move] = {}
    while waiting or started or ongoing:
        finished = {where: move for where, move in started.items() if where not in ongoing}
        if finished:
            refused += await _elect(client, finished)
            bytes_done += sum(move.bytes for move in finished.values())
            started = {where: move for where, move in started.items() if where in ongoing}
            done = total - len(waiting) - len(started)
            say(f"{done} of {total} partitions are moved ({bytes_text(bytes_done)}).")
        room = at_once - len(ongoing)
        batch = dict(list(waiting.items())[: max(0, room)])
        if batch:
            failed = await requests.reassign(client, {where: move.after for where, move in batch.items()})
            refused += [f"{name_of(where)}: {reason}" for where, reason in failed.items()]
            started |= {where: move for where, move in batch.items() if where not in failed}
            waiting = {where: move for where, move in waiting.items() if where not in batch}
            total -= len(failed)
        elif ongoing:
            await asyncio.sleep(_PAUSE_S)
        ongoing = _except(stuck, await requests.ongoing(client))
    return refused


def _except(
    stuck: Collection[TopicPartition], ongoing: Mapping[TopicPartition, Ongoing]
) -> Mapping[TopicPartition, Ongoing]:
    return {where: move for where, move in ongoing.items() if where not in stuck}


async def _without_leader(client: Client, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that have no leader."""
    names = sorted({topic for topic, _ in partitions})
    found = (await client.metadata(names)).topics if names else ()
    leaderless = {
        (topic.name or "", one.partition_index) for topic in found for one in topic.partitions if one.leader_id < 0
    }
    return leaderless.intersection(partitions)


async def _elect(client: Client, partitions: Mapping[TopicPartition, object] | tuple[TopicPartition, ...]) -> list[str]:
    """Elect the preferred leaders. Returns one line for each election that failed."""
    if not partitions:
        return []
    outcomes = await elect(client, ELECTION_TYPES["preferred"], sorted(partitions))
    return [
        f"{name_of(one.partition)}: the preferred leader was not elected: {one.message}" for one in failures(outcomes)
    ]


async def _throttle(client: Client, plan: Plan, ongoing: Mapping[TopicPartition, Ongoing], rate: int) -> None:
    targets = {(move.topic, move.index): Target(move.after, (ANY_DIRECTORY,) * len(move.after)) for move in plan.moves}
    found = moves(ongoing, targets, {(move.topic, move.index): move.before for move in plan.moves})
    running = {broker.broker_id for broker in await requests.brokers(client)}
    rates = {
        broker: {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)} for broker in brokers_of(found) if broker in running
    }
    await requests.set_configs(client, throttled_replicas(found), rates)


async def _unthrottle(client: Client) -> bool:
    """Remove the throttles of all topics and brokers. Returns True if there were any."""
    names = sorted(topic.name or "" for topic in (await client.metadata()).topics)
    topics: dict[str, dict[str, str | None]] = {}
    for begin in range(0, len(names), _TOPICS_AT_ONCE):
        topics |= await _set_here(client, requests.TOPIC, names[begin : begin + _TOPICS_AT_ONCE], TOPIC_THROTTLES, None)
    brokers: dict[int, dict[str, str | None]] = {}
    for broker in await requests.brokers(client):
        there = await _set_here(
            client, requests.BROKER, [str(broker.broker_id)], (LEADER_RATE, FOLLOWER_RATE), broker.broker_id
        )
        brokers |= {int(name): settings for name, settings in there.items()}
    await requests.set_configs(client, topics, brokers)
    return bool(topics or brokers)


async def _set_here(
    client: Client, kind: int, names: list[str], keys: tuple[str, ...], node: int | None
) -> dict[str, dict[str, str | None]]:
    """Return the settings among ``keys`` that are set for each topic or broker itself, not inherited. Their values are
    None, so that the caller can pass the result to ``set_configs`` to remove them. Raises ``CommandError`` if settings
    cannot be read."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(keys)
            )
            for name in names
        ]
    )
    answer = await client.send(request, node=node)
    found: dict[str, dict[str, str | None]] = {}
    for result in answer.results:
        check(result.error_code, result.error_message, doing=f"The settings of {result.resource_name}")
        own = {one.name: None for one in result.configs if one.config_source in _OWN_SOURCES}
        if own:
            found[result.resource_name] = dict(own)
    return found
