"""One run: a cluster starts, clients use it during faults, the faults end, and the invariants are checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.simulation.broker_invariants import Invariants
from parley.tools.simulation.client_invariants import FINAL_READER, Ledger, Violation, Violations
from parley.tools.simulation.clients import Producer, Reader
from parley.tools.simulation.compaction_invariants import CompactionInvariants
from parley.tools.simulation.event_history import HistoryEvent
from parley.tools.simulation.faults import DAMAGE, DESTRUCTIVE, Fault, Kind, Scope, destructive_plan, plan
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.pauses import Pauses
from parley.tools.simulation.replay_invariant import ReplayInvariant
from parley.tools.simulation.transaction_ledger import TransactionLedger
from parley.tools.simulation.transactional_clients import TransactionalProducer, committed_number
from parley.tools.simulation.virtual_time_loop import Stuck
from parley.tools.simulation.world import World

TOPIC = "records"
COMPACTED_TOPIC = "values"
COMPACTION: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3000",
}
"""The configuration of the compacted topic."""
KEYS = 40
"""The keys of the producer to the compacted topic: few enough that most records are superseded, and more than are in
the active segment, which is not compacted."""
KEYED_PAUSE_S = 0.1
COMPACTION_S = 10.0
"""How long the brokers may compact what is left at the end of a run."""
CREATED = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
TRANSFERS = "transfers"
"""The topic of the transactional producers."""
COORDINATORS_TOPICS = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
TRANSACTIONAL_IDS = ("transfer-1", "transfer-2")
CHECK_EVERY_S = 0.05
RECOVERY_S = 120.0
"""How long a cluster may take until everything is in sync after the last fault."""
IN_TURN_S = 4.0
"""The pause between two kills of ``Scope.IN_TURN``."""
COPY_EVERY_S = 1.0
"""The pause between two copies of the store."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run. The seed decides the rest."""

    brokers: int = 3
    partitions: int = 2
    seconds: float = 30.0
    kinds: tuple[Kind, ...] = ()
    """The kinds of faults; empty: the seed chooses them."""
    compacts: bool | None = None
    """True if there is a compacted topic, too; None: the seed decides."""
    faults: Sequence[Fault] | None = None
    """The faults to inject instead of those that the seed plans."""
    transactions: bool | None = None
    """True if there are transactional producers, too; None: the seed decides."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    digest: str
    """The hash of everything that happened: the same in each run of the seed."""
    flushes: bool
    """True if every append was synced."""
    faults: Sequence[Fault]
    violations: Sequence[Violation]
    events: Sequence[HistoryEvent] = field(repr=False)
    records_acknowledged: int
    transactions_committed: int
    virtual_seconds: float
    steps: int

    @property
    def passed(self) -> bool:
        """True if no invariant was violated."""
        return not self.violations

    def around_failure(self, before: int = 80, after: int = 10) -> list[HistoryEvent]:
        """The events around the first violation."""
        if not self.violations:
            return []
        index = next((i for i, each in enumerate(self.events) if each.who == "INVARIANT"), len(self.events))
        return list(self.events[max(0, index - before) : index + after])


def simulate(seed: int, settings: Settings | None = None) -> Outcome:
    """Run one seed."""
    settings = settings or Settings()
    world = World(str(seed))
    flushes = world.random("flushes").random() < 0.3
    if flushes:
        world.properties["log.flush.interval.messages"] = "1"
    compacts = settings.compacts
    if compacts is None:
        compacts = world.random("compaction").random() < 0.5
    world.properties["log.cleaner.enable"] = "true" if compacts else "false"
    for topic in ("offsets.topic", "transaction.state.log"):
        world.properties[f"{topic}.replication.factor"] = str(min(3, settings.brokers))
    world.properties["transaction.state.log.min.isr"] = str(min(2, settings.brokers))
    transacts = settings.transactions
    if transacts is None:
        transacts = world.random("transactions").random() < 0.5
    run = _Run(world, settings, flushes=flushes, compacts=compacts, transacts=transacts)
    with world:
        try:
            world.run(run.main)
        except Stuck as stuck:
            run.violations.report("Recovers", str(stuck))
    return Outcome(
        seed=seed,
        digest=world.history.digest,
        flushes=flushes,
        faults=run.faults,
        violations=run.violations.found,
        events=world.history.events,
        records_acknowledged=run.ledger.records_acknowledged,
        transactions_committed=run.transactions.committed,
        virtual_seconds=world.loop.time() - 1000.0,
        steps=world.loop.steps,
    )


def _planned(world: World, settings: Settings) -> list[Fault]:
    faults = plan(world.random("faults"), settings.brokers, settings.seconds, settings.kinds)
    if not settings.kinds:
        faults += destructive_plan(world.random("destructive faults"), settings.brokers, settings.seconds)
    return sorted(faults, key=lambda fault: fault.at)


class _Run:
    def __init__(self, world: World, settings: Settings, *, flushes: bool, compacts: bool, transacts: bool) -> None:
        self.world = world
        self.settings = settings
        self.violations = Violations(world.history)
        self.topics = {
            TOPIC: settings.partitions,
            **({COMPACTED_TOPIC: 1} if compacts else {}),
            **({TRANSFERS: settings.partitions} if transacts else {}),
        }
        """The number of partitions of each topic."""
        self.ledger = Ledger(world.history, self.violations, compacted={COMPACTED_TOPIC})
        self.transactions = TransactionLedger(world.history, self.violations)
        self.faults = settings.faults if settings.faults is not None else _planned(world, settings)
        self._flushes = flushes
        self._rng = world.random("crashes")
        self._active: dict[Fault, None] = {}  # the faults that are going on
        self._crashing: Machine | None = None
        self._destroyed: Fault | None = None
        """The destructive fault whose damage may not be mended yet."""
        self._pauses: Pauses | None = None
        """None while the producers do not have to get on."""
        self._store_copies: list[dict[str, bytes]] = []
        self._begin = 0.0
        self._invariants = Invariants(world, self.ledger, self.violations)
        self._compaction = CompactionInvariants(world, self.ledger, self.violations)
        self._replays = ReplayInvariant(self.violations)
        self._users: list[Producer | Reader | TransactionalProducer] = []

    async def main(self, world: World) -> None:
        """Run the scenario. Ends early if an invariant is violated."""
        checks = asyncio.ensure_future(self._check())
        work = asyncio.ensure_future(self._run_cluster())
        await asyncio.wait({checks, work}, return_when=asyncio.FIRST_COMPLETED)
        for each in (checks, work):
            each.cancel()
        if work.done() and not work.cancelled():
            work.result()

    async def _check(self) -> None:
        """Check the invariants until one is violated."""
        while not self.violations.found:
            self._invariants.check()
            self._compaction.check()
            for machine in self.world.machines.values():
                if machine.serves:
                    self._replays.check(machine, self.world.loop.time())
            if self._pauses is not None:
                if not self._must_continue():
                    self._pauses.disturbed()
                self._pauses.check()
            await asyncio.sleep(CHECK_EVERY_S)

    def _must_continue(self) -> bool:
        """True if the producers should get on: at most one broker has a fault, and no data was destroyed."""
        in_trouble = {broker for fault in self._active for broker in (fault.broker, fault.other if fault.two else 0)}
        return len(in_trouble - {0}) <= 1 and self._crashing is None and self._destroyed is None

    async def _run_cluster(self) -> None:
        world = self.world
        for broker_id in range(1, self.settings.brokers + 1):
            world.add_machine(broker_id).start()
        machines = list(world.machines.values())
        await self._until(lambda: all(machine.serves for machine in machines), "every broker has started")
        await self._create_topics()
        producers, readers = self._start_users()
        if TRANSFERS in self.topics:
            # A restored store must not be older than the topics, or it would forget that there were transactions.
            await self._until(lambda: self._invariants.has_topics(COORDINATORS_TOPICS), "the coordinators have topics")
        begin = self._begin = world.loop.time()
        copying = asyncio.ensure_future(self._copy_store())
        if self.settings.brokers >= 3:
            # Transactional producers pause as their seed says: they replace each other, and wait for markers.
            topics = [(topic, n) for topic, count in self.topics.items() if topic != TRANSFERS for n in range(count)]
            session_s = int(world.properties["coordination.session.timeout.ms"]) / 1000
            self._pauses = Pauses(world.loop.time, self.ledger, self.violations, topics, session_s)
        tasks = []
        for fault in self.faults:
            await asyncio.sleep(max(0.0, begin + fault.at - world.loop.time()))
            tasks.append(asyncio.ensure_future(self._inject(fault)))
        await asyncio.sleep(max(0.0, begin + self.settings.seconds - world.loop.time()))
        await asyncio.gather(*tasks)
        copying.cancel()
        self._pauses = None
        await self._end_faults()
        await self._finish(producers, readers)

    # --- Clients ---

    async def _create_topics(self) -> None:
        process = self.world.client_process("admin")
        await process.start(self._request_topics(), name="admin")

    async def _request_topics(self) -> None:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=min(3, self.settings.brokers),
                assignments=[],
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                    for key, value in (COMPACTION if name == COMPACTED_TOPIC else {}).items()
                ],
            )
            for name, partitions in self.topics.items()
        ]
        addresses = [machine.address for machine in self.world.machines.values()]
        while True:
            try:
                async with Client(addresses, timeout=10.0) as client:
                    node = await client.controller()
                    response = await client.send(CreateTopicsRequest(topics=topics, timeout_ms=5000), node=node)
                    if {topic.error_code for topic in response.topics} <= CREATED:
                        return
            except KafkaError as error:
                self.world.history.note("admin", f"create topic: {error}")
            await asyncio.sleep(0.2)

    def _start_users(self) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        world, partitions = self.world, range(self.settings.partitions)
        addresses = [machine.address for machine in world.machines.values()]
        pause_s = world.rng.choice((0.05, 0.3, 1.0))
        producers, readers = [], []
        for name in ("producer-1", "producer-2"):
            producer = Producer(name, addresses, self.ledger, world.random(name))
            producers.append(
                world.client_process(name).start(producer.run(TOPIC, partitions, pause_s=pause_s), name=name)
            )
            self._users.append(producer)
        for name in ("reader-1", "reader-2"):
            reader = Reader(name, addresses, self.ledger, world.random(name))
            readers.append(world.client_process(name).start(reader.run(TOPIC, partitions), name=name))
            self._users.append(reader)
        if COMPACTED_TOPIC in self.topics:
            name, count = "producer-3", range(self.topics[COMPACTED_TOPIC])
            keys = [f"key-{number}" for number in range(KEYS)]
            producer = Producer(name, addresses, self.ledger, world.random(name), keys)
            work = producer.run(COMPACTED_TOPIC, count, pause_s=KEYED_PAUSE_S)
            producers.append(world.client_process(name).start(work, name=name))
            reader = Reader("reader-3", addresses, self.ledger, world.random("reader-3"))
            work = reader.run(COMPACTED_TOPIC, count)
            readers.append(world.client_process(reader.name).start(work, name=reader.name))
            self._users += [producer, reader]
        for name in TRANSACTIONAL_IDS if TRANSFERS in self.topics else ():
            writer = TransactionalProducer(name, addresses, self.ledger, self.transactions, world.random(name))
            producers.append(world.client_process(name).start(writer.run(TRANSFERS, partitions), name=name))
            self._users.append(writer)
        if TRANSFERS in self.topics:
            name = "committed-reader"
            reader = Reader(name, addresses, self.ledger, world.random(name), self.transactions)
            readers.append(world.client_process(name).start(reader.run(TRANSFERS, partitions), name=name))
            self._users.append(reader)
        return producers, readers

    # --- Faults ---

    async def _inject(self, fault: Fault) -> None:
        if fault.kind in DESTRUCTIVE:
            await self._destroy_alone(fault)
            return
        if fault.kind is Kind.CRASH and not self._flushes:
            await self._crash_alone(fault)
            return
        await self._until(lambda: self._crashing is None, "a crash is over")
        await self._carry_out(fault)

    async def _carry_out(self, fault: Fault) -> None:
        world, machine, other = self.world, self.world.machines[fault.broker], self.world.machines[fault.other]
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
        if self._pauses is not None:
            self._pauses.disturbed()

    def _ended(self, fault: Fault) -> None:
        del self._active[fault]
        if self._pauses is not None:
            self._pauses.disturbed()

    def _sides(self, fault: Fault) -> tuple[list[str], list[str]]:
        """The two sets of hosts that a partition separates. If it is one-way, the first cannot reach the second."""
        host, other = self.world.machines[fault.broker].host, self.world.machines[fault.other].host
        if fault.kind is Kind.ISOLATE:
            return [host], [each for each in self.world.hosts if each != host]
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
                await self._until(lambda: not machine.is_stopping, "a broker that is shutting down exits")
                machine.start()
            case Kind.ISOLATE | Kind.PART | Kind.DEAFEN:
                self.world.links.join(*self._sides(fault), one_way=fault.kind is Kind.DEAFEN)
            case Kind.LOSE_STORE:
                machine.join_store()
            case _:
                return
        self.world.history.note("world", f"MENDED {fault}")

    async def _crash_alone(self, fault: Fault) -> None:
        """Crash a machine when there is no other fault. Other faults wait until the cluster has noticed the crash."""
        machine = self.world.machines[fault.broker]
        while not (self._crashing is None and self._destroyed is None and not self._active and self._all_in_sync()):
            if self.world.loop.time() > self._begin + self.settings.seconds:
                return  # there was no moment for it
            await asyncio.sleep(CHECK_EVERY_S)
        self._crashing = machine
        try:
            crash = asyncio.ensure_future(self._carry_out(fault))
            await asyncio.sleep(0)  # let the crash happen; before it, everything is in sync
            await self._until(
                lambda: self._invariants.is_out_of_sync(machine.broker_id) or self._all_in_sync(), "a crash is noticed"
            )
        finally:
            self._crashing = None
        await crash

    # --- Destructive faults ---

    async def _copy_store(self) -> None:
        while True:
            self._store_copies.append(self.world.store.copy())
            await asyncio.sleep(COPY_EVERY_S)

    async def _destroy_alone(self, fault: Fault) -> None:
        """Carry out a destructive fault when the damage of the one before is mended."""
        while self._destroyed is not None or self._crashing is not None:
            if self.world.loop.time() > self._begin + self.settings.seconds:
                return  # there was no moment for it
            await asyncio.sleep(CHECK_EVERY_S)
        self._destroyed = fault
        self._began(fault)
        self.world.history.note("world", f"FAULT {fault}")
        await self._kill_all_of(fault)
        if fault.kind in DAMAGE:
            self.world.machines[fault.broker].damage_disk(fault.kind, self._rng)
        else:
            self._restore_store(fault)
        if fault.scope is not Scope.ONE:
            self.world.machines[fault.broker].start()
        await asyncio.sleep(fault.lasts)
        for machine in self.world.machines.values():
            machine.boot()
        self.world.history.note("world", f"MENDED {fault}")
        self._ended(fault)
        await self._until(self._is_whole, "all replicas are whole again after a destructive fault")
        self._destroyed = None

    async def _kill_all_of(self, fault: Fault) -> None:
        machines = list(self.world.machines.values())
        if fault.scope is not Scope.ONE:
            for machine in machines:
                if machine.broker_id != fault.broker:
                    machine.kill()
                    if fault.scope is Scope.IN_TURN:
                        await asyncio.sleep(IN_TURN_S)
            for machine in machines:
                machine.kill()  # another fault may have ended and started one of them meanwhile
        self.world.machines[fault.broker].kill()

    def _restore_store(self, fault: Fault) -> None:
        age = 1 + int(abs(fault.amount) / 10 / COPY_EVERY_S)
        copy = self._store_copies[-min(age, len(self._store_copies))]
        self.world.store.restore(copy)
        self._invariants.store_restored()
        self.world.history.note("world", f"  the store is as it was {age * COPY_EVERY_S:g} s before")

    def _is_whole(self) -> bool:
        return self._all_in_sync() and not self._invariants.damage()

    async def _end_faults(self) -> None:
        self.world.history.note("world", "everything is mended")
        self.world.links.heal()
        for machine in self.world.machines.values():
            machine.resume()
            machine.join_store()
            machine.boot()

    # --- The end ---

    async def _finish(self, producers: Sequence[asyncio.Task[None]], readers: Sequence[asyncio.Task[None]]) -> None:
        machines = list(self.world.machines.values())
        await self._until(lambda: all(machine.serves for machine in machines), "every broker serves again")
        await self._until(self._is_whole, "every replica is in sync and whole again")
        for user in self._users:
            user.stopping = True
        await self._until(lambda: all(task.done() for task in (*producers, *readers)), "all is acknowledged")
        for task in (*producers, *readers):
            task.result()
        await self._until(self._invariants.no_transaction_is_open, "every transaction has its markers")
        if COMPACTED_TOPIC in self.topics:
            await asyncio.sleep(COMPACTION_S)
        for topic, partitions in self.topics.items():
            addresses = [machine.address for machine in machines]
            random = self.world.random(f"final reader of {topic}")
            transactions = self.transactions if topic == TRANSFERS else None
            final = Reader(FINAL_READER, addresses, self.ledger, random, transactions)
            process = self.world.client_process(f"{FINAL_READER}-{topic}")
            await self._until_done(
                process.start(final.run(topic, range(partitions), until_ends=True), name=FINAL_READER), "all is read"
            )
        self.ledger.judge()
        if TRANSFERS in self.topics:
            process = self.world.client_process(FINAL_READER)
            await self._until_done(process.start(self._judge_transactions(), name=FINAL_READER), "offsets are read")
        self._invariants.check()
        self._compaction.check()
        self._compaction.judge()

    async def _until_done(self, task: asyncio.Task[None], what: str) -> None:
        await self._until(task.done, what)
        task.result()

    async def _judge_transactions(self) -> None:
        offsets: dict[str, int] = {}
        async with Client([machine.address for machine in self.world.machines.values()], timeout=10.0) as client:
            while len(offsets) < len(TRANSACTIONAL_IDS):
                name = TRANSACTIONAL_IDS[len(offsets)]
                try:
                    offsets[name] = await committed_number(client, name, TRANSFERS)
                except KafkaError as error:
                    self.world.history.note(FINAL_READER, f"offsets of {name}: {error}")
                    await asyncio.sleep(0.2)
        self.transactions.judge(offsets)

    def _all_in_sync(self) -> bool:
        machines = self.world.machines.values()
        return all(machine.serves for machine in machines) and self._invariants.all_in_sync

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. If it takes too long, the cluster has not recovered."""
        try:
            await self.world.until(condition, timeout=RECOVERY_S)
        except TimeoutError:
            text = f"not within {RECOVERY_S:g} s: {what}. {self._invariants.describe()}"
            self.violations.report("Recovers", text)
            await asyncio.Event().wait()
