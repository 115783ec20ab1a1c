"""The requests of a cluster to its coordination store: three brokers, 3,000 partitions in 300 topics, three replicas.

``python -m bench.traffic etcd://127.0.0.1:2379/traffic`` prints the calls of each broker in each phase of the cluster's
life. They are counted at the ``Backend`` interface, above the store's client library. The store must be empty at first.
The keys remain afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from bench.creation import new_topics
from parley import Cluster
from parley.broker import server as broker_server
from parley.broker.metadata.image import MetadataImage
from parley.broker.server import BrokerServer
from parley.consensus.backend import (
    LINEARIZABLE,
    Backend,
    Capabilities,
    Check,
    Entry,
    Event,
    Op,
    Page,
    Read,
    Session,
    TxnResult,
    Watch,
)
from parley.consensus.registry import BackendFactory, backend_factory
from parley.protocol.client import Client

BROKERS, TOPICS, PARTITIONS, REPLICAS = 3, 300, 10, 3
AT_ONCE = 50
STEADY_S = 60.0
WAIT_S = 300.0


@dataclass(slots=True)
class Traffic:
    """The calls of one broker to the store."""

    reads: int = 0
    """The number of reads of keys and pages."""
    writes: int = 0
    """The number of transactions."""
    operations: int = 0
    """The number of puts and deletes in the transactions."""
    watches: int = 0
    """The number of watches that were opened."""
    watching: int = 0
    """The number of watches that are open now. The other fields count all calls."""
    renewals: int = 0
    """The number of renewals of sessions."""

    def since(self, before: Traffic) -> Traffic:
        """Return the calls since an earlier state."""
        parts = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return Traffic(**parts | {"watching": self.watching})

    def copy(self) -> Traffic:
        """Return a copy of the current state."""
        return Traffic(*(getattr(self, each.name) for each in fields(self)))


class CountedWatch(Watch):
    """A watch that is counted while it is open."""

    def __init__(self, watch: Watch, traffic: Traffic) -> None:
        self._watch = watch
        self._traffic = traffic
        self._is_open = True
        traffic.watches += 1
        traffic.watching += 1

    async def _next(self) -> Event:
        return await self._watch._next()

    async def close(self) -> None:
        self._traffic.watching -= self._is_open
        self._is_open = False
        await self._watch.close()


class CountedBackend(Backend):
    """A backend that counts the calls to a store."""

    def __init__(self, backend: Backend, traffic: Traffic) -> None:
        self._backend = backend
        self._traffic = traffic

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        raise NotImplementedError

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    @property
    def identity(self) -> str:
        return self._backend.identity

    async def open(self, *, expect_identity: str | None = None) -> None:
        await self._backend.open(expect_identity=expect_identity)

    async def close(self) -> None:
        await self._backend.close()

    async def abandon(self) -> None:
        await self._backend.abandon()

    async def open_session(self, ttl_ms: int) -> Session:
        session = await self._backend.open_session(ttl_ms)
        traffic, renewed = self._traffic, session.renewed

        def counted(sent_at: float) -> bool:
            traffic.renewals += 1
            return renewed(sent_at)

        session.renewed = counted  # type: ignore[method-assign]
        return session

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        self._traffic.reads += 1
        return await self._backend.get(key, read=read)

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        self._traffic.reads += 1
        return await self._backend.list(prefix, limit=limit, after=after, read=read)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        self._traffic.writes += 1
        self._traffic.operations += len(ops)
        return await self._backend.txn(checks, ops)

    def watch(self, prefix: str) -> Watch:
        return CountedWatch(self._backend.watch(prefix), self._traffic)


def counting(traffic: dict[int, Traffic]) -> Callable[[Mapping[str, str]], BackendFactory]:
    """Return a replacement for ``backend_factory`` that counts the calls of the brokers in this process."""

    def counted_factory(config: Mapping[str, str]) -> BackendFactory:
        own, backend_at = traffic[int(config["broker.id"])], backend_factory(config)

        async def open_counted(url: str) -> Backend:
            return CountedBackend(await backend_at(url), own)

        return open_counted

    return counted_factory


def servers(cluster: Cluster) -> list[BrokerServer]:
    """Return the running brokers of the cluster."""
    return [each.server for each in cluster.brokers.values() if each.is_running]


async def until_settled(cluster: Cluster) -> int:
    """Wait until every partition has a running leader and all running replicas in its ISR. Returns the id of the
    controller. Raises TimeoutError after ``WAIT_S``."""
    living = {server.identity.broker_id for server in servers(cluster)}

    def settled(image: MetadataImage) -> bool:
        live = {each.broker_id for each in image.live_brokers()}
        partitions = [state for topic in image.topics.values() for state in topic.partitions]
        return (
            live == living
            and image.controller_id in living
            and len(partitions) >= TOPICS * PARTITIONS
            and all(state.leader in living and set(state.isr) == living for state in partitions)
        )

    for server in servers(cluster):
        if not await server.metadata.until(settled, WAIT_S):
            raise TimeoutError("the cluster did not settle")
    return servers(cluster)[0].metadata.image.controller_id


async def create(cluster: Cluster) -> None:
    """Create the topics, many per request."""
    async with Client(cluster.bootstrap_servers) as client:
        for first in range(0, TOPICS, AT_ONCE):
            request = new_topics(f"topic-{first}", AT_ONCE, PARTITIONS, REPLICAS)
            request.timeout_ms = 120_000
            answer = await client.send(request, timeout=150)
            assert all(each.error_code == 0 for each in answer.topics), answer.topics


async def measure(url: str) -> None:
    """Run a cluster through its phases, and print the calls in each phase."""
    traffic = {number: Traffic() for number in range(1, BROKERS + 1)}
    vars(broker_server)["backend_factory"] = counting(traffic)
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster(brokers=BROKERS, data_dir=folder, coordination_url=url) as cluster:
            before = {number: each.copy() for number, each in traffic.items()}

            def report(phase: str, controller: int) -> None:
                for number, each in traffic.items():
                    own = each.since(before[number])
                    role = "controller" if number == controller else "broker"
                    print(
                        f"| {phase} | {role} | " + " | ".join(f"{getattr(own, f.name):,}" for f in fields(own)) + " |"
                    )
                    before[number] = each.copy()
                sys.stdout.flush()

            await create(cluster)
            report("300 topics created", await until_settled(cluster))
            for number in cluster.brokers:
                await cluster.stop(number)
            report("stop of all", -1)
            await asyncio.gather(*(cluster.restart(number) for number in cluster.brokers))
            controller = await until_settled(cluster)
            report("start of all", controller)
            await asyncio.sleep(STEADY_S)
            report(f"{STEADY_S:g} s of steady state", controller)
            await cluster.kill(controller)
            report("controller killed", await until_settled(cluster))
            await cluster.restart(controller)
            report("controller back", await until_settled(cluster))


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1]))
