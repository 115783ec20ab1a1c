"""The invariants checked inside the brokers throughout a run. The other invariants are in ``client_invariants.py``.

* **SingleLeaderPerEpoch**: each leader epoch of a partition, and each controller epoch, belongs to one process.
* **MonotonicEpoch**: no epoch decreases, in the store or in a broker's image; no partition epoch has two states; and no
  leader's epoch is below those in its log.
* **ReplicasAgree**: below their high watermarks all replicas hold the same batches at the same offsets.
* **ISRSound**: every live ISR member has all records below the leader's high watermark, and all acknowledged records.
* **NoCommittedLoss**: the leader's log reaches the end of the acknowledged records.
* **HighWatermarkNeverBack**: the high watermark never decreases while the same process leads in the same epoch.
* **Recovers**: soon after the last fault, all replicas are in sync and every record sent is acknowledged; soon after a
  fault that destroyed data, every replica has all committed records, unaltered.
* **OwnDisk**: no broker serves with the log directories of another broker.
* **NoFailure**: no traceback appears in a broker's log, and asyncio reports no error.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from parley.broker.controller.stored_metadata import BROKERS, CHUNK_PARTITIONS, PARTITIONS
from parley.broker.metadata.encoding import registration_from_json, state_from_json
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.replication.partition import Partition
from parley.consensus.backend import Op, Put
from parley.consensus.recipes.keyvalue import FOLDER
from parley.consensus.recipes.settled_write import unwrap
from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import headers
from parley.protocol.records.crc import verify_crc
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.segment_names import LOG_SUFFIX
from parley.tools.simulation.client_invariants import Ledger, Violations
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.processes import Process
from parley.tools.simulation.world import World

PartitionKey = tuple[UUID, str, int]
Batch = tuple[int, int, int]
"""Last offset, leader epoch and checksum of a batch."""

_READ_BYTES = 1 << 20
_PARTITION_CHUNKS = FOLDER + PARTITIONS
_REGISTRATIONS = FOLDER + BROKERS


class Invariants:
    """The invariants of the brokers in a simulated world. ``check`` reports those that are violated."""

    def __init__(self, world: World, ledger: Ledger, violations: Violations) -> None:
        self._world = world
        self._ledger = ledger
        self._violations = violations
        self._leaders: dict[tuple[PartitionKey, int], Process] = {}
        self._controllers: dict[int, Process] = {}
        self._images: dict[Process, tuple[int, int]] = {}
        self._stored: dict[PartitionKey, PartitionState] = {}
        self._leader_of_epoch: dict[tuple[PartitionKey, int], int] = {}
        self._registered: dict[int, BrokerRegistration] = {}
        self._high_watermarks: dict[tuple[Process, PartitionKey, int], int] = {}
        self._agreed: defaultdict[PartitionKey, dict[int, Batch]] = defaultdict(dict)
        self._compared: dict[tuple[Process, PartitionKey], int] = {}
        self._failures = 0
        world.store.on_write = self._written

    def check(self) -> None:
        """Check all invariants now, and report those that are violated."""
        machines = [machine for machine in self._world.machines.values() if machine.serves]
        for machine in machines:
            if machine.has_foreign_disk:
                self._violations.report("OwnDisk", f"{machine.host} serves with the disk of another broker")
            self._check_image(machine)
            for partition in partitions_of(machine):
                self._check_leader(machine, partition)
                self._compare(machine, partition)
        self._check_isr(machines)
        for failure in self._world.failures[self._failures :]:
            self._violations.report("NoFailure", failure)
        self._failures = len(self._world.failures)

    # --- The partitions as the store has them ---

    @property
    def all_in_sync(self) -> bool:
        """True if every partition has a leader and all replicas are in sync."""
        return all(state.leader >= 0 and len(state.isr) == len(state.replicas) for state in self._stored.values())

    def has_topics(self, names: Iterable[str]) -> bool:
        """Return True if all of these topics exist."""
        return {key[1] for key in self._stored}.issuperset(names)

    def no_transaction_is_open(self) -> bool:
        """Return True if no leader has an open transaction in its log."""
        logs = [
            log_of(partition)
            for machine in self._world.machines.values()
            for partition in (partitions_of(machine) if machine.serves else ())
            if partition.is_leader
        ]
        return all(log is None or log.last_stable_offset >= log.high_watermark for log in logs)

    def is_out_of_sync(self, broker_id: int) -> bool:
        """Return True if the broker is in no ISR."""
        return not any(broker_id in state.isr for state in self._stored.values())

    def damage(self) -> list[str]:
        """Read the files of all replicas on serving machines. Returns a description of each damage below the high
        watermarks: data that is missing or altered."""
        found: list[str] = []
        for machine in self._world.machines.values():
            for partition in partitions_of(machine) if machine.serves else ():
                found += self._damage_of(machine, partition)
        return found

    def _damage_of(self, machine: Machine, partition: Partition) -> Iterator[str]:
        log = log_of(partition)
        if log is None or not log.is_written:
            return
        name = f"{partition.topic}-{partition.index} at {machine.host}"
        expected, committed = log.log_start_offset, log.high_watermark
        for segment in log.segments:
            data = segment.path_of(LOG_SUFFIX).read_bytes()[: segment.size]
            try:
                for at, header in headers(data):
                    verify_crc(data, at, header)
                    if header.base_offset > expected and not log.config.compact:
                        yield f"{name} lacks offsets {expected} to {header.base_offset - 1}"
                    expected = header.next_offset
            except KafkaError as error:
                yield f"{name} is damaged at or after offset {expected}: {error}"
                return
        if expected < committed:
            yield f"{name} ends at {expected}, below its high watermark {committed}"

    def describe(self) -> str:
        """Return a description of each partition's state, and of the serving brokers."""
        stored = "; ".join(f"{key[1]}-{key[2]} {_short(state)}" for key, state in self._stored.items())
        serving = [each.host for each in self._world.machines.values() if each.serves]
        return f"{stored}; serving: {serving}; damage: {self.damage()}"

    def store_restored(self) -> None:
        """Forget the epochs seen so far, because the store was rolled back to an older state. Call this while no broker
        runs.

        Epochs that are in no log may then be used again. ``ReplicasAgree`` detects an epoch that is reused for
        different batches.
        """
        self._stored.clear()
        self._registered.clear()
        self._leaders.clear()
        self._controllers.clear()
        self._leader_of_epoch.clear()
        for key in list(self._world.store.copy()):
            self._check_entry(key)

    # --- Epochs ---

    def _check_image(self, machine: Machine) -> None:
        process, image = _process(machine), _image(machine)
        now = (image.controller_epoch, image.version)
        before = self._images.get(process, now)
        if now < before:
            self._violations.report("MonotonicEpoch", f"{machine.host} went from metadata {before} back to {now}")
        self._images[process] = now
        if image.controller_id == machine.broker_id and _controls(machine):
            holder = self._controllers.setdefault(image.controller_epoch, process)
            if holder is not process:
                self._violations.report(
                    "SingleLeaderPerEpoch",
                    f"controller epoch {image.controller_epoch} belongs to {holder.name} and to {process.name}",
                )

    def _check_leader(self, machine: Machine, partition: Partition) -> None:
        if not partition.is_leader:
            return
        process = _process(machine)
        key = (partition.topic_id, partition.topic, partition.index)
        term = (key, partition.leader_epoch)
        name = f"{partition.topic}-{partition.index}"
        holder = self._leaders.setdefault(term, process)
        if holder is not process:
            holders = (
                f"{holder.name} and {process.name}" if holder.name != process.name else f"two starts of {process.name}"
            )
            text = f"leader epoch {partition.leader_epoch} of {name} belongs to {holders}"
            self._violations.report("SingleLeaderPerEpoch", text)
        log = log_of(partition)
        if log is not None:
            newest = log.latest_epoch
            if newest is not None and newest > partition.leader_epoch:
                text = f"{process.name} leads {name} in epoch {partition.leader_epoch}; its log has epoch {newest}"
                self._violations.report("MonotonicEpoch", text)
            at = (process, *term)
            before = self._high_watermarks.get(at, 0)
            if log.high_watermark < before:
                self._violations.report(
                    "HighWatermarkNeverBack",
                    f"{process.name}, leader of {name} in epoch {partition.leader_epoch}, "
                    f"went from {before} back to {log.high_watermark}",
                )
            self._high_watermarks[at] = log.high_watermark

    def _written(self, ops: Sequence[Op]) -> None:
        """Check the entries that a transaction of the store has written."""
        for op in ops:
            if isinstance(op, Put):
                self._check_entry(op.key)

    def _check_entry(self, key: str) -> None:
        entry = self._world.store.get(key)
        if entry is not None and key.startswith(_PARTITION_CHUNKS):
            chunk = json.loads(unwrap(entry).value)
            topic, number = key.removeprefix(_PARTITION_CHUNKS).rsplit("/", 1)
            for i, state in enumerate(chunk["partitions"], int(number) * CHUNK_PARTITIONS):
                self._check_stored((UUID(chunk["topic_id"]), topic, i), state_from_json(state))
        elif entry is not None and key.startswith(_REGISTRATIONS):
            self._check_registration(registration_from_json(json.loads(unwrap(entry).value)))

    def leads(self, broker: int, topic: str, index: int) -> bool:
        """Return True if the store names this broker as the leader of the partition."""
        return any(state.leader == broker for key, state in self._stored.items() if key[1:] == (topic, index))

    def _check_stored(self, key: PartitionKey, state: PartitionState) -> None:
        before = self._stored.get(key, state)
        self._stored[key] = state
        name = f"{key[1]}-{key[2]}"
        if state == before:
            return
        self._world.history.note("store", f"{name} {_short(state)}")
        change = f"{name} was {_short(before)} and became {_short(state)}"
        if state.partition_epoch <= before.partition_epoch or state.leader_epoch < before.leader_epoch:
            self._violations.report("MonotonicEpoch", f"an epoch did not rise: {change}")
        if (
            state.leader >= 0
            and self._leader_of_epoch.setdefault((key, state.leader_epoch), state.leader) != state.leader
        ):
            self._violations.report("SingleLeaderPerEpoch", f"a leader epoch has two leaders: {change}")

    def _check_registration(self, registration: BrokerRegistration) -> None:
        before = self._registered.get(registration.broker_id, registration)
        self._registered[registration.broker_id] = registration
        how = "fenced" if registration.fenced else "alive"
        self._world.history.note("store", f"broker {registration.broker_id} epoch {registration.epoch} {how}")
        if registration.epoch < before.epoch:
            self._violations.report(
                "MonotonicEpoch",
                f"the epoch of broker {registration.broker_id} went from {before.epoch} back to {registration.epoch}",
            )

    # --- Logs ---

    def _check_isr(self, machines: Sequence[Machine]) -> None:
        """Check that every live ISR member has the records that it must have. Uses the ISRs in the store, because a
        broker's own state may be outdated."""
        serving = {machine.broker_id: machine for machine in machines}
        for (_, topic, index), state in self._stored.items():
            acknowledged = self._ledger.acknowledged_end[topic, index]
            needed, why = acknowledged, "what was acknowledged"
            leader = _hosted(serving.get(state.leader), topic, index)
            log = log_of(leader) if leader is not None and leader.leader_epoch == state.leader_epoch else None
            if log is not None and log.high_watermark > needed:
                needed, why = log.high_watermark, f"the high watermark of leader {state.leader}"
            if log is not None and log.log_end_offset < acknowledged:
                self._violations.report(
                    "NoCommittedLoss",
                    f"the log of {topic}-{index} at its leader ({_short(state)}) ends at {log.log_end_offset}; "
                    f"everything below {acknowledged} is acknowledged",
                )
            for member in state.isr:
                log = log_of(_hosted(serving.get(member), topic, index))
                if log is not None and log.log_end_offset < needed:
                    self._violations.report(
                        "ISRSound",
                        f"broker {member} is in sync for {topic}-{index} ({_short(state)}), and its log ends at "
                        f"{log.log_end_offset}, below {needed}, {why}",
                    )

    def _compare(self, machine: Machine, partition: Partition) -> None:
        """Compare the replica's new batches, up to its high watermark, with the batches of other replicas at the same
        offsets."""
        log = log_of(partition)
        if log is None or (log.config.compact and self._world.properties["log.cleaner.enable"] == "true"):
            return  # brokers compact their replicas at different times
        key = (partition.topic_id, partition.topic, partition.index)
        at = (_process(machine), key)
        position = self._compared.get(at, log.log_start_offset)
        if position > log.log_end_offset:
            position = log.log_start_offset  # the log was truncated: compare it again from its start
        end = min(log.high_watermark, log.log_end_offset)
        agreed = self._agreed[key]
        for base, batch in _batches(log, position, end):
            known = agreed.setdefault(base, batch)
            if known != batch:
                self._violations.report(
                    "ReplicasAgree",
                    f"{machine.host} has in {partition.topic}-{partition.index} at {base} the batch (last offset, "
                    f"epoch, checksum) {batch}; another replica has {known}",
                )
            position = batch[0] + 1
        self._compared[at] = position


def _batches(log: Log, position: int, end: int) -> Iterator[tuple[int, Batch]]:
    while position < end:
        try:
            data = log.read(position, _READ_BYTES, up_to=end, min_one_batch=True).read()
        except KafkaError:
            return
        before = position
        for _, header in headers(data):
            yield header.base_offset, (header.last_offset, header.partition_leader_epoch, header.crc)
            position = header.next_offset
        if position == before:
            return


def partitions_of(machine: Machine) -> list[Partition]:
    """Return the partitions hosted by the broker of a machine. The broker must be serving."""
    assert machine.server is not None
    return list(machine.server.parts.partitions)


def _hosted(machine: Machine | None, topic: str, index: int) -> Partition | None:
    if machine is None or machine.server is None:
        return None
    return machine.server.parts.partitions.by_topic.get(topic, {}).get(index)


def log_of(partition: Partition | None) -> Log | None:
    """Return the replica's log, or None if it is not open."""
    return partition.log if partition is not None and partition.is_open else None


def _short(state: PartitionState) -> str:
    moving = f" adding {state.adding} removing {state.removing}" if state.adding or state.removing else ""
    return (
        f"leader {state.leader} epoch {state.leader_epoch} isr {list(state.isr)} of {list(state.replicas)} "
        f"version {state.partition_epoch}{moving}"
    )


def _process(machine: Machine) -> Process:
    assert machine.process is not None
    return machine.process


def _image(machine: Machine) -> MetadataImage:
    assert machine.server is not None
    return machine.server.metadata.image


def _controls(machine: Machine) -> bool:
    assert machine.server is not None
    return machine.server.parts.lifecycle.controller.is_active
