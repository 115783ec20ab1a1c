"""Clusters of real processes on this machine, and the faults that tests inject into them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from parley.protocol import errors
from parley.protocol.client import Client
from parley.tools.checker import Trial
from parley.tools.checker.trial import create
from parley.tools.fault_proxy import FaultProxy
from tests.support.ports import free_port
from tests.system.cutting import Cuts
from tests.system.running import BrokerDied, BrokerProcess

T = TypeVar("T")

WAIT_SECONDS = 60
POLL_S = 0.1
"""The interval at which a broker is asked about the state of the cluster. Constant polling would take the
CPU it needs."""
IN_SYNC_S = 300
"""Longer than any replica here takes to catch up. A replica that is still missing then will not come by itself."""
IMPATIENT = {"socket.timeout.ms": 3000}
"""Settings of clients that do not wait long for a broker that hangs."""

RATE = 100
"""Records per second of each producer: enough that every fault hits records in flight. Soak tests send more."""
SOAK_RATE = 500

SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "coordination.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
    "metrics.listener": "",
}


PASSING = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)
"""Temporary errors: brokers learn of a change one after another, and connections break with a broker. A client may
retry; librdkafka raises these errors in calls that wait for a response."""


def until_served(ask: Callable[[], T]) -> T:
    """Repeat a call until it raises no temporary error. Returns its result."""
    while True:
        try:
            return ask()
        except KafkaException as refused:
            if refused.args[0].code() not in PASSING:
                raise
            time.sleep(POLL_S)


class ClusterOfProcesses:
    """Brokers 1 to N below one folder, on the embedded store unless the overrides name another."""

    def __init__(
        self, folder: Path, brokers: int = 3, overrides: Mapping[str, str] | None = None, *, proxied: bool = False
    ) -> None:
        """With ``proxied``, clients and other brokers reach each broker through a proxy in ``links``, once the context
        is entered."""
        self.folder = folder
        self.brokers = {number: BrokerProcess(folder / f"broker-{number}") for number in range(1, brokers + 1)}
        self.links: dict[int, FaultProxy] = {}
        self.store_links: dict[int, FaultProxy] = {}
        """The proxies through which brokers reach their store, if the test uses any."""
        self.on_damage: Callable[[int], None] = lambda number: None
        """Called after a test has changed the files on a broker's disk."""
        self._cuts = Cuts()
        for number, broker in self.brokers.items():
            store = {"coordination.url": f"local://{folder}/coordination"}
            broker.overrides.update({**SETTINGS, **store, **(overrides or {}), "broker.id": str(number)})
            if proxied:
                self.links[number] = FaultProxy("127.0.0.1", broker.port, self._cuts.tap(number))

    @contextmanager
    def running(self) -> Iterator[ClusterOfProcesses]:
        """Start everything, and stop it at the end of the context."""
        for number, link in self.links.items():
            link.__enter__()
            broker = self.brokers[number]
            broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{link.port}"
            broker.bootstrap_servers = f"127.0.0.1:{link.port}"
        try:
            self.start_all()
            yield self
        finally:
            for broker in self.brokers.values():
                broker.kill()
            for link in self.links.values():
                link.__exit__(None, None, None)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start_all(self, order: tuple[int, ...] | None = None) -> None:
        """Start the brokers that are down, in this order, and wait until all serve."""
        down = [number for number in order or tuple(self.brokers) if not self.brokers[number].alive]
        for number in down:
            self.brokers[number].launch()
        for number in down:
            self.brokers[number].wait_until_ready()

    # What is what.

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def metadata(self, topic: str | None = None) -> ClusterMetadata:
        admin = self.admin
        named = [topic] if topic else []
        return until_served(lambda: admin.list_topics(*named, timeout=WAIT_SECONDS))

    def leader(self, topic: str, partition: int = 0) -> int:
        leader = -1
        while leader < 0:
            known = self.metadata(topic).topics[topic].partitions  # none if this broker does not know the topic yet
            leader = known[partition].leader if partition in known else -1
            if leader < 0:
                time.sleep(POLL_S)
        return leader

    def controller(self) -> int:
        controller = -1
        while controller < 0:
            controller = self.metadata().controller_id
            if controller < 0:
                time.sleep(POLL_S)
        return controller

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic with a new name."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        try:
            create(self.admin, NewTopic(name, partitions, 3, config=settings))
        except KafkaException as error:
            # A broker forwards the request again if the controller changes, and the first one may have done it.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return name

    def cut_off(self, number: int) -> None:
        """Block all traffic between a broker and clients, other brokers and, if it has a link to it, the store."""
        self._cuts.cut_off.add(number)
        if number in self.store_links:
            self.store_links[number].cut()

    def heal(self) -> None:
        """Start brokers that are down, resume frozen ones, and wait until every replica is in sync."""
        if self._cuts.cut_off:
            self._cuts.cut_off.clear()
            for link in self.links.values():
                link.break_all()
        for link in (*self.links.values(), *self.store_links.values()):
            link.restore()
        for broker in self.brokers.values():
            if broker.alive:
                broker.resume()
        self.start_all()
        self.wait_until_in_sync()

    def wait_until_in_sync(self) -> None:
        """Wait until each broker reports that all replicas are in sync. A broker that was frozen briefly reports an old
        state."""
        for broker in self.brokers.values():
            give_up = time.monotonic() + IN_SYNC_S
            while waits_for := asyncio.run(_not_in_sync(broker)):
                if not broker.alive:
                    raise BrokerDied(f"a broker ended by itself\n{broker.log()}")
                assert time.monotonic() < give_up, f"not in sync after {IN_SYNC_S} s: {waits_for}"
                time.sleep(POLL_S)


async def _not_in_sync(broker: BrokerProcess) -> list[str]:
    """Return what a broker reports about partitions that lack a leader or an in-sync replica."""
    try:
        async with Client(broker.bootstrap_servers) as client:
            topics = (await client.metadata()).topics
    except errors.KafkaError as error:  # it does not serve yet, or the connection has just been cut
        return [f"{broker.bootstrap_servers}: {error!r}"]
    return [
        f"{topic.name}-{each.partition_index}: leader {each.leader_id}, {each.isr_nodes} of {each.replica_nodes}"
        for topic in topics
        for each in topic.partitions
        if len(each.isr_nodes) < len(each.replica_nodes) or each.leader_id < 0
    ]


@contextmanager
def losing_nothing(
    cluster: ClusterOfProcesses,
    topic: str,
    *,
    done: Sequence[str] = (),
    rate: float = RATE,
    config: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Iterator[Trial]:
    """Run producers on a new topic with three partitions. Afterwards no client may have failed or lost a record.

    :param done: a description of the faults injected meanwhile, shown with a failure. :param config: additional
    settings of the topic. :param arguments: for ``Trial``.
    """
    trial = Trial(cluster.bootstrap_servers, topic, partitions=3, producers=2, rate=rate, **arguments)
    trial.create_topic(3, {"min.insync.replicas": "2", **(config or {})})
    with trial:
        yield trial
    assert not trial.errors, f"{done}\n{trial.errors}"
    verdict = trial.verdict()
    assert verdict.ok, f"{done}\n{verdict}"


def second_of_same_id(cluster: ClusterOfProcesses, number: int, folder: Path) -> BrokerProcess:
    """Return another broker with the id of a broker of the cluster, with another folder."""
    other = BrokerProcess(folder, port=free_port())
    kept = {key: other.overrides[key] for key in ("listeners", "log.dirs")}
    other.overrides = {**cluster.brokers[number].overrides, **kept}
    other.overrides.pop("advertised.listeners", None)
    return other
