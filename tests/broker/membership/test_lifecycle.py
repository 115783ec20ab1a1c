"""Brokers that share a store: election of the controller, fencing, rejoining, stopping. Over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parley.broker.api import forwarding
from parley.broker.config import BrokerConfig
from parley.broker.controller.brokers import fence_broker
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.embedded.cluster import Cluster
from parley.broker.membership import lifecycle as lifecycle_module
from parley.broker.membership.controller_follower import ControllerFollower
from parley.broker.membership.joining import BROKERS_GROUP, DuplicateBrokerId
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.membership.remembered_epochs import EpochFile, RememberedEpochs, read_remembered_epochs
from parley.broker.metadata import pulling as follower
from parley.broker.metadata.image import MetadataImage
from parley.broker.network.request_context import RequestContext
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed
from parley.broker.server import BrokerServer
from parley.consensus.local import backend as local
from parley.consensus.recipes.groups import Groups, Membership
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest, FetchMetadataResponse
from parley.protocol.messages.configs import IncrementalAlterConfigsRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.uuids import UUID
from tests.broker.memory_store import memory_backend

NEVER_MS = 600_000
"""A session timeout that no test waits for."""
PATIENCE_S = 30
SHORT_MS = "500"
"""The session timeout of a broker that should give up soon."""


def servers(cluster: Cluster) -> list[BrokerServer]:
    return [broker.server for broker in cluster.brokers.values() if broker.is_running]


async def everywhere(cluster: Cluster, holds: Callable[[MetadataImage], bool]) -> None:
    """Wait until this holds for the image of every running broker."""
    for server in servers(cluster):
        assert await server.metadata.until(holds, PATIENCE_S), server.metadata.image


def controller_of(cluster: Cluster) -> int:
    return servers(cluster)[0].metadata.image.controller_id


async def create(server: BrokerServer, name: str, *, factor: int = 3) -> int:
    new = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=3, replication_factor=factor, assignments=[], configs=[]
    )
    async with Client(server.bootstrap_servers) as client:
        answer = await client.send(CreateTopicsRequest(topics=[new]))
    return int(answer.topics[0].error_code)


async def test_any_broker_accepts_requests_for_the_controller_and_all_apply_the_change() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        for server in servers(cluster):
            name = f"asked-{server.identity.broker_id}"
            assert await create(server, name) == ErrorCode.NONE
            # Every broker knows the topic when the client gets its response.
            assert all(name in other.metadata.image.topics for other in servers(cluster))
        images = [server.metadata.image for server in servers(cluster)]
        assert images[0] == images[1] == images[2]
        assert sorted(images[0].brokers) == [1, 2, 3]


async def test_requests_for_a_dead_controller_wait_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka does not repeat such requests: its user would see NOT_CONTROLLER."""
    monkeypatch.setattr(forwarding, "ELECTED_MAX_S", PATIENCE_S)
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        first = controller_of(cluster)
        follower = cluster.brokers[first % 3 + 1].server
        await cluster.kill(first)
        assert await create(follower, "meanwhile", factor=2) == ErrorCode.NONE
        await everywhere(cluster, lambda image: image.controller_id not in (first, -1))


async def test_a_dynamic_change_sent_to_any_broker_reaches_all() -> None:
    async with Cluster(brokers=2, coordination_session_timeout_ms=NEVER_MS) as cluster:
        for broker_id, server in enumerate(servers(cluster), 1):
            change = IncrementalAlterConfigsRequest.AlterableConfig(
                name="log.retention.ms", config_operation=0, value=str(broker_id)
            )
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=4, resource_name="", configs=[change]
            )
            async with Client(server.bootstrap_servers) as client:
                answer = await client.send(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
            assert answer.responses[0].error_code == ErrorCode.NONE
            await everywhere(cluster, lambda image, value=str(broker_id): _default(image) == value)  # type: ignore[misc]


def _default(image: MetadataImage) -> str | None:
    entries = next((entries for resource, entries in image.configs.items() if resource.name == ""), {})
    return entries.get("log.retention.ms")


async def test_a_killed_controller_is_replaced_without_waiting_for_its_session() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        first, epoch = controller_of(cluster), servers(cluster)[0].metadata.image.controller_epoch
        await cluster.kill(first)
        await everywhere(cluster, lambda image: image.controller_id not in (first, -1))
        await everywhere(cluster, lambda image: image.brokers[first].fenced)
        assert all(server.metadata.image.controller_epoch > epoch for server in servers(cluster))
        assert await create(servers(cluster)[0], "after", factor=2) == ErrorCode.NONE
        await cluster.restart(first)
        await everywhere(cluster, lambda image: not image.brokers[first].fenced)
        assert await create(cluster.brokers[first].server, "again") == ErrorCode.NONE


async def test_a_killed_broker_is_fenced_and_its_leaders_move() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        assert await create(servers(cluster)[0], "t") == ErrorCode.NONE
        victim = next(broker_id for broker_id in cluster.brokers if broker_id != controller_of(cluster))
        await cluster.kill(victim)
        await everywhere(cluster, lambda image: image.brokers[victim].fenced)
        await everywhere(cluster, lambda image: all(p.leader not in (victim, -1) for p in image.topics["t"].partitions))


async def test_a_fenced_broker_that_is_alive_joins_again_under_a_higher_epoch() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        controller = cluster.brokers[controller_of(cluster)].server
        for victim in cluster.brokers:
            epoch = controller.metadata.image.brokers[victim].epoch
            assert await controller.parts.lifecycle.controller.submit(
                lambda image, victim=victim: fence_broker(image, victim, lambda *_: ElectionRules())  # type: ignore[misc]
            )
            await everywhere(
                cluster,
                lambda image, victim=victim, epoch=epoch: (  # type: ignore[misc]
                    not image.brokers[victim].fenced and image.brokers[victim].epoch > epoch
                ),
            )


async def test_a_clean_shutdown_leaves_the_epoch_of_the_latest_join() -> None:
    """The controller may have registered the broker under it, although the broker does not know yet."""
    async with Cluster(brokers=1) as cluster:
        (broker,) = cluster.brokers.values()
        lifecycle = broker.server.parts.lifecycle
        assert lifecycle.clean_epoch == lifecycle.registered_epoch == lifecycle.broker_epoch
        lifecycle.broker_epoch += 1
        assert lifecycle.clean_epoch == lifecycle.registered_epoch + 1
        lifecycle._epochs.note(RememberedEpochs(broker_epoch=lifecycle.broker_epoch + 1))  # a join is in progress
        assert lifecycle.clean_epoch == lifecycle.registered_epoch + 2
        lifecycle._broker = replace(lifecycle._broker, incarnation_id=UUID(int=1))  # a process not registered yet
        assert lifecycle.clean_epoch == -1


async def test_a_broker_epoch_is_on_disk_before_the_broker_joins_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the directories of a broker that is killed now would look like an older copy."""
    join, joined, directories = Groups.join, [], [tmp_path / "broker-1"]

    async def noting(self: Groups, group: str, *args: Any, **options: Any) -> Membership:
        on_disk = read_remembered_epochs(directories)
        membership = await join(self, group, *args, **options)
        if group == BROKERS_GROUP:
            joined.append((membership.incarnation, on_disk.broker_epoch))
        return membership

    monkeypatch.setattr(Groups, "join", noting)
    async with Cluster(brokers=1, data_dir=tmp_path) as cluster:
        cluster.brokers[1].server.parts.lifecycle._epoch_refused()
        await everywhere(cluster, lambda image: image.brokers[1].epoch >= 2)
        await cluster.restart(1)
    assert len(joined) >= 3
    assert all(epoch == on_disk for epoch, on_disk in joined), joined


@pytest.mark.parametrize("is_hanging", [False, True], ids=["full", "hangs"])
async def test_a_disk_that_does_not_take_the_epoch_does_not_keep_the_broker_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_hanging: bool
) -> None:
    repaired = asyncio.Event()

    async def save(self: EpochFile) -> None:
        if is_hanging:
            await repaired.wait()
        raise OSError("no space left on device")

    monkeypatch.setattr(EpochFile, "save", save)
    monkeypatch.setattr(lifecycle_module, "EPOCH_WRITE_MAX_S", 0.01)
    async with Cluster(brokers=1) as cluster:
        await everywhere(cluster, lambda image: 1 in image.brokers)
        repaired.set()
    assert "joining before the broker epoch is on disk" in caplog.text


@pytest.fixture
def lasting_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may be silent for as long as ``coordination_session_timeout_ms``, but never loses its session.

    So the brokers keep their sessions and epochs if this process stands still for longer than that.
    """
    ttl_ms = property(lambda lifecycle: NEVER_MS, lambda lifecycle, given: None)
    monkeypatch.setattr(BrokerLifecycle, "_session_ttl_ms", ttl_ms, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_sessions")
async def test_a_broker_that_requests_no_metadata_is_fenced() -> None:
    # With controlled shutdown, a broker without metadata would wait to be fenced when it stops.
    async with Cluster(brokers=2, coordination_session_timeout_ms=2000, controlled_shutdown_enable=False) as cluster:
        deaf = next(broker_id for broker_id in cluster.brokers if broker_id != controller_of(cluster))
        following = cluster.brokers[deaf].server.parts.lifecycle._controller_follower
        following.follow(None)  # it follows no controller from now on, and is still a member
        controller = cluster.brokers[controller_of(cluster)].server
        assert await controller.metadata.until(lambda image: image.brokers[deaf].fenced, PATIENCE_S)
        assert isinstance(following, ControllerFollower)


async def test_a_broker_that_has_lost_its_controller_reports_no_topic_as_unknown() -> None:
    """The topic may be new; a client that gets UNKNOWN_TOPIC_OR_PARTITION drops its records for it."""
    question = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name="new")], allow_auto_topic_creation=False
    )
    async with Cluster(
        brokers=2, coordination_session_timeout_ms=NEVER_MS, controlled_shutdown_enable=False
    ) as cluster:
        server = cluster.brokers[3 - controller_of(cluster)].server
        async with Client(server.bootstrap_servers) as client:
            assert (await client.send(question)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            server.parts.lifecycle._controller_follower.follow(None)
            while (said := (await client.send(question)).topics[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                pass
            assert said == ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_broker_may_be_superseded_until_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster(brokers=2, coordination_session_timeout_ms=NEVER_MS, broker_heartbeat_interval_ms=50) as cluster:
        controller = cluster.brokers[controller_of(cluster)].server.parts.lifecycle
        follower = cluster.brokers[3 - controller_of(cluster)].server.parts.lifecycle

        def superseded() -> tuple[bool, bool]:
            return controller.may_be_superseded, follower.may_be_superseded

        assert superseded() == (False, False)
        follower.silence._metadata_s -= NEVER_MS / 1000  # as if the process had stood still for so long
        assert superseded() == (False, True)
        noted, responded = asyncio.Event(), follower.silence.responded

        def note(*, with_metadata: bool) -> None:
            responded(with_metadata=with_metadata)
            noted.set()

        monkeypatch.setattr(follower.silence, "responded", note)
        await asyncio.wait_for(noted.wait(), PATIENCE_S)
        assert superseded() == (False, False)
        assert controller._session is not None
        controller._session.suspend()
        assert superseded() == (True, False)


class NeverAnswered(Delayed[FetchMetadataResponse]):
    """The response of a process that stands still: none, over a healthy connection."""

    def on_change(self, key: object, amount: int) -> bool:
        return False

    def expired(self) -> None: ...


@contextmanager
def silent_for(server: BrokerServer, deaf: Collection[int]) -> Iterator[asyncio.Event]:
    """Send no response to metadata requests of these brokers; yields an event that requests of other brokers set."""
    route = server.serving.dispatcher.routes[FetchMetadataRequest.API_KEY]
    answer = route.handler
    asked = asyncio.Event()
    waiting: list[NeverAnswered] = []

    def silent(context: RequestContext, request: FetchMetadataRequest) -> Any:
        if request.broker_id not in deaf:
            asked.set()
            return answer(context, request)
        waiting.append(NeverAnswered())
        return waiting[-1]

    route.handler = silent
    yield asked
    route.handler = answer
    for each in waiting:
        each.complete(FetchMetadataResponse(error_code=ErrorCode.NOT_CONTROLLER))


@pytest.mark.usefixtures("lasting_sessions")
async def test_a_controller_that_is_silent_for_most_brokers_is_replaced() -> None:
    """The controller keeps its session with the store."""
    async with Cluster(brokers=3, coordination_session_timeout_ms=500) as cluster:
        first = controller_of(cluster)
        others = [broker.server for broker_id, broker in cluster.brokers.items() if broker_id != first]
        with silent_for(cluster.brokers[first].server, cluster.brokers.keys()):
            for other in others:
                assert await other.metadata.until(lambda image: image.controller_id not in (first, -1), PATIENCE_S)
        assert await create(others[0], "after", factor=2) == ErrorCode.NONE


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_sessions")
async def test_a_request_to_a_silent_controller_is_repeated_to_the_next_one() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=1500) as cluster:
        first = controller_of(cluster)
        route = cluster.brokers[first].server.serving.dispatcher.routes[CreateTopicsRequest.API_KEY]
        asked = asyncio.Event()

        def never(context: RequestContext, request: CreateTopicsRequest) -> Any:
            asked.set()
            return NeverAnswered()

        route.handler = never
        with silent_for(cluster.brokers[first].server, cluster.brokers.keys()):
            creating = asyncio.create_task(create(cluster.brokers[first % 3 + 1].server, "late", factor=2))
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            assert await asyncio.wait_for(creating, PATIENCE_S) == ErrorCode.NONE


async def test_metadata_is_followed_again_after_a_failure_in_this_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    pull, failed = follower.pull, asyncio.Event()

    async def fail_once(*args: Any, is_whole: bool, **options: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a change that cannot be applied")
        await pull(*args, is_whole=is_whole, **options)

    async with Cluster(brokers=2, coordination_session_timeout_ms=NEVER_MS) as cluster:
        monkeypatch.setattr(follower, "pull", fail_once)
        await create(servers(cluster)[0], "during", factor=2)  # so that the pending request gets its response
        await asyncio.wait_for(failed.wait(), PATIENCE_S)
        await create(servers(cluster)[0], "after", factor=2)
        await everywhere(cluster, lambda image: "after" in image.topics)


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_sessions")
async def test_a_controller_that_is_silent_for_one_broker_stays() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=1500) as cluster:
        first = controller_of(cluster)
        deaf, other = (broker_id for broker_id in cluster.brokers if broker_id != first)
        epoch = cluster.brokers[first].server.metadata.image.controller_epoch
        hearing = cluster.brokers[other].server.parts.lifecycle.silence
        hearing._monotonic = lambda since_s=hearing._since_s: since_s  # type: ignore[misc]  # always just now
        with silent_for(cluster.brokers[other].server, ()) as asked, silent_for(cluster.brokers[first].server, {deaf}):
            for _ in range(2):
                asked.clear()
                await asyncio.wait_for(asked.wait(), PATIENCE_S)
        assert cluster.brokers[other].server.metadata.image.controller_epoch == epoch


async def test_a_second_broker_with_the_same_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parley.broker.membership.joining.PROBE_S", 0.02)
    soon = replace(local.CAPABILITIES, expiry_factor_max=0.001)  # the second gives up soon, and no session expires
    monkeypatch.setattr(local, "CAPABILITIES", soon)
    store = f"local://{tmp_path}/store"
    settings = {
        "broker.id": "5",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "coordination.url": store,
        "coordination.session.timeout.ms": str(NEVER_MS),
    }
    first = BrokerServer(BrokerConfig.from_properties({**settings, "log.dirs": f"{tmp_path}/a"}))
    second = BrokerServer(BrokerConfig.from_properties({**settings, "log.dirs": f"{tmp_path}/b"}))
    await first.start()
    try:
        with pytest.raises(DuplicateBrokerId, match=r"broker.id 5 is used .* that is alive, at 127.0.0.1:\d+"):
            await second.start()
        assert first.metadata.image.controller_id == 5
        assert not first.failed.is_set()
        assert caplog.text.count("another broker with this id is a member") == 1
        assert "task failed" not in caplog.text
    finally:
        await first.stop()


async def test_a_second_broker_with_the_same_id_fetches_nothing_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is empty: the leader must not mistake that for the log of the registered broker."""
    monkeypatch.setattr("parley.broker.membership.joining.PROBE_S", 0.1)
    url = f"local://{tmp_path}/store"
    async with Cluster(brokers=2, data_dir=tmp_path, coordination_url=url) as cluster:
        assert await create(servers(cluster)[0], "t", factor=2) == ErrorCode.NONE
        settings = {
            "broker.id": "2",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "coordination.url": url,
            "coordination.session.timeout.ms": SHORT_MS,
        }
        second = BrokerServer(BrokerConfig.from_properties({**settings, "log.dirs": f"{tmp_path}/other"}))
        fetched = Partition.follower_fetched
        epochs: list[int] = []

        def noted(partition: Partition, replica: int, at: int, start: int, clock: FetchClock, epoch: int = -1) -> None:
            epochs.append(epoch)
            fetched(partition, replica, at, start, clock, epoch)

        monkeypatch.setattr(Partition, "follower_fetched", noted)
        with pytest.raises(DuplicateBrokerId, match=r"broker.id 2 is used by another broker that is alive"):
            await second.start()
        assert -1 not in epochs


async def test_a_clean_stop_hands_over_leadership_before_anything_is_closed() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        assert await create(servers(cluster)[0], "t") == ErrorCode.NONE
        for leaver in (controller_of(cluster), None):
            if leaver is None:
                leaver = next(i for i, broker in cluster.brokers.items() if broker.is_running)
            other = next(server for server in servers(cluster) if server.identity.broker_id != leaver)
            led = {leaver}
            other.metadata.subscribe(lambda delta, image, led=led: led.add(image.topics["t"].partitions[0].leader))  # type: ignore[misc]
            await cluster.stop(leaver)
            assert -1 not in led
            await everywhere(cluster, lambda image, gone=leaver: image.brokers[gone].fenced)  # type: ignore[misc]
        (last,) = servers(cluster)
        assert await last.metadata.until(lambda image: image.controller_id == last.identity.broker_id, PATIENCE_S)
        assert {state.leader for state in last.metadata.image.topics["t"].partitions} == {last.identity.broker_id}


@pytest.mark.slow
@pytest.mark.parametrize("is_controller", [True, False])
async def test_a_stop_does_not_wait_for_a_store_that_is_down(
    is_controller: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(
        brokers=2, coordination_session_timeout_ms=NEVER_MS, controlled_shutdown_retry_backoff_ms=NEVER_MS
    ) as cluster:
        assert await create(servers(cluster)[0], "t", factor=2) == ErrorCode.NONE
        caplog.set_level("INFO")
        backends = [memory_backend(server.parts.store_move.store.backend) for server in servers(cluster)]
        for backend in backends:
            backend.disconnect()
        stopped = controller_of(cluster) if is_controller else 3 - controller_of(cluster)
        async with asyncio.timeout(PATIENCE_S):  # one attempt to hand over would take far longer
            await cluster.stop(stopped)
        (failed,) = [each for each in caplog.records if each.getMessage().startswith("controlled shutdown failed")]
        assert "the coordination store has not responded for" in failed.reason  # type: ignore[attr-defined]
        backends[2 - stopped].reconnect()
        (left,) = servers(cluster)
        assert await left.metadata.until(lambda image: image.brokers[stopped].fenced, PATIENCE_S)
    assert "the coordination store responds again" in caplog.text


@pytest.mark.slow
async def test_all_brokers_come_back_in_any_order() -> None:
    async with Cluster(brokers=3, coordination_session_timeout_ms=NEVER_MS) as cluster:
        assert await create(servers(cluster)[0], "t") == ErrorCode.NONE
        for broker_id in (1, 2, 3):
            await cluster.kill(broker_id)
        await asyncio.gather(*(cluster.restart(broker_id) for broker_id in (3, 1, 2)))
        await everywhere(cluster, lambda image: all(p.leader != -1 for p in image.topics["t"].partitions))
        await everywhere(cluster, lambda image: all(len(p.isr) == 3 for p in image.topics["t"].partitions))
