"""A run: a cluster starts, clients use it during faults, the faults end, and the invariants are checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from parley.broker.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.tools.simulation.broker_invariants import Invariants
from parley.tools.simulation.client_invariants import FINAL_READER, Ledger, Violation, Violations
from parley.tools.simulation.clients import Producer, Reader
from parley.tools.simulation.compaction_invariants import CompactionInvariants
from parley.tools.simulation.consumer_group_ledger import ConsumerGroupLedger
from parley.tools.simulation.consumer_protocol_members import CONSUMER_GROUP
from parley.tools.simulation.consumer_protocol_members import PROPERTIES as CONSUMER_GROUP_PROPERTIES
from parley.tools.simulation.event_history import HistoryEvent
from parley.tools.simulation.fault_injection import CHECK_EVERY_S, FaultInjection
from parley.tools.simulation.faults import Fault, Kind, destructive_plan, plan
from parley.tools.simulation.group_ledger import GroupLedger
from parley.tools.simulation.groups import RunningGroup, classic_group, consumer_group, share_group, streams_group
from parley.tools.simulation.machines import Machine
from parley.tools.simulation.pauses import Pauses
from parley.tools.simulation.replay_invariant import ReplayInvariant
from parley.tools.simulation.share_group_ledger import ShareGroupLedger
from parley.tools.simulation.share_group_members import GROUP_CONFIGS, SHARE_GROUP
from parley.tools.simulation.share_group_members import PROPERTIES as SHARE_GROUP_PROPERTIES
from parley.tools.simulation.streams_group_ledger import StreamsGroupLedger
from parley.tools.simulation.streams_group_members import PROPERTIES as STREAMS_GROUP_PROPERTIES
from parley.tools.simulation.streams_group_members import STREAMS_GROUP
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
"""The number of keys of the producer to the compacted topic. It is low enough that most records are superseded, but
exceeds the number of records in the active segment, which is not compacted."""
KEYED_PAUSE_S = 0.1
COMPACTION_S = 10.0
"""The time, in seconds, that brokers may take at the end of a run to compact what is left."""
CREATED = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
TRANSFERS = "transfers"
"""The topic of the transactional producers."""
COORDINATORS_TOPICS = (TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
TRANSACTIONAL_IDS = ("transfer-1", "transfer-2")
GROUP_RESOURCE = 32
"""The resource type of groups in configuration requests."""
RECOVERY_S = 120.0
"""The time after the last fault, in seconds, within which all replicas must be in sync."""
LOOK_S = 1.0
"""The interval, in seconds, at which the files of all replicas are read during recovery. No other check costs as
much."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run. The seed decides the rest."""

    brokers: int = 3
    partitions: int = 2
    seconds: float = 30.0
    kinds: tuple[Kind, ...] = ()
    """The kinds of faults. If empty, the seed chooses them."""
    compacts: bool | None = None
    """True if there is also a compacted topic. If None, the seed decides."""
    faults: Sequence[Fault] | None = None
    """The faults to inject instead of those that the seed plans."""
    transactions: bool | None = None
    """True if there are also transactional producers. If None, the seed decides."""
    groups: bool | None = None
    """True if there is also a group of the classic protocol. If None, the seed decides."""
    consumer_groups: bool | None = None
    """True if there is also a group of the consumer protocol. If None, the seed decides."""
    share_groups: bool | None = None
    """True if there is also a share group. If None, the seed decides."""
    streams_groups: bool = False
    """True if there is also a streams group."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    digest: str
    """The hash of everything that happened. It is the same in each run of the seed."""
    flushes: bool
    """True if every append was synced."""
    faults: Sequence[Fault]
    violations: Sequence[Violation]
    events: Sequence[HistoryEvent] = field(repr=False)
    records_acknowledged: int
    transactions_committed: int
    generations: int
    """The last generation of the classic group in which a member received its assignment."""
    epochs: int
    """The highest epoch of the group with the consumer protocol that any member reached."""
    streams_epochs: int
    """The last epoch of the streams group that a member entered."""
    deliveries: int
    """The number of records delivered to members of the share group, counting redeliveries."""
    virtual_seconds: float
    steps: int

    @property
    def passed(self) -> bool:
        """True if no invariant was violated."""
        return not self.violations

    def around_failure(self, before: int = 80, after: int = 10) -> list[HistoryEvent]:
        """Return the last ``before`` events up to the first violation, and ``after`` events from it on. Returns an
        empty list if there is no violation."""
        if not self.violations:
            return []
        index = next((i for i, each in enumerate(self.events) if each.who == "INVARIANT"), len(self.events))
        return list(self.events[max(0, index - before) : index + after])


def simulate(seed: int, settings: Settings | None = None) -> Outcome:
    """Run the simulation of one seed to its end, or to the first violation. Violations are returned, not raised."""
    settings = settings or Settings()
    world = World(str(seed))
    flushes = world.random("flushes").random() < 0.3
    if flushes:
        world.properties["log.flush.interval.messages"] = "1"
    compacts = settings.compacts
    if compacts is None:
        compacts = world.random("compaction").random() < 0.5
    world.properties["log.cleaner.enable"] = "true" if compacts else "false"
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        world.properties[f"{topic}.replication.factor"] = str(min(3, settings.brokers))
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        world.properties[f"{topic}.min.isr"] = str(min(2, settings.brokers))
    transacts = settings.transactions
    if transacts is None:
        transacts = world.random("transactions").random() < 0.5
    groups = settings.groups
    if groups is None:
        groups = world.random("groups").random() < 0.5
    if groups:
        world.properties["group.initial.rebalance.delay.ms"] = "500"
    consumer_groups = settings.consumer_groups
    if consumer_groups is None:
        consumer_groups = world.random("consumer groups").random() < 0.25
    if consumer_groups:
        world.properties.update(CONSUMER_GROUP_PROPERTIES)
    share_groups = settings.share_groups
    if share_groups is None:
        share_groups = world.random("share groups").random() < 0.25
    if share_groups:
        world.properties.update(SHARE_GROUP_PROPERTIES)
    if settings.streams_groups:
        world.properties.update(STREAMS_GROUP_PROPERTIES)
    protocols = {
        "classic": groups,
        "consumer": consumer_groups,
        "share": share_groups,
        "streams": settings.streams_groups,
    }
    run = _Run(
        world,
        settings,
        flushes=flushes,
        compacts=compacts,
        transacts=transacts,
        protocols={name for name, is_used in protocols.items() if is_used},
    )
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
        generations=run.group.newest_generation,
        epochs=run.consumer_group.newest_epoch,
        streams_epochs=run.streams_group.newest_epoch,
        deliveries=run.share_group.deliveries,
        virtual_seconds=world.loop.time() - 1000.0,
        steps=world.loop.steps,
    )


def _planned(world: World, settings: Settings) -> list[Fault]:
    faults = plan(world.random("faults"), settings.brokers, settings.seconds, settings.kinds)
    if not settings.kinds:
        faults += destructive_plan(world.random("destructive faults"), settings.brokers, settings.seconds)
    return sorted(faults, key=lambda fault: fault.at)


class _Run:
    def __init__(
        self,
        world: World,
        settings: Settings,
        *,
        flushes: bool,
        compacts: bool,
        transacts: bool,
        protocols: Collection[str],
    ) -> None:
        """``protocols`` names the group protocols in use: any of classic, consumer, share and streams."""
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
        self.group = GroupLedger(world.history, self.violations)
        self.consumer_group = ConsumerGroupLedger(world.history, self.violations)
        self.share_group = ShareGroupLedger(
            world.history, self.violations, lambda partition, node: self._invariants.leads(node, TOPIC, partition)
        )
        self.streams_group = StreamsGroupLedger(world.history, self.violations)
        self._has_share_group = "share" in protocols
        self._groups: list[RunningGroup] = []
        if "classic" in protocols:
            self._groups.append(classic_group(world, self.ledger, self.group))
        if "consumer" in protocols:
            self._groups.append(consumer_group(world, self.ledger, self.consumer_group))
        if self._has_share_group:
            self._groups.append(share_group(world, self.ledger, self.share_group))
        if "streams" in protocols:
            self._groups.append(streams_group(world, self.ledger, self.streams_group))
        self.faults = settings.faults if settings.faults is not None else _planned(world, settings)
        if any(fault.kind is Kind.EXCHANGE_DIRECTORIES for fault in self.faults):
            world.directories = ("data-1", "data-2")
        self._pauses: Pauses | None = None
        """The check of pauses. None while the producers need not make progress."""
        self._injection = FaultInjection(
            world,
            self.faults,
            self,
            seconds=settings.seconds,
            flushes=flushes,
            on_change=self._disturbed,
            on_restored=self._store_restored,
        )
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
        """Check the invariants at regular intervals. Returns when one is violated."""
        while not self.violations.found:
            self._invariants.check()
            self._compaction.check()
            for machine in self.world.machines.values():
                if machine.serves:
                    self._replays.check(machine, self.world.loop.time())
                    self._check_epochs(machine)
                    self._check_share_group(machine)
            if self._pauses is not None:
                if not self._injection.is_mild:
                    self._pauses.disturbed()
                self._pauses.check()
            await asyncio.sleep(CHECK_EVERY_S)

    def _check_epochs(self, machine: Machine) -> None:
        """Pass the coordinators' states to the ledgers of the consumer group and the streams group."""
        assert machine.server is not None
        for partition, shard in machine.server.parts.groups.runtime.states():
            group = shard.consumer_group(CONSUMER_GROUP)
            if group is not None:
                self.consumer_group.coordinates((machine.process, partition), shard, group)
            streams = shard.streams_group(STREAMS_GROUP)
            if streams is not None:
                self.streams_group.coordinates((machine.process, partition), shard, streams)

    def _check_share_group(self, machine: Machine) -> None:
        """Pass the offsets that share coordinators have stored to the ledger of the share group."""
        assert machine.server is not None
        for _, shard in machine.server.parts.share_state.runtime.states():
            for key, state in shard.states.items():
                self.share_group.stored(key.partition, state.start_offset)

    def _disturbed(self) -> None:
        if self._pauses is not None:
            self._pauses.disturbed()

    def _store_restored(self) -> None:
        self._invariants.store_restored()

    async def _run_cluster(self) -> None:
        world = self.world
        for broker_id in range(1, self.settings.brokers + 1):
            world.add_machine(broker_id).start()
        machines = list(world.machines.values())
        await self.until(lambda: all(machine.serves for machine in machines), "every broker has started")
        await self._create_topics()
        producers, readers = self._start_users()
        for group in self._groups:
            group.start(TOPIC, range(self.settings.partitions))
        # A restored store must not be older than the topics, or it would forget that there were transactions or groups.
        needed = COORDINATORS_TOPICS if TRANSFERS in self.topics else (OFFSETS_TOPIC,) if self._groups else ()
        if self._has_share_group:
            needed = (*needed, SHARE_STATE_TOPIC)
        await self.until(lambda: self._invariants.has_topics(needed), "the coordinators have topics")
        if self.settings.brokers >= 3:
            # TRANSFERS is excluded: its producers pause at random, replace each other, and wait for markers.
            topics = [(topic, n) for topic, count in self.topics.items() if topic != TRANSFERS for n in range(count)]
            session_s = int(world.properties["coordination.session.timeout.ms"]) / 1000
            self._pauses = Pauses(world.loop.time, self.ledger, self.violations, topics, session_s)
        await self._injection.run()
        self._pauses = None
        self._injection.end_all()
        for group in self._groups:
            group.settle()
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
                        if self._has_share_group:
                            await _set_share_group_configs(client, node)
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

    # --- The end ---

    async def _finish(self, producers: Sequence[asyncio.Task[None]], readers: Sequence[asyncio.Task[None]]) -> None:
        machines = list(self.world.machines.values())
        await self.until(lambda: all(machine.serves for machine in machines), "every broker serves again")
        await self.until(self.is_whole, "every replica is in sync and whole again", every=LOOK_S)
        for user in self._users:
            user.stopping = True
        await self.until(lambda: all(task.done() for task in (*producers, *readers)), "all is acknowledged")
        for task in (*producers, *readers):
            task.result()
        await self._finish_groups()
        await self.until(self._invariants.no_transaction_is_open, "every transaction has its markers")
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

    async def _finish_groups(self) -> None:
        """Wait until the groups have consumed everything. Then make their members leave."""
        ends = {n: self.ledger.acknowledged_end[TOPIC, n] for n in range(self.settings.partitions)}
        await asyncio.gather(*(group.get_on(self.world, ends, self.violations) for group in self._groups))
        lives = [life for group in self._groups for life in group.lives]
        await self.until(lambda: all(life.done() for life in lives), "every member has left its group")
        for life in lives:
            life.result()

    async def _until_done(self, task: asyncio.Task[None], what: str) -> None:
        await self.until(task.done, what)
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

    def is_whole(self) -> bool:
        """Return True if every replica is in sync, complete and undamaged."""
        return self.all_in_sync() and not self._invariants.damage()

    def is_out_of_sync(self, broker_id: int) -> bool:
        """Return True if the broker is in no ISR."""
        return self._invariants.is_out_of_sync(broker_id)

    def all_in_sync(self) -> bool:
        """Return True if all brokers serve, and every replica is in sync."""
        machines = self.world.machines.values()
        return all(machine.serves for machine in machines) and self._invariants.all_in_sync

    async def until(self, condition: Callable[[], bool], what: str, *, every: float = 0.05) -> None:
        """Wait for a condition, evaluated every ``every`` seconds; ``what`` describes it. If it takes too long, reports
        that the cluster did not recover and never returns: the run ends because of the violation."""
        try:
            await self.world.until(condition, timeout=RECOVERY_S, every=every)
        except TimeoutError:
            text = f"not within {RECOVERY_S:g} s: {what}. {self._invariants.describe()}"
            self.violations.report("Recovers", text)
            await asyncio.Event().wait()


async def _set_share_group_configs(client: Client, node: int) -> None:
    """Set the configuration of the share group through the broker ``node``. Raises KafkaError if that fails."""
    kind = IncrementalAlterConfigsRequest
    configs = [
        kind.AlterableConfig(name=name, config_operation=0, value=value) for name, value in GROUP_CONFIGS.items()
    ]
    resource = kind.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=SHARE_GROUP, configs=configs)
    response = await client.send(kind(resources=[resource], validate_only=False), node=node)
    code = ErrorCode(response.responses[0].error_code)
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
