"""Propose, start and cancel reassignments."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from parley.broker.controller.replica_placement import ReplicaPlacement
from parley.protocol.client import Client
from parley.protocol.host_label import host_label_of
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.reassign import requests
from parley.tools.cli.reassign.plan import (
    ANY_DIRECTORY,
    Plan,
    Target,
    log_dir_moves,
    name_of,
    names_of,
    numbers,
    plan_of,
    with_factor,
)
from parley.tools.cli.reassign.throttles import (
    BROKER_THROTTLES,
    FOLLOWER_RATE,
    LEADER_RATE,
    LOG_DIR_RATE,
    TOPIC_THROTTLES,
    brokers_of,
    moves,
    throttled_replicas,
)

_PAUSE_S = 0.1
_VERIFY_TO_UNTHROTTLE = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)
_IN_THE_WAY = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)


@dataclass(frozen=True, slots=True)
class Execution:
    """How to execute a plan. Throttles are in bytes per second, or None for no change."""

    throttle: int | None = None
    log_dirs_throttle: int | None = None
    additional: bool = False
    may_change_factor: bool = True
    timeout_ms: int = 10_000


async def generate(
    client: Client, topics: Sequence[str], broker_ids: Sequence[int], *, rack_aware: bool, rng: Random
) -> tuple[Plan, Plan]:
    """Return the current assignment of these topics, and propose one that distributes them over these brokers.

    Raises ``CommandError`` if a topic does not exist, there are too few brokers, or (with ``rack_aware``) only some of
    the brokers have a rack.
    """
    current = await _present(client, topics)
    chosen = [one for one in requests.registrations(await requests.brokers(client)) if one.broker_id in broker_ids]
    racks = [one.rack for one in chosen]
    if rack_aware and None in racks and any(racks):
        raise CommandError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    if not rack_aware:
        chosen = [replace(one, rack=None) for one in chosen]
    placement = ReplicaPlacement(chosen)
    proposed: Plan = {}
    for topic in sorted(set(topics)):
        indexes = sorted(index for name, index in current if name == topic)
        factor = len(current[topic, indexes[0]])
        if factor > len(chosen):
            raise CommandError(
                f"The target replication factor of {factor} cannot be reached because only {len(chosen)} broker(s) are "
                "registered."
            )
        for index, replicas in zip(indexes, placement.place(len(indexes), factor, rng), strict=True):
            proposed[topic, index] = Target(replicas, (ANY_DIRECTORY,) * factor)
    return await _as_it_is(client, current), proposed


async def generate_with_factor(client: Client, topics: Sequence[str], factor: int) -> tuple[Plan, Plan]:
    """Return the current assignment of these topics, and propose one with this number of replicas.

    Raises ``CommandError`` if a topic does not exist or too few brokers are running.
    """
    current = await _present(client, topics)
    brokers = await requests.brokers(client)
    racks = {one.broker_id: one.rack or None for one in brokers}
    hosts = {one.broker_id: host_label_of(one) for one in brokers}
    return await _as_it_is(client, current), with_factor(current, factor, racks, hosts)


async def _present(client: Client, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas of these topics' partitions. Raises ``CommandError`` if a topic does not exist."""
    current = await requests.replicas(client, topics)
    missing = sorted(set(topics) - {topic for topic, _ in current})
    if missing:
        raise CommandError(f"Topic {', '.join(missing)} not found (UNKNOWN_TOPIC_OR_PARTITION).")
    return current


async def _as_it_is(client: Client, current: Mapping[TopicPartition, Sequence[int]]) -> Plan:
    everyone = {broker for replicas in current.values() for broker in replicas}
    disks = await requests.on_disk(client, current, everyone) if current else {}
    return plan_of(current, {replica: one.directory for replica, one in disks.items()})


async def prepare(client: Client, plan: Plan, how: Execution) -> Plan:
    """Check a plan, and return the plan that reverts it. Raises ``CommandError`` if the plan cannot be executed."""
    if not how.additional and await requests.ongoing(client):
        raise CommandError(_IN_THE_WAY)
    known = {broker.broker_id for broker in await requests.brokers(client)}
    for broker in sorted({broker for target in plan.values() for broker in target.replicas} - known):
        raise CommandError(f"Unknown broker id {broker}.")
    current = await requests.replicas(client, {topic for topic, _ in plan})
    missing = [name_of(where) for where in sorted(plan) if where not in current]
    if missing:
        raise CommandError(f"Unable to find partition: {', '.join(missing)} (UNKNOWN_TOPIC_OR_PARTITION).")
    return await _as_it_is(client, {where: current[where] for where in plan})


async def execute(client: Client, plan: Plan, current: Plan, how: Execution) -> None:
    """Execute the plan: set throttles, start the moves, and assign log directories. ``current`` is the plan that
    ``prepare`` returned. Does not wait for the moves to finish. Raises ``CommandError`` if a move is rejected."""
    if how.throttle is not None or how.log_dirs_throttle is not None:
        print(_VERIFY_TO_UNTHROTTLE)
    if how.throttle is not None:
        found = moves(
            await requests.ongoing(client), plan, {where: target.replicas for where, target in current.items()}
        )
        rate = str(how.throttle)
        rates = {broker: {LEADER_RATE: rate, FOLLOWER_RATE: rate} for broker in brokers_of(found)}
        await requests.set_configs(client, throttled_replicas(found), await _alive(client, rates))
        print(f"The inter-broker throttle limit was set to {how.throttle} B/s")
    wanted = log_dir_moves(plan)
    if how.log_dirs_throttle is not None:
        rate = str(how.log_dirs_throttle)
        await requests.set_configs(client, {}, {broker: {LOG_DIR_RATE: rate} for _, _, broker in wanted})
        print(f"The replica-alter-dir throttle limit was set to {how.log_dirs_throttle} B/s")
    failed = await requests.reassign(
        client,
        {where: target.replicas for where, target in plan.items()},
        may_change_factor=how.may_change_factor,
    )
    if failed:
        raise CommandError(_each("Error reassigning partition(s):", failed))
    print(f"Successfully started partition reassignment{_s(plan)} for {names_of(plan)}")
    await _place(client, wanted, how.timeout_ms)


async def _place(client: Client, wanted: Mapping[tuple[str, int, int], str], timeout_ms: int) -> None:
    """Assign the replicas to their log directories as soon as they exist on the brokers. Raises ``CommandError`` if
    that takes longer than the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    waiting = dict(wanted)
    while waiting:
        left = await requests.place(client, waiting)
        for topic, index, broker in sorted(waiting.keys() - left):
            path = waiting.pop((topic, index, broker))
            print(
                f"Successfully started moving log directory to {path} for replica {topic}-{index} with broker {broker}"
            )
        if waiting and asyncio.get_running_loop().time() >= deadline:
            names = ",".join(f"{topic}-{index}-{broker}" for topic, index, broker in sorted(waiting))
            raise CommandError(
                f"Timed out before log directory move{_s(waiting)} could be started for: {names}. "
                "Use a higher --timeout."
            )
        if waiting:
            await asyncio.sleep(_PAUSE_S)


async def cancel(client: Client, plan: Plan) -> tuple[list[TopicPartition], list[tuple[str, int, int]]]:
    """Cancel the moves of a plan. Returns the partitions that were moving between brokers, and the replicas that were
    moving between log directories.

    Raises ``CommandError`` if a cancellation is rejected.
    """
    moving = await requests.ongoing(client, plan)
    failed = await requests.reassign(client, dict.fromkeys(moving)) if moving else {}
    if failed:
        raise CommandError(_each(f"Error cancelling partition reassignment{_s(failed)} for:", failed))
    wanted = log_dir_moves(plan)
    disks = await requests.on_disk(client, plan, {broker for _, _, broker in wanted}) if wanted else {}
    back = {
        replica: one.directory
        for replica, one in disks.items()
        if replica in wanted and one.future_directory == wanted[replica]
    }
    await requests.place(client, back)
    return sorted(moving), sorted(back)


async def clear_throttles(client: Client, plan: Plan, *, say: bool = True) -> None:
    """Remove all throttles that a reassignment of these partitions may have set. ``say`` prints what is removed."""
    everyone = {broker.broker_id for broker in await requests.brokers(client)}
    brokers = sorted(everyone.union(*(target.replicas for target in plan.values())))
    topics = sorted({topic for topic, _ in plan})
    known = {topic for topic, _ in await requests.replicas(client, topics)}
    if say:
        print(f"Clearing broker-level throttles on broker{_s(brokers)} {numbers(brokers)}")
    await requests.set_configs(
        client, {}, await _alive(client, {broker: dict.fromkeys(BROKER_THROTTLES) for broker in brokers})
    )
    if say:
        print(f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}")
    await requests.set_configs(
        client, {topic: dict.fromkeys(TOPIC_THROTTLES) for topic in topics if topic in known}, {}
    )


async def _alive(client: Client, settings: Mapping[int, dict[str, str | None] | dict[str, str]]) -> dict[int, object]:
    """Return the settings of the running brokers. Prints a warning for each broker that is not running."""
    alive = {broker.broker_id for broker in await requests.brokers(client)}
    for broker in sorted(settings.keys() - alive):
        print(f"Broker {broker} is not running: its throttles stay unchanged.", file=sys.stderr)
    return {broker: each for broker, each in settings.items() if broker in alive}


def _each(title: str, failed: Mapping[TopicPartition, str]) -> str:
    return "\n".join([title, *(f"{name_of(where)}: {reason}" for where, reason in sorted(failed.items()))])


def _s(things: Sequence[object] | Mapping[TopicPartition, object] | Mapping[tuple[str, int, int], object]) -> str:
    return "" if len(things) == 1 else "s"
