"""The simulation is reproducible, correct brokers pass it, and brokers with a planted bug do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from parley.broker.metadata.types import PartitionState
from parley.protocol.client import Client
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.storage.checkpoints import write_atomically
from parley.tools.simulation.disk import Disks, torn
from parley.tools.simulation.faults import Fault, Kind
from parley.tools.simulation.scenario import Settings, simulate
from parley.tools.simulation.virtual_time_loop import SimulatedLoop, Stuck, run
from parley.tools.simulation.world import World
from tests.tools.simulation.mutants import MUTANTS, Mutant, hunt, kills, power_cuts, restored_store, runs_in_soak

SHORT = Settings(seconds=10.0)
EVERY_KIND = Settings(transactions=True, groups=True, consumer_groups=True, share_groups=True, streams_groups=True)
"""Clients of every kind."""
ALONE = {"default.replication.factor": "1", "min.insync.replicas": "1", "offsets.topic.replication.factor": "1"}


def test_time_passes_only_when_nothing_is_left_to_do() -> None:
    loop = SimulatedLoop()

    async def sleep() -> float:
        before = loop.time()
        await asyncio.sleep(3600)
        assert await loop.run_in_executor(None, lambda: 7) == 7
        return loop.time() - before

    assert run(loop, sleep()) == 3600


def test_waiting_for_ever_is_an_error() -> None:
    with pytest.raises(Stuck):
        run(SimulatedLoop(), asyncio.Event().wait())


@pytest.mark.slow
def test_a_broker_is_killed_stopped_crashed_and_shut_down() -> None:
    async def live(world: World) -> list[float]:
        machine = world.add_machine(1)
        starts = []
        for end in (machine.kill, lambda: machine.crash(world.rng), machine.shut_down):
            machine.boot()
            await world.until(lambda: machine.serves, what="start")
            starts.append(world.loop.time())
            machine.stop()
            await asyncio.sleep(20)
            machine.resume()
            await asyncio.sleep(5)
            end()
            await world.until(lambda: machine.process is None, what="end")
        return starts

    with World("one", properties=ALONE) as world:
        starts = world.run(live)
    assert len(starts) == 3
    assert not world.failures


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, *(pytest.param(each, marks=pytest.mark.soak) for each in (2, 3))])
def test_leader_epochs_in_which_nothing_was_written_are_not_used_again_after_the_store_was_restored(last: int) -> None:
    """A consumer that has seen these epochs rejects metadata with lower epochs (KIP-320). All processes were killed
    since, and ``last`` starts after the others have recovered what they can."""

    async def live(world: World) -> tuple[int, int]:
        machines = [world.add_machine(broker) for broker in (1, 2, 3)]

        def state() -> PartitionState | None:
            server = next((machine.server for machine in machines if machine.serves), None)
            return None if server is None else server.metadata.image.partition("t", 0)

        def is_in_sync() -> bool:
            known = state()
            return all(machine.serves for machine in machines) and known is not None and len(known.isr) == 3

        async def create() -> None:
            wanted = CreateTopicsRequest.CreatableTopic(
                name="t", num_partitions=1, replication_factor=3, assignments=[], configs=[]
            )
            async with Client([machine.address for machine in machines], timeout=10.0) as client:
                await client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=5000), node=await client.controller())

        for machine in machines:
            machine.start()
        await world.until(lambda: all(machine.serves for machine in machines), what="start")
        await world.client_process("admin").start(create(), name="admin")
        await world.until(is_in_sync, what="topic")
        copy = world.store.copy()
        for machine in machines * 3:
            machine.shut_down()
            await world.until(lambda machine=machine: machine.process is None, what="end")  # type: ignore[misc]
            machine.boot()
            await world.until(is_in_sync, what="restart")
        before = state()
        for machine in machines:
            machine.kill()
        world.store.restore(copy)
        for machine in sorted(machines, key=lambda machine: machine.broker_id == last):
            machine.boot()
            await asyncio.sleep(10)
        await world.until(is_in_sync, what="recovery")
        after = state()
        assert before is not None
        assert after is not None
        return before.leader_epoch, after.leader_epoch

    with World("restored", properties={"default.replication.factor": "3"}) as world:
        before, after = world.run(live)
    assert before >= 4
    assert after > before
    assert not world.failures


@pytest.mark.parametrize("seed", range(40))
def test_synced_data_survives_a_crash(tmp_path: Path, seed: int) -> None:
    with Disks(tmp_path) as disks:
        disk = disks.disk("machine")
        write_atomically(disk.path / "checkpoint", b"old")
        disk.process_died()
        fd = os.open(disk.path / "log", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * 1000)
        os.fsync(fd)
        write_atomically(disk.path / "checkpoint", b"new")
        os.write(fd, b"y" * 2000)
        os.close(fd)
        rng = Random(seed)
        disk.machine_crashed(rng)
        assert (disk.path / "checkpoint").read_bytes() == b"new"
        assert (disk.path / "log").read_bytes()[:1000] == b"x" * 1000
        assert disk.machine_crashed(rng) == [], "what is left after a crash is on the disk"


def test_pages_may_be_lost_one_by_one() -> None:
    written = b"".join(bytes([page]) * 512 for page in range(1, 9))
    fates = {torn(b"", written, Random(seed)) for seed in range(100)}
    assert {b"", written} < fates
    assert any(fate.count(0) and fate[-1] for fate in fates), "a page in the middle is lost, a later one is not"


@pytest.mark.slow
def test_clients_of_every_kind_see_their_guarantees() -> None:
    outcome = simulate(2, replace(EVERY_KIND, seconds=10.0))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.records_acknowledged
    assert outcome.transactions_committed
    assert outcome.generations
    assert outcome.epochs
    assert outcome.deliveries
    assert outcome.streams_epochs


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_the_brokers_keep_their_promises(seed: int) -> None:
    outcome = simulate(seed, SHORT)
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.records_acknowledged


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_are_atomic(seed: int) -> None:
    outcome = simulate(seed, replace(SHORT, transactions=True))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.transactions_committed


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_keeps_its_assignments_and_gets_on(seed: int) -> None:
    outcome = simulate(seed, replace(SHORT, groups=True))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.generations


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_group_of_the_consumer_protocol_keeps_its_assignments_and_gets_on(seed: int) -> None:
    outcome = simulate(seed, replace(SHORT, groups=False, consumer_groups=True))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.epochs


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_share_group_delivers_each_record_until_it_is_acknowledged(seed: int) -> None:
    outcome = simulate(seed, replace(SHORT, groups=False, share_groups=True))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.deliveries


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_streams_group_keeps_its_tasks_and_gets_on(seed: int) -> None:
    outcome = simulate(seed, replace(SHORT, groups=False, streams_groups=True))
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.streams_epochs


@pytest.mark.slow
@pytest.mark.parametrize("second", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_controller_that_stands_still_holds_up_no_change_of_an_isr(second: int) -> None:
    """A leader that is alone in the ISR has asked the controller to add its follower again. Then the controller is
    replaced."""
    away = Fault(3.0, Kind.STOP, 3, 3, 4.6, 0.0)
    frozen = Fault(7.601, Kind.STOP, second, second, 30.0, 0.0)
    outcome = simulate(7, Settings(seconds=38.0, faults=[away, frozen], transactions=False))
    assert outcome.passed, "\n".join(map(str, outcome.violations))


@pytest.mark.slow
def test_clocks_may_differ_by_minutes() -> None:
    """Leaders and coordinators move meanwhile. ``make soak`` does this with processes
    (tests/system/test_cluster.py)."""
    skews = [Fault(1.0, Kind.SKEW, broker, broker, 0.0, by_s) for broker, by_s in ((1, -420.0), (3, 600.0))]
    settings = Settings(seconds=14.0, faults=[*skews, *kills(1)], transactions=False, groups=True)
    outcome = simulate(2, settings)
    assert outcome.passed, "\n".join(map(str, outcome.violations))
    assert outcome.records_acknowledged
    assert outcome.generations


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [restored_store, power_cuts])
def test_correct_brokers_pass_the_schedules_that_find_planted_bugs(schedule: Callable[[int], list[Fault]]) -> None:
    outcome = simulate(1, Settings(seconds=20.0, faults=schedule(1)))
    assert outcome.passed, "\n".join(map(str, outcome.violations))


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    """In another process, with other hashes of strings."""
    clients = "transactions=True, groups=True, consumer_groups=True, share_groups=True, streams_groups=True"
    run = f"simulate(4, Settings(seconds=2.0, {clients})).digest"
    code = f"from parley.tools.simulation.scenario import *; print({run})"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{simulate(4, replace(EVERY_KIND, seconds=2.0)).digest}\n", done.stderr


SEEDS = range(1, 2)
SOAK_SEEDS = range(2, 101)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in SOAK_SEEDS)])
def test_the_brokers_keep_their_promises_for_long(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.passed, "\n".join(map(str, outcome.violations))


def _as_parameter(mutant: Mutant) -> object:
    marks = [pytest.mark.soak] if runs_in_soak(mutant) else []
    return pytest.param(mutant, marks=marks, id=mutant.mutate.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [_as_parameter(each) for each in MUTANTS])
def test_a_bug_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.mutate(monkeypatch)
    assert hunt(mutant) is not None, "no seed violates the invariant"
