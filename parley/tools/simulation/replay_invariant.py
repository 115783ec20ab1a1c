"""The invariant of coordinators' shards, which are rebuilt from their records after an election.

* **ReplayEqualsLive**: a coordinator's state equals the state that replaying its log gives. This includes the members
  of each group that is not rebalancing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_records import decode_generation, group_record
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.internal_topic import read_back
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.shard import ShareStateShard
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.protocol.messages.stored import GroupMetadataValue
from parley.storage.log import Log
from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.processes import Process

EVERY_S = 1.0
"""The minimum time between two comparisons of a shard, because each reads the whole log."""


class ReplayInvariant:
    """The check that the states of coordinators equal what their logs contain."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self._compared: dict[tuple[Process, str, int], tuple[float, int]] = {}

    def check(self, machine: Machine, now: float) -> None:
        """Compare each shard of a broker whose log has changed with that log. ``now`` is in seconds."""
        assert machine.process is not None
        for runtime in _runtimes(machine):
            for partition, live in runtime.states():
                log = _log(machine, runtime.topic, partition)
                at = (machine.process, runtime.topic, partition)
                since, end = self._compared.get(at, (now - EVERY_S, -1))
                if log is not None and log.log_end_offset != end and now - since >= EVERY_S:
                    self._compared[at] = now, log.log_end_offset
                    self._compare(machine, runtime, partition, log, live)

    def _compare(self, machine: Machine, runtime: CoordinatorRuntime[Any], partition: int, log: Log, live: Any) -> None:
        replayed = runtime._make_state(partition)
        read_back(log, replayed, is_lost=lambda damaged: False)
        replayed.loaded(0)
        expected, found = lasting(replayed), lasting(live)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                text = (
                    f"{machine.host} has for {name} in {runtime.topic}-{partition} {found.get(name)}; "
                    f"its log contains {expected.get(name)}"
                )
                self._violations.report("ReplayEqualsLive", text)


def lasting(state: Any) -> dict[str, Any]:
    """Return the persistent part of a shard's state, by group id, transactional id or share partition. Raises TypeError
    for any other state."""
    match state:
        case GroupShard():
            known = {
                name: (
                    _generation(group),
                    dict(group.offsets),
                    dict(group.pending_offsets),
                    _consumer(group),
                    _share(group),
                    _streams(group),
                )
                for name, group in state.groups.items()
            }
            return {name: each for name, each in known.items() if any(each)}
        case TransactionShard():
            return {
                name: (transaction, name in state.ongoing, name in state.prepared)
                for name, transaction in state.transactions.items()
            }
        case ShareStateShard():
            return {key.text: replace(stored, fenced_below=-1) for key, stored in state.states.items()}
    raise TypeError(f"cannot compare a {type(state).__name__}: its persistent state is not defined here")


def _generation(group: Group) -> GroupMetadataValue | None:
    """Return the latest generation of a group: as its members report it, or the stored one if it is rebalancing.
    Returns None if no generation is stored."""
    membership = group.membership
    if group.stored is None or membership.state not in (GroupState.STABLE, GroupState.EMPTY):
        return group.stored
    _, value = group_record(group.group_id, membership)
    assert value is not None
    return decode_generation(value)


def _consumer(group: Group) -> tuple[object, ...] | None:
    """Return the stored state of a group of the consumer protocol, or None if the group has another type."""
    known = group.consumer
    if known is None:
        return None
    return known.epoch, known.members, known.target_epoch, known.targets, known.regexes, known.owners


def _share(group: Group) -> tuple[object, ...] | None:
    """Return the stored state of a share group, or None if the group has another type."""
    known = group.share
    if known is None:
        return None
    return known.epoch, known.metadata_hash, known.members, known.target_epoch, known.targets, known.stored


def _streams(group: Group) -> tuple[object, ...] | None:
    """Return the stored state of a streams group, or None if the group has another type."""
    known = group.streams
    if known is None:
        return None
    epochs = known.epoch, known.metadata_hash, known.validated_epoch, known.last_settings, known.target_epoch
    return *epochs, known.topology, known.members, known.targets, known.owners


def _runtimes(machine: Machine) -> Iterator[CoordinatorRuntime[Any]]:
    assert machine.server is not None
    parts = machine.server.parts
    yield parts.groups.runtime
    yield parts.transactions.runtime
    yield parts.share_state.runtime


def _log(machine: Machine, topic: str, partition: int) -> Log | None:
    assert machine.server is not None
    replica = machine.server.parts.partitions.by_topic.get(topic, {}).get(partition)
    return replica.log if replica is not None and replica.is_open else None
