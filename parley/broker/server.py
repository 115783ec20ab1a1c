"""The composition root: everything a broker is made of, put together in the order of its start.

A start goes: addresses bound, store opened, identity settled, logs opened, this broker registered, its partitions
given their logs, and only then the first connection accepted. Each step that has to be undone says so at once, so that
a stop is the same steps backwards, however far the start had come.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random, SystemRandom
from uuid import UUID

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.routes import routes
from parley.broker.config import BrokerConfig, TopicConfig, log_config
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.log_adoption import FoundPartition, adopt_partitions
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.periodic_elections import rebalance_leaders_periodically, reconcile_leaders_periodically
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group_records import OFFSETS_TOPIC, GroupLog
from parley.broker.coordinators.groups.offsets_topic import OffsetsTopic
from parley.broker.coordinators.groups.offsets_topic_subscriber import OffsetsTopicSubscriber
from parley.broker.membership.identity import Identity, identify, read_identities, read_stores, refusal, remember_store
from parley.broker.membership.lifecycle import Liveness
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, Endpoint, ResourceType
from parley.broker.metrics import Metrics
from parley.broker.metrics.health import Health, State
from parley.broker.metrics.observation import watch
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.limits import limits_of
from parley.broker.network.listener import Listener, Load, bind
from parley.broker.network.peers import Peers
from parley.broker.replication.fetcher_assignment import ReplicaFetchers
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_maintenance import IsrMaintenance
from parley.broker.replication.offline_replicas import OfflineReplicas
from parley.broker.replication.partition import Purgatories
from parley.broker.runtime.clock import SYSTEM_CLOCK, Clock
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.broker.store_move.participant import Moves
from parley.consensus.errors import WrongStore
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.registry import backend_factory, from_kafka_config
from parley.consensus.store_lookup import find_store
from parley.protocol.errors import KafkaError
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_directory import LogDirectory
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
"""How long a stop waits for requests under way, and for peers to take their answers."""

APPLIED_MAX_S = 1.0
"""How long a change of topics is held back from its client for brokers that have not heard of it yet."""


class BrokerServer:
    """One broker. :meth:`start` it, use it, :meth:`stop` it; it is not started twice."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: Random | None = None,
        bind: Callable[..., socket.socket] = bind,
    ) -> None:
        """``bind`` makes the sockets it listens on, as :func:`parley.broker.network.listener.bind` does."""
        self.metrics = Metrics()
        self.health = Health()
        self.metadata = Metadata(MetadataImage(""))
        self.endpoints: tuple[Endpoint, ...] = ()
        """Where clients reach the broker, by listener; known once it is started."""
        self.identity = Identity("", -1, False)
        self.failed = asyncio.Event()
        """Set when the broker cannot go on and should be stopped: its last log directory has failed."""
        self.static_config = config
        self.clock = clock
        self._bind_socket = bind
        self.rng = rng or SystemRandom()
        self.tasks = TaskSet()
        self._maintenance = TaskSet()  # outlives the other tasks, since it ends with the logs
        self._membership = TaskSet()
        self.threads = Threads.made(config.num_recovery_threads_per_data_dir * len(config.data_dirs))
        self._undo = AsyncExitStack()
        self._stopped = False
        self.failed_step = ""
        """The step in which the start failed; nothing while it has not."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the first listener, as clients are configured."""
        first = self.endpoints[0]
        return f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"

    async def start(self) -> None:
        """Start; when this returns, clients are served.

        Raises OSError (an address or a disk), CoordinationError (the store), and what the data directories raise that
        belong to somebody else; then everything is undone, and :attr:`failed_step` and a note on the error say how far
        the start had come.
        """
        try:
            await self._start()
        except BaseException as error:
            self.failed_step = self.health.step
            error.add_note(f"The broker did not start: it was {self.failed_step}.")
            await self.stop()
            raise
        self.health.ready()
        facts = {"cluster": self.identity.cluster_id, "broker": self.identity.broker_id}
        _log.info("broker started", extra={**facts, "listeners": ",".join(map(_address, self.endpoints))})

    async def stop(self) -> None:
        """Stop: accept nothing new, answer what is under way, close the logs in order. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        was_ready = self.health.state is State.READY
        self.health.stopping()
        if was_ready:
            await self._hand_over()
        await self._membership.close()
        await self._undo.aclose()
        if was_ready:
            _log.info("broker stopped", extra={"broker": self.identity.broker_id})

    async def kill(self) -> None:
        """End as a process that is killed does: nothing is answered, flushed or given back, and nobody is told.

        What was written stays, as the system keeps what a killed process wrote. For brokers inside a program.
        """
        if self._stopped:
            return
        self._stopped = True
        self.health.stopping()
        self._undo.pop_all()
        for listener in self.listeners:
            listener.stop_accepting()
        await self.moves.abandon()
        await asyncio.gather(*(listener.close(0) for listener in self.listeners))
        for tasks in (self.tasks, self._membership):
            await tasks.close()
        await self.peers.close()
        await self.logs.abandon()
        await self._maintenance.close()
        await self.threads.close()
        if self.static_config.metrics_address is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.exporter.close)

    async def _hand_over(self) -> None:
        """Controlled shutdown: what this broker leads goes to others first."""
        config = self.config()
        if config.controlled_shutdown_enable:
            try:
                await self.liveness.leave(
                    retries=config.controlled_shutdown_max_retries,
                    pause_s=config.controlled_shutdown_retry_backoff_ms / 1000,
                )
            except KafkaError as error:
                _log.warning("controlled shutdown failed: the broker just stops", extra={"reason": str(error)})

    # The steps of the start.

    async def _start(self) -> None:
        for warning in self.static_config.warnings:
            _log.warning("configuration", extra={"warning": warning})
        self._undo.push_async_callback(self.threads.close)
        sockets = await self._bind()
        await self._join_store()
        await self._open_logs()
        self._compose()
        await self._register(sockets)
        if self.identity.is_new:
            self.health.starting("adopting the topics found on disk")
            await self._adopt()
        self.health.starting("opening its partitions")
        await self.partitions.opened()
        await self.logs.set_strays_aside(self.partitions.wants)
        await self._serve(sockets)

    async def _bind(self) -> dict[str, socket.socket]:
        """Bind every listener, so that its port is known and nobody else gets it."""
        self.health.starting("binding its listeners")
        config = self.static_config
        sockets = {}
        for listener in config.bound:
            own = config.for_listener(listener.name)
            sock = self._bind_socket(
                listener.host,
                listener.port,
                send_buffer=own.socket_send_buffer_bytes,
                receive_buffer=own.socket_receive_buffer_bytes,
            )
            self._undo.callback(sock.close)
            sockets[listener.name] = sock
        ports = {name: sock.getsockname()[1] for name, sock in sockets.items()}
        hostname = ""
        if any(not each.host for each in config.advertised):  # asking the DNS may take long
            hostname = await asyncio.get_running_loop().run_in_executor(None, socket.getfqdn)
        self.endpoints = tuple(
            Endpoint(each.name, each.protocol, each.host, each.port) for each in config.advertised_at(ports, hostname)
        )
        return sockets

    async def _join_store(self) -> None:
        """Open the coordination store, and settle who we are."""
        self.health.starting("opening the coordination store")
        config = self.static_config
        directories = list(map(Path, config.data_dirs))
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(None, read_stores, directories)
        url, backend_at = from_kafka_config(config.given, config.data_dirs[0]), backend_factory(config.given)
        try:
            store = await find_store(url, backend_at, known=known, rng=self.rng)
        except WrongStore as wrong:
            raise refusal(wrong, directories) from wrong
        found = await loop.run_in_executor(None, read_identities, directories)
        self.moves = Moves(store, backend_at, self._remember_store, self.rng)
        self._undo.push_async_callback(self.moves.close)
        self.identity = await identify(
            KeyValue(store, self.rng),
            found,
            broker_id=config.broker_id,
            reserved_max=config.reserved_broker_max_id,
            may_generate=config.broker_id_generation_enable,
            rng=self.rng,
        )

    async def _remember_store(self, identity: str) -> None:
        paths = [each.path for each in self.logs.directories]
        await asyncio.get_running_loop().run_in_executor(None, remember_store, paths, identity)

    async def _open_logs(self) -> None:
        self.health.starting("opening logs")
        config = self.static_config
        self.logs = LogManager(
            list(map(Path, config.data_dirs)),
            default_config=log_config(config, {}),
            now_ms=self.clock.wall_ms,
            random=self.rng,
            start_task=self._maintenance.start,
            intervals=MaintenanceIntervals(
                retention_check_ms=config.log_retention_check_interval_ms,
                flush_check_ms=config.log_flush_scheduler_interval_ms,
                recovery_point_checkpoint_ms=config.log_flush_offset_checkpoint_interval_ms,
                log_start_checkpoint_ms=config.log_flush_start_offset_checkpoint_interval_ms,
                high_watermark_checkpoint_ms=config.replica_high_watermark_checkpoint_interval_ms,
                producer_expiration_check_ms=config.producer_id_expiration_check_interval_ms,
            ),
            recovery_threads_per_directory=config.num_recovery_threads_per_data_dir,
            producer_expiration_ms=config.producer_id_expiration_ms,
            on_offline=self._on_offline,
            on_all_offline=self.failed.set,
            executor=self.threads.upkeep,
        )
        self._undo.push_async_callback(self._maintenance.close)
        self._undo.push_async_callback(self.logs.close)
        await self.logs.open(self.identity.cluster_id, self.identity.broker_id)
        await self._remember_store(self.moves.store.identity)

    def _compose(self) -> None:
        """Make the parts and tell each of the others. What follows the metadata subscribes in the order of need."""
        self.health.starting("putting its parts together")
        broker_id, clock = self.identity.broker_id, self.clock
        self.metadata = metadata = Metadata(MetadataImage(self.identity.cluster_id))
        self.config = DynamicConfig(broker_id, self.static_config)
        self.purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
        self.partitions = HostedPartitions(
            broker_id, self.logs, self._log_config, self.purgatories, self.tasks, self.metrics
        )
        offsets = OffsetsTopic(self.partitions, self.purgatories.produce, self.config, clock.wall_ms)
        journal = GroupLog(offsets, clock.wall_ms)
        self.groups = GroupCoordinator(
            self.config, journal, offsets, self._offsets_partitions, clock.wall_ms, self.tasks, self.rng
        )
        self.limits = limits_of(self.static_config)
        self.load = Load(self.limits.queued_requests, self.limits.queued_bytes)
        self.admission = ConnectionQuotas(self.limits, self.static_config.inter_broker_listener)
        self.config.subscribe(self._apply_limits)
        metadata.subscribe(self.config.apply)
        metadata.subscribe(self.partitions.apply)
        metadata.subscribe(OffsetsTopicSubscriber(broker_id, self.groups, self.tasks).apply)
        self._compose_cluster()
        self.fetchers = ReplicaFetchers(
            broker_id,
            self.partitions,
            self.peers,
            self.config,
            self.tasks,
            self.metrics,
            epoch=self._broker_epoch,
            rng=self.rng,
        )
        metadata.subscribe(self.fetchers.apply)
        self._offline = OfflineReplicas(broker_id, self.partitions, self.peers.ask_controller, epoch=self._broker_epoch)
        metadata.subscribe(self._offline.apply)
        self.sessions = FetchSessions(
            self.static_config.max_incremental_fetch_session_cache_slots, self.rng, clock.monotonic
        )
        self.in_sync = IsrMaintenance(
            broker_id,
            self.partitions,
            self.peers.ask_controller,
            self.config,
            self.tasks,
            epoch=self._broker_epoch,
            monotonic=clock.monotonic,
        )

    def _broker_epoch(self) -> int:
        return self.liveness.broker_epoch

    def _compose_cluster(self) -> None:
        """Make what ties this broker to the others."""
        broker_id, config, listener = (
            self.identity.broker_id,
            self.static_config,
            self.static_config.inter_broker_listener,
        )
        self.peers = Peers(
            broker_id,
            self.metadata,
            listener,
            timeout_s=config.request_timeout_ms / 1000,
            connect_timeout_s=config.socket_connection_setup_timeout_ms / 1000,
        )
        self.hearers = Purgatory()
        self.publisher = MetadataPublisher(self.metadata, self.hearers)
        self.liveness = Liveness(
            self.moves,
            BrokerRegistration(
                broker_id=broker_id,
                epoch=0,
                incarnation_id=UUID(int=self.rng.getrandbits(128), version=4),
                endpoints=self.endpoints,
                rack=config.broker_rack,
            ),
            self.metadata,
            self.publisher,
            self.peers,
            listener=listener,
            session_ttl_ms=config.session_timeout_ms,
            heartbeat_ms=config.broker_heartbeat_interval_ms,
            unclean=self.unclean_allowed,
            duties=(
                lambda controller: rebalance_leaders_periodically(controller, self.config),
                lambda controller: reconcile_leaders_periodically(controller, self.config, self.unclean_allowed),
            ),
            monotonic=self.clock.monotonic,
            rng=self.rng,
        )

    async def _register(self, sockets: Mapping[str, socket.socket]) -> None:
        """Become a member of the cluster, and wait until the metadata says so."""
        self.health.starting("registering with the controller")
        for sock in sockets.values():  # who refuses connections from now on counts as gone
            sock.listen(self.static_config.socket_listen_backlog_size)
        self._undo.push_async_callback(self.peers.close)
        self._undo.push_async_callback(self._membership.close)
        self._undo.push_async_callback(self.tasks.close)
        life = self._membership.start(self.liveness.run(), name="membership")
        known = asyncio.ensure_future(self.liveness.until_registered())
        await asyncio.wait({life, known}, return_when=asyncio.FIRST_COMPLETED)
        if not known.done():
            known.cancel()
            life.result()
        life.add_done_callback(self._on_life_ended)
        self.tasks.start(self.groups.expire(), name="expiry of offsets")
        self.tasks.start(self.in_sync.run(), name="in-sync replicas")
        self.tasks.start(self._offline.run(), name="offline replicas")
        self._undo.push_async_callback(self.fetchers.close)

    def _on_life_ended(self, life: asyncio.Task[None]) -> None:
        """Membership ends with the broker; if it ends before, for good, the broker is of no use to the cluster."""
        if not life.cancelled() and (error := life.exception()) is not None:
            self.health.trouble("coordination", f"no longer a member of the cluster: {error}", fatal=True)
            self.failed.set()

    async def _adopt(self) -> None:
        """Take in the partitions found on disk when the cluster begins with them."""
        found = [
            FoundPartition(log.topic, log.partition, log.topic_id, -1 if epoch is None else epoch)
            for log in self.logs.logs
            for epoch in (log.leader_epochs.latest_epoch,)
        ]
        if found:
            adopted = await self.liveness.controller.submit(
                lambda image: adopt_partitions(
                    image,
                    found,
                    broker_id=self.identity.broker_id,
                    new_id=lambda: UUID(int=self.rng.getrandbits(128), version=4),
                    compacted=frozenset({OFFSETS_TOPIC}),
                )
            )
            _log.warning(
                "the cluster begins with the topics found on disk; their settings are not there: they keep everything "
                "(retention.ms=-1) until you set them with `parley configs`",
                extra={"topics": ",".join(adopted)},
            )

    async def _serve(self, sockets: Mapping[str, socket.socket]) -> None:
        """Accept connections."""
        dispatcher = Dispatcher(routes(self), monotonic=self.clock.monotonic)
        self.dispatcher = dispatcher
        self.listeners = [
            Listener(
                name,
                dispatcher,
                limits=self.limits,
                load=self.load,
                admission=self.admission,
                tasks=self.tasks,
                monotonic=self.clock.monotonic,
            )
            for name in sockets
        ]
        watch(self.metrics, self)
        self.health.starting("opening metrics.listener")
        await self._export_metrics()
        self._undo.push_async_callback(self._close_listeners)
        self.health.starting("accepting connections")
        for listener, sock in zip(self.listeners, sockets.values(), strict=True):
            await listener.start(sock, backlog=self.static_config.socket_listen_backlog_size)

    async def until_usable(self) -> None:
        """Wait until partitions that were made can be used: here, and at the brokers that follow."""
        await self.partitions.opened()
        await self.publisher.applied(APPLIED_MAX_S)

    async def _export_metrics(self) -> None:
        address = self.static_config.metrics_address
        if address is not None:
            from parley.broker.metrics.exporter import Exporter  # only who exports pays for prometheus_client

            loop = asyncio.get_running_loop()
            host, port = address
            self.exporter = Exporter(self.metrics, self.health, loop=loop, clock=self.clock, host=host, port=port)
            self._undo.push_async_callback(loop.run_in_executor, None, self.exporter.close)

    async def _close_listeners(self) -> None:
        """Let every client have what it is owed: nobody waits for news from a broker that stops."""
        for listener in self.listeners:
            listener.stop_accepting()
        self.purgatories.produce.expire_all()
        self.purgatories.fetch.expire_all()
        self.groups.resigned_all()
        await asyncio.gather(*(listener.close(STOP_GRACE_S) for listener in self.listeners))

    # What the parts ask.

    def _log_config(self, image: MetadataImage, topic: str) -> LogConfig:
        return log_config(self.config(), image.config(ResourceType.TOPIC, topic))

    def unclean_allowed(self, image: MetadataImage, topic: str) -> bool:
        config = TopicConfig(self.config(), image.config(ResourceType.TOPIC, topic))
        return config.unclean_leader_election_enable

    def _offsets_partitions(self) -> int:
        topic = self.metadata.image.topics.get(OFFSETS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    def _on_offline(self, directory: LogDirectory, logs: list[Log]) -> None:
        self.health.trouble(str(directory), f"offline: {directory.error}")
        self.partitions.lose_logs(logs)

    def _apply_limits(self, config: BrokerConfig) -> None:
        self.limits = self.admission.limits = limits_of(config)


def _address(endpoint: Endpoint) -> str:
    return f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
