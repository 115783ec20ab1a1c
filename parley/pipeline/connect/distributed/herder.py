"""The herder of a worker: carries out requests, together with the other workers of its group.

Rules:

1. Only the leader writes configurations: it checks them against the log that it has read, one request after another.
   Other workers raise ``NotLeader``. (Each worker itself writes the requests to pause and to resume.)
2. A change takes effect when it is read back from the log (``config_following``).
3. Every request is a coroutine of the loop in which the herder was started, and may raise ``HerderError``. After
   ``NotLeader`` the caller sends the request to the URL in it.

A standalone worker has the same herder, with logs in memory and a group of one worker.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parley.pipeline.connect.config import ConfigDef, ConfigInfos, ConfigKey
from parley.pipeline.connect.connector import Connector, SinkConnector
from parley.pipeline.connect.connector_config import keys_of_all
from parley.pipeline.connect.distributed import signing
from parley.pipeline.connect.distributed.assignment import Share
from parley.pipeline.connect.distributed.blocking_calls import in_thread
from parley.pipeline.connect.distributed.config_following import Following, restart_plan
from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.fencing import Fencing
from parley.pipeline.connect.distributed.local_work import Running
from parley.pipeline.connect.distributed.loggers import LEVELS, Loggers
from parley.pipeline.connect.distributed.membership import Membership
from parley.pipeline.connect.distributed.protocol import PROTOCOLS, Work
from parley.pipeline.connect.distributed.statuses import StatusStore, StatusWriter
from parley.pipeline.connect.errors import ConfigError, ConnectError
from parley.pipeline.connect.herder_results import (
    AlreadyExists,
    BadRequest,
    Config,
    ConnectorInfo,
    ConnectorStatus,
    Created,
    Forbidden,
    HerderError,
    NotFound,
    NotLeader,
    Offsets,
    PluginInfo,
    Rebalancing,
    ServerInfo,
    State,
    Status,
    TargetState,
    TaskId,
)
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.source_commit import commit_of
from parley.pipeline.connect.tasks.spec import WorkerEvents
from parley.pipeline.connect.worker import Worker
from parley.protocol.errors import KafkaError
from parley.version import VERSION

_CONFLICT: Final = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
_STALE: Final = (
    "Cannot complete request momentarily due to stale configuration (typically caused by a concurrent config change)"
)
_KINDS: Final = ("sink", "source", "transformation", "predicate", "converter", "header_converter")
_CLONE: Final = Path(__file__).parents[4]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HerderSettings:
    """The settings of a herder. Times are in ms."""

    url: str
    """The URL at which other workers reach this worker's REST API, with a slash at the end."""
    cluster_id: str
    group_id: str = ""
    """The id of the workers' group; empty for a standalone worker."""
    settle_ms: int = 10_000
    """How long a request waits for a rebalance to end before it is rejected."""
    max_delay_ms: int = 300_000
    sync_timeout_ms: int = 3_000
    stop_timeout_ms: int = 10_000
    """How long a connector and its tasks may take to stop."""
    signatures: signing.SigningRules = signing.DEFAULT_RULES
    requires_signatures: bool = False
    """True if requests between workers need a signature even though the group's protocol is too old for it."""
    tls: ssl.SSLContext | None = None
    """The context that verifies other workers' certificates. None means the system's certificate authorities."""
    tracks_topics: bool = True
    allows_topic_reset: bool = True

    @property
    def worker_id(self) -> str:
        """The host:port of the worker's REST API, which identifies the worker in statuses."""
        return self.url.partition("://")[2].rstrip("/")


class Herder:
    """Carries out the requests to one worker, together with the other workers of its group.

    ``make_worker`` creates the worker. Its argument is the object that receives the worker's events.
    """

    def __init__(
        self,
        settings: HerderSettings,
        make_worker: Callable[[WorkerEvents], Worker],
        plugins: Plugins,
        configs: ConfigStore,
        statuses: StatusStore,
        membership: Membership,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._plugins = plugins
        self._configs = configs
        self._statuses = statuses
        self._membership = membership
        self.loggers = Loggers(now_ms)
        self._turn = asyncio.Lock()
        self._following = Following(
            configs,
            statuses,
            membership,
            self.loggers,
            turn=self._turn,
            rules=settings.signatures,
            tls=settings.tls,
            now_ms=now_ms,
        )
        self._status_writer = StatusWriter(statuses)
        self._running = Running(
            settings.worker_id,
            self._status_writer,
            lambda: configs.state,
            version_of=self._version_of,
            reconfigure=self._following.reconfigure,
            fence=self._following.fence,
            verify=self._following.verify,
            now_ms=now_ms,
            tracks_topics=settings.tracks_topics,
            stop_seconds=settings.stop_timeout_ms / 1000,
        )
        self._share = Share(
            settings.url,
            configs,
            self._running,
            self._status_writer,
            membership,
            max_delay_ms=settings.max_delay_ms,
            sync_seconds=settings.sync_timeout_ms / 1000,
            now_ms=now_ms,
            on_leading=self._following.lead,
        )
        self._worker = make_worker(self._running)
        self._running.use(self._worker)
        self._fencing = Fencing(configs, self._turn, self._worker.fence_tasks)
        self._following.use(self._running, self._share, self._fencing)
        self.is_ready = False
        """True if the herder has started. Before that, it does not know the connectors."""

    async def run(self) -> None:
        """Run connectors until cancelled. Then stop them and leave the group.

        Raises ConnectError if it cannot start or cannot stay in its group.
        """
        status_writer = asyncio.create_task(self._status_writer.run())
        membership: asyncio.Task[None] | None = None
        try:
            await in_thread(self._worker.start)
            await self._statuses.start()
            await self._following.start()
            membership = asyncio.create_task(self._membership.run(self._share))
            joined = asyncio.create_task(self._share.joined.wait())
            await asyncio.wait({membership, joined}, return_when=asyncio.FIRST_COMPLETED)
            self.is_ready = joined.done()
            joined.cancel()
            await asyncio.wait({membership})  # cancelling this wait does not cancel the task
            membership.result()
        finally:
            self.is_ready = False
            await self._stop(status_writer, membership)

    async def _stop(self, status_writer: asyncio.Task[None], membership: asyncio.Task[None] | None) -> None:
        """Stop all work, and only then leave the group, because other workers then start the work immediately."""
        await self._following.stop()
        await self._share.stop()
        if membership is not None:
            membership.cancel()
            await asyncio.gather(membership, return_exceptions=True)
        status_writer.cancel()
        await asyncio.gather(status_writer, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._settings.stop_timeout_ms / 1000):
                await in_thread(self._worker.stop)
        await self._configs.stop()
        await self._statuses.stop()

    async def server_info(self) -> ServerInfo:
        """Return the version of this software, and the id of its cluster."""
        return ServerInfo(VERSION, commit_of(_CLONE), self._settings.cluster_id)

    async def check(self) -> None:
        """Check that the herder carries out requests (KIP-1017): the worker is in its group, and can read the
        configurations.

        Raises Rebalancing if the worker is not in its group.
        """
        if not self._share.joined.is_set():
            raise Rebalancing(_CONFLICT)
        await self._done(self._configs.refresh())

    # Connectors.

    async def connectors(self) -> Sequence[str]:
        """Return the names of all connectors."""
        return list(self._configs.state.connectors)

    async def connector(self, name: str) -> ConnectorInfo:
        """Return a connector's configuration and tasks. Raises NotFound."""
        state = self._configs.state
        if name not in state.connectors:
            raise NotFound(f"Connector {name} not found")
        return ConnectorInfo(name, dict(state.connectors[name]), state.task_ids(name), self._kind(name))

    async def put_connector(
        self, name: str, config: Config, *, initial: TargetState | None = None, replace: bool = True
    ) -> Created:
        """Create a connector (in the ``initial`` state, KIP-980), or give it another configuration.

        Raises BadRequest if the configuration is invalid, and AlreadyExists if the connector exists and ``replace`` is
        false.
        """
        await self._settled()
        self._must_lead("set connector configs")
        infos = await self._validated(config.get("connector.class"), config)
        if infos.error_count:
            problems = "\n".join(infos.problems())
            raise BadRequest(
                f"Connector configuration is invalid and contains the following {len(infos.problems())} error(s):\n"
                f"{problems}\nYou can also find the above list of errors at the endpoint "
                "`/connector-plugins/{connectorType}/config/validate`"
            )
        async with self._turn:
            self._must_lead("set connector configs")
            is_new = name not in self._configs.state.connectors
            if not is_new and not replace:
                raise AlreadyExists(f"Connector {name} already exists")
            await self._done(self._configs.put_connector(name, config, initial))
        return Created(is_new, await self.connector(name))

    async def patch_connector(self, name: str, patch: Mapping[str, str | None]) -> Created:
        """Change some keys of a connector's configuration; None removes a key (KIP-477).

        Raises NotFound, and BadRequest if the resulting configuration is invalid.
        """
        await self._settled()
        self._must_lead("set connector configs")
        config: dict[str, str | None] = {**(await self.connector(name)).config, **patch}
        return await self.put_connector(name, {key: value for key, value in config.items() if value is not None})

    async def delete_connector(self, name: str) -> None:
        """Stop and delete a connector. Its offsets stay. Raises NotFound."""
        await self._settled()
        self._must_lead("delete connector configs")
        async with self._turn:
            await self.connector(name)
            await self._done(self._configs.delete_connector(name))
            tasks = [task for task in self._statuses.tasks if task.connector == name]
            await self._done(self._statuses.delete(name, tasks, whole=True))

    async def status(self, name: str) -> ConnectorStatus:
        """Return the last reported status of a connector and its tasks. Raises NotFound if there is none."""
        await self._caught_up()
        connector = self._statuses.connectors.get(name)
        if connector is None:
            raise NotFound(f"No status found for connector {name}")
        return ConnectorStatus(name, self._kind(name), connector, self._statuses.tasks_of(name))

    async def set_target_state(self, name: str, target: TargetState) -> None:
        """Request a target state, which the workers reach later. Raises NotFound."""
        if target is TargetState.STOPPED:
            await self._settled()
            self._must_lead("transition connectors to the STOPPED state")
        if name not in self._configs.state.connectors:
            raise NotFound(f"Unknown connector {name}")
        async with self._turn:
            await self._done(self._configs.put_target(name, target))

    async def restart_connector(self, name: str) -> None:
        """Restart the connector, but not its tasks. Raises NotFound, and NotLeader with the URL of the worker on which
        it runs.
        """
        await self._settled()
        self._must_know(name)
        self._must_have(name)
        await self._running.restart(Work(connectors=frozenset((name,))))

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Request a restart of a connector and, with ``include_tasks``, of its tasks (KIP-745); with ``only_failed``,
        only of those that have failed.

        Returns the status, with RESTARTING for what will be restarted. Raises NotFound.
        """
        await self._settled()
        self._must_lead("process restart requests")
        self._must_know(name)
        status = await self.status(name)
        plan = restart_plan(self._statuses, name, include_tasks=include_tasks, only_failed=only_failed)
        async with self._turn:
            await self._done(self._configs.put_restart(name, include_tasks=include_tasks, only_failed=only_failed))
        connector = status.connector.with_state(State.RESTARTING) if plan.connectors else status.connector
        tasks = {
            number: one.with_state(State.RESTARTING) if TaskId(name, number) in plan.tasks else one
            for number, one in status.tasks.items()
        }
        return ConnectorStatus(name, status.kind, connector, tasks)

    # Tasks.

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, Config]]:
        """Return the configurations of a connector's tasks. Raises NotFound."""
        tasks = (await self.connector(name)).tasks
        return list(zip(tasks, self._configs.state.tasks.get(name, ()), strict=True))

    async def put_task_configs(
        self, name: str, body: bytes, headers: Mapping[str, str], parse: Callable[[bytes], Sequence[Config]]
    ) -> None:
        """Accept the tasks that another worker has computed for a connector; ``headers`` sign ``body`` (KIP-507).

        Calls ``parse`` with the body only after the signature is verified. Raises NotFound, BadRequest without a
        signature, and Forbidden with a wrong one.
        """
        self._check_signature(body, headers)
        configs = parse(body)
        self._must_lead("write task configurations")
        async with self._turn:
            await self.connector(name)
            await self._done(self._configs.put_tasks(name, configs))

    async def fence(self, name: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Fence all tasks of a source except those committed last (KIP-618); ``headers`` sign ``body``.

        Another worker requests this before it starts tasks that write exactly once. Raises NotFound, BadRequest for a
        sink or without a signature, Forbidden with a wrong one.
        """
        self._check_signature(body, headers)
        self._must_lead("perform zombie fencing")
        await self.connector(name)
        if self._kind(name) == "sink":
            raise BadRequest(f"Connector {name} is not a source connector")
        await self._fence(name)

    async def _fence(self, name: str) -> None:
        try:
            await self._done(self._fencing.round(name))
        except ConnectError as error:
            raise HerderError(f"Failed to perform zombie fencing: {error}") from error

    async def task_status(self, task: TaskId) -> Status:
        """Return the last reported status of a task. Raises NotFound if there is none."""
        await self._caught_up()
        status = self._statuses.tasks.get(task)
        if status is None:
            raise NotFound(f"No status found for task {task}")
        return status

    async def restart_task(self, task: TaskId) -> None:
        """Restart a task. Raises NotFound, and NotLeader with the URL of the worker on which it runs."""
        await self._settled()
        self._must_know(task.connector)
        if self._configs.state.task_config(task) is None:
            raise NotFound(f"Unknown task: {task}")
        self._must_have(task)
        await self._running.restart(Work(tasks=frozenset((task,))))

    # Topics and offsets.

    async def active_topics(self, name: str) -> Sequence[str]:
        """Return the topics that the connector has used since the last reset (KIP-558). Raises Forbidden if topics are
        not tracked.
        """
        if not self._settings.tracks_topics:
            raise Forbidden("Topic tracking is disabled.")
        await self._caught_up()
        return sorted(self._statuses.topics.get(name, ()))

    async def reset_active_topics(self, name: str) -> None:
        """Forget the topics that the connector has used. Raises Forbidden if topics are not tracked, or must not be
        reset.
        """
        if not self._settings.tracks_topics:
            raise Forbidden("Topic tracking is disabled.")
        if not self._settings.allows_topic_reset:
            raise Forbidden("Topic tracking reset is disabled.")
        await self._done(self._statuses.reset_topics(name))

    async def offsets(self, name: str) -> Offsets:
        """Return the offsets of a connector (KIP-875). Raises NotFound, and HerderError if they cannot be read."""
        config = (await self.connector(name)).config
        try:
            return await in_thread(self._worker.offsets, name, config)
        except ConnectError as error:
            raise HerderError(f"Failed to read offsets for connector {name}: {error}") from error

    async def alter_offsets(self, name: str, offsets: Offsets | None) -> str:
        """Change offsets of a stopped connector; None deletes all. Returns a message about the result.

        Raises NotFound, BadRequest if the connector is not stopped, or if it rejects the offsets, and HerderError if
        the offsets cannot be changed.
        """
        await self._settled()
        self._must_lead("alter or reset offsets")
        info = await self._stopped(name)
        if self._writes_exactly_once(info.config):
            await self._fence(name)
        async with self._turn:
            info = await self._stopped(name)
            await self._running.stop_tasks_of(name)  # their last commit must not overwrite the new offsets
            try:
                return await in_thread(self._worker.alter_offsets, name, info.config, offsets)
            except ConnectError as error:
                raise HerderError(f"Failed to alter offsets for connector {name}: {error}") from error

    async def _stopped(self, name: str) -> ConnectorInfo:
        """Return the connector. Raises NotFound, or BadRequest if it is not stopped."""
        await self._done(self._configs.refresh())
        info = await self.connector(name)
        if self._configs.state.target(name) is not TargetState.STOPPED or info.tasks:
            raise BadRequest(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done "
                f"for the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )
        return info

    # Plugins and loggers.

    async def plugins(self, *, connectors_only: bool = True) -> Sequence[PluginInfo]:
        """Return the connectors that configurations may name; without ``connectors_only``, all classes that they may
        name.
        """
        kinds = _KINDS[:2] if connectors_only else _KINDS
        found = await in_thread(lambda: list(self._plugins.all()))
        return [PluginInfo(one.name, kind, one.version) for kind in kinds for one in found if kind in one.kinds]

    async def plugin_config(self, plugin: str) -> Sequence[ConfigKey]:
        """Return the keys of a plugin (KIP-769). Raises NotFound."""
        try:
            found = await in_thread(self._plugins.load, plugin, object)
        except ConfigError:
            raise NotFound(f"Unknown plugin {plugin}.") from None
        definition = getattr(found, "config_def", None)
        if not isinstance(definition, ConfigDef):
            raise NotFound(f"Unknown plugin {plugin}.")
        keys = definition.keys
        if issubclass(found, Connector):
            keys = keys | {one.name: one for one in keys_of_all(found) if one.name not in keys}
        return list(keys.values())

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> ConfigInfos:
        """Check a configuration. Returns every key with its value and its errors. Raises BadRequest if ``config`` names
        no ``connector.class``, or if there is no class ``plugin``.
        """
        if not config.get("connector.class"):
            raise _no_class(config)
        return await self._validated(plugin, config)

    async def set_cluster_logger(self, name: str, level: str) -> None:
        """Set the level of a logger in every worker (KIP-976). Raises NotFound if there is no such level."""
        if level.upper() not in LEVELS:
            raise NotFound(f"invalid log level '{level}'.")
        await self._done(self._configs.put_logger(name, level.upper()))

    # Common to all requests.

    def _must_lead(self, purpose: str) -> None:
        if not self._share.leads:
            raise NotLeader(f"Only the leader can {purpose}.", self._share.leader_url)

    async def _settled(self) -> None:
        """Wait until the group has assigned its work, because the known leader may be outdated before that.

        Raises Rebalancing after ``settle_ms``.
        """
        try:
            async with asyncio.timeout(self._settings.settle_ms / 1000):
                await self._share.settled.wait()
        except TimeoutError:
            raise Rebalancing(_STALE) from None

    def _check_signature(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Check that another worker has sent this request (KIP-507). Raises BadRequest, Forbidden."""
        if self._settings.requires_signatures or self._share.version >= PROTOCOLS["sessioned"]:
            signing.check(self._configs.state.session_key, body, headers, self._settings.signatures)

    def _must_know(self, name: str) -> None:
        if name not in self._configs.state.connectors:
            raise NotFound(f"Unknown connector: {name}")

    def _must_have(self, of: str | TaskId) -> None:
        """Raise NotLeader, with the URL of the worker to which the request must be sent, unless the connector or the
        task runs here.

        Raises Rebalancing if this worker leads and knows no other worker that runs it.
        """
        work = self._running.work
        if of in work.tasks or of in work.connectors:
            return
        if not self._share.leads:
            raise NotLeader(f"{of} is not running on this worker.", self._share.leader_url)
        url = self._share.owner_url(of)
        if url is None or url == self._settings.url:
            raise Rebalancing(_CONFLICT)
        raise NotLeader(f"{of} is not running on this worker.", url)

    async def _validated(self, plugin: str | None, config: Mapping[str, str | None]) -> ConfigInfos:
        if not plugin:
            raise _no_class(config)
        try:
            return await in_thread(self._worker.validate, plugin, config)
        except ConfigError as error:
            raise BadRequest(str(error)) from error

    async def _caught_up(self) -> None:
        """Read the statuses to the end, or give up after a while: old statuses are better than no response."""
        with suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(self._settings.sync_timeout_ms / 1000):
                await self._statuses.refresh()

    async def _done(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for a write to a log, or for a read. Raises HerderError if the log's topic cannot be written or read."""
        try:
            await work
        except KafkaError as error:
            raise HerderError(f"the topics of the workers cannot be written or read: {error}") from error

    def _kind(self, name: str) -> str:
        config = self._configs.state.connectors.get(name)
        if config is None:
            return "unknown"
        try:
            return "sink" if _is_sink(self._plugins, config) else "source"
        except ConfigError:
            return "unknown"

    def _writes_exactly_once(self, config: Config) -> bool:
        try:
            return self._worker.writes_exactly_once(config)
        except ConfigError:
            return False

    def _version_of(self, name: str) -> str | None:
        config = self._configs.state.connectors.get(name, {})
        try:
            return str(_class(self._plugins, config).version)
        except ConfigError:
            return None


def _class(plugins: Plugins, config: Config) -> type[Connector]:
    """Return the class of a connector. Raises ConfigError."""
    return plugins.load(config.get("connector.class", ""), Connector)  # type: ignore[type-abstract]


def _is_sink(plugins: Plugins, config: Config) -> bool:
    return issubclass(_class(plugins, config), SinkConnector)


def _no_class(config: Mapping[str, str | None]) -> BadRequest:
    shown = ", ".join(f"{key}={value}" for key, value in config.items())
    return BadRequest(f"Connector config {{{shown}}} contains no connector type")
