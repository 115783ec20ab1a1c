"""Inject the faults of a plan into a running cluster, each at its time, and end them.

``faults.py`` defines which faults may overlap, and this module enforces it. A crash without synced appends happens
alone. A fault that destroys data waits until the damage of the previous one is repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from parley.tools.simulation.faults import AFTER_SHUTDOWN, DAMAGE, DESTRUCTIVE, EXCHANGES, Fault, Kind, Scope
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.world import World

CHECK_EVERY_S: Final = 0.05
IN_TURN_S: Final = 4.0
"""The pause between two kills of ``Scope.IN_TURN``."""
COPY_EVERY_S: Final = 1.0
"""The pause between two copies of the store."""


class Cluster(Protocol):
    """The conditions of a cluster that faults wait for."""

    def all_in_sync(self) -> bool:
        """Return True if all brokers serve, and every replica is in sync."""
        ...

    def is_whole(self) -> bool:
        """Return True if every replica is in sync, complete and undamaged."""
        ...

    def is_out_of_sync(self, broker_id: int) -> bool:
        """Return True if the broker is in no ISR."""
        ...

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, which ``what`` describes. If it takes longer than a recovery may, report a violation,
        and never return."""
        ...


class FaultInjection:
    """The faults of a run, which ``run`` injects."""

    def __init__(
        self,
        world: World,
        faults: Sequence[Fault],
        cluster: Cluster,
        *,
        seconds: float,
        flushes: bool,
        on_change: Callable[[], None],
        on_restored: Callable[[], None],
    ) -> None:
        """``seconds`` is the length of the run. ``flushes`` is True if every append is synced. ``on_change()`` is
        called when a fault begins or ends, ``on_restored()`` after the store is restored to an older copy."""
        self._world = world
        self._faults = faults
        self._cluster = cluster
        self._seconds = seconds
        self._flushes = flushes
        self._on_change = on_change
        self._on_restored = on_restored
        self._rng = world.random("crashes")
        self._active: dict[Fault, None] = {}  # the faults that have begun but not ended
        self._crashing: Machine | None = None
        self._destroyed: Fault | None = None
        """The last destructive fault, or None once its damage is known to be repaired."""
        self._store_copies: list[dict[str, bytes]] = []
        self._begin = 0.0

    @property
    def is_mild(self) -> bool:
        """True if at most one broker has a fault, all destroyed data is known to be repaired, and the cluster has
        detected every crash."""
        in_trouble = {broker for fault in self._active for broker in (fault.broker, fault.other if fault.two else 0)}
        return len(in_trouble - {0}) <= 1 and self._crashing is None and self._destroyed is None

    async def run(self) -> None:
        """Inject all faults. Returns after all of them have ended and ``seconds`` have passed."""
        world = self._world
        begin = self._begin = world.loop.time()
        copying = asyncio.ensure_future(self._copy_store())
        tasks = []
        for fault in self._faults:
            await asyncio.sleep(max(0.0, begin + fault.at - world.loop.time()))
            tasks.append(asyncio.ensure_future(self._inject(fault)))
        await asyncio.sleep(max(0.0, begin + self._seconds - world.loop.time()))
        await asyncio.gather(*tasks)
        copying.cancel()

    def end_all(self) -> None:
        """End all faults: restore the network and the store, and let every broker run."""
        self._world.history.note("world", "everything is mended")
        self._world.links.heal()
        for machine in self._world.machines.values():
            machine.resume()
            machine.join_store()
            machine.boot()

    async def _inject(self, fault: Fault) -> None:
        if fault.kind in DESTRUCTIVE:
            await self._destroy_alone(fault)
            return
        if fault.kind is Kind.CRASH and not self._flushes:
            await self._crash_alone(fault)
            return
        await self._cluster.until(lambda: self._crashing is None, "a crash is over")
        await self._carry_out(fault)

    async def _carry_out(self, fault: Fault) -> None:
        world, machine, other = self._world, self._world.machines[fault.broker], self._world.machines[fault.other]
        self._began(fault)
        world.history.note("world", f"FAULT {fault}")
        match fault.kind:
            case Kind.KILL:
                machine.kill()
            case Kind.CRASH:
                machine.crash(self._rng)
            case Kind.STOP:
                machine.stop()
            case Kind.SHUT_DOWN:
                machine.shut_down()
            case Kind.ISOLATE | Kind.PART | Kind.DEAFEN:
                world.links.part(*self._sides(fault), one_way=fault.kind is Kind.DEAFEN)
            case Kind.CUT:
                world.network.cut_connections(machine.host, other.host)
            case Kind.LOSE_STORE:
                machine.cut_from_store(fault.lasts, silently=fault.amount > 0)
            case Kind.LOSE_RESPONSE:
                machine.lose_store_response(applied=fault.amount > 0)
            case Kind.SKEW:
                machine.clock.skew_s += fault.amount
        await asyncio.sleep(fault.lasts)
        await self._undo(fault, machine)
        self._ended(fault)

    def _began(self, fault: Fault) -> None:
        self._active[fault] = None
        self._on_change()

    def _ended(self, fault: Fault) -> None:
        del self._active[fault]
        self._on_change()

    def _sides(self, fault: Fault) -> tuple[list[str], list[str]]:
        """Return the two sets of hosts that a partition separates. If it is one-way, the first set cannot reach the
        second."""
        host, other = self._world.machines[fault.broker].host, self._world.machines[fault.other].host
        if fault.kind is Kind.ISOLATE:
            return [host], [each for each in self._world.hosts if each != host]
        return [other], [host]

    async def _undo(self, fault: Fault, machine: Machine) -> None:
        match fault.kind:
            case Kind.KILL:
                machine.start()
            case Kind.CRASH:
                machine.boot()
            case Kind.STOP:
                machine.resume()
            case Kind.SHUT_DOWN:
                await self._cluster.until(lambda: not machine.is_stopping, "a broker that is shutting down exits")
                machine.start()
            case Kind.ISOLATE | Kind.PART | Kind.DEAFEN:
                self._world.links.join(*self._sides(fault), one_way=fault.kind is Kind.DEAFEN)
            case Kind.LOSE_STORE:
                machine.join_store()
            case _:
                return
        self._world.history.note("world", f"MENDED {fault}")

    async def _crash_alone(self, fault: Fault) -> None:
        """Crash a machine when there is no other fault. Other faults wait until the cluster has detected the crash."""
        machine = self._world.machines[fault.broker]
        while not (
            self._crashing is None and self._destroyed is None and not self._active and self._cluster.all_in_sync()
        ):
            if self._world.loop.time() > self._begin + self._seconds:
                return  # there was no moment for it
            await asyncio.sleep(CHECK_EVERY_S)
        self._crashing = machine
        try:
            crash = asyncio.ensure_future(self._carry_out(fault))
            await asyncio.sleep(0)  # let the crash happen first: until then, everything is in sync
            await self._cluster.until(
                lambda: self._cluster.is_out_of_sync(machine.broker_id) or self._cluster.all_in_sync(),
                "a crash is noticed",
            )
        finally:
            self._crashing = None
        await crash

    # --- Destructive faults ---

    async def _copy_store(self) -> None:
        while True:
            self._store_copies.append(self._world.store.copy())
            await asyncio.sleep(COPY_EVERY_S)

    async def _destroy_alone(self, fault: Fault) -> None:
        """Inject a destructive fault once the damage of the previous one is repaired."""
        while self._destroyed is not None or self._crashing is not None:
            if self._world.loop.time() > self._begin + self._seconds:
                return  # there was no moment for it
            await asyncio.sleep(CHECK_EVERY_S)
        self._destroyed = fault
        self._began(fault)
        self._world.history.note("world", f"FAULT {fault}")
        machine, other = self._world.machines[fault.broker], self._world.machines[fault.other]
        if fault.kind in AFTER_SHUTDOWN and fault.scope is Scope.ONE:
            machine.shut_down()
            await self._cluster.until(lambda: not machine.is_stopping, "a broker that is shutting down exits")
        await self._kill_all_of(fault)
        if fault.kind in DAMAGE:
            machine.damage_disk(fault.kind, self._rng)
        elif fault.kind in EXCHANGES:
            self._exchange_disks(fault)
        else:
            self._restore_store(fault)
        if fault.scope is not Scope.ONE:
            machine.start()
        await asyncio.sleep(fault.lasts)
        if fault.kind is Kind.MISPLACE_DISKS:
            machine.kill()
            other.kill()
            machine.exchange_disks(other)
        for machine in self._world.machines.values():
            machine.boot()
        self._world.history.note("world", f"MENDED {fault}")
        self._ended(fault)
        await self._cluster.until(self._cluster.is_whole, "all replicas are whole again after a destructive fault")
        self._destroyed = None

    async def _kill_all_of(self, fault: Fault) -> None:
        machines = list(self._world.machines.values())
        if fault.scope is not Scope.ONE:
            for machine in machines:
                if machine.broker_id != fault.broker:
                    machine.kill()
                    if fault.scope is Scope.IN_TURN:
                        await asyncio.sleep(IN_TURN_S)
            for machine in machines:
                machine.kill()  # another fault may have ended meanwhile and restarted one of them
        if fault.kind in EXCHANGES:
            self._world.machines[fault.other].kill()
        self._world.machines[fault.broker].kill()

    def _exchange_disks(self, fault: Fault) -> None:
        machine, other = self._world.machines[fault.broker], self._world.machines[fault.other]
        machine.exchange_disks(other)
        for each in (machine, other):
            if fault.kind is Kind.EXCHANGE_DISKS:
                each.adopt_disk()
            else:
                each.start()

    def _restore_store(self, fault: Fault) -> None:
        age = 1 + int(abs(fault.amount) / 10 / COPY_EVERY_S)
        copy = self._store_copies[-min(age, len(self._store_copies))]
        self._world.store.restore(copy)
        self._on_restored()
        self._world.history.note("world", f"  the store is as it was {age * COPY_EVERY_S:g} s before")
