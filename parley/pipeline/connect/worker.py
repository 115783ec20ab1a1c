"""A worker: the connectors and tasks that run here, started and stopped by a herder.

Rules:

1. A herder (standalone or distributed) decides what runs. The worker runs it, and reports to the herder's
   ``WorkerEvents``. Every call blocks, and any thread may make it. Calls for one connector or task must not overlap.
   From an event loop, use ``asyncio.to_thread``.
2. Connectors and tasks are in this process, each task in its own thread (``TaskHost``). Other workers of the group are
   other processes.
3. Events come from threads of the worker, in order for each connector and task. The handlers must return quickly: a
   herder with a loop passes them on (``loop.call_soon_threadsafe``). A stopped task sends no more events.
4. A connector or task that fails keeps the state FAILED until it is stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from parley.configuration.providers import ConfigProviders, UnresolvedValue
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.writing import Producer, Writing
from parley.pipeline.connect.config import ConfigInfos
from parley.pipeline.connect.connector import Connector, SinkConnector, SourceConnector
from parley.pipeline.connect.connector_config import is_sink
from parley.pipeline.connect.connector_offsets import alter_sink_offsets, alter_source_offsets, sink_offsets
from parley.pipeline.connect.distributed.offset_topic import TopicOffsetStore
from parley.pipeline.connect.errors import ConfigError, ConnectError, stack_trace
from parley.pipeline.connect.herder_results import State, TargetState, TaskId
from parley.pipeline.connect.offset_stores import ConnectorOffsets, OffsetStore, SourceOffset
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.host import TaskHost
from parley.pipeline.connect.tasks.spec import ClientSettings, ExactlyOnce, TaskSpec, WorkerEvents
from parley.pipeline.connect.validation import validated
from parley.pipeline.connect.worker_config import WorkerConfig

_OFFSETS_TOPIC: Final = "offsets.storage.topic"
_log = logging.getLogger(__name__)


class Worker:
    """Runs the connectors and tasks that the herder assigns to it."""

    def __init__(self, config: WorkerConfig, plugins: Plugins, offsets: OffsetStore, events: WorkerEvents) -> None:
        self.plugins = plugins
        self._config = config
        self._offsets = offsets
        self._host = TaskHost(config, plugins, self._guard)
        self._events = events
        self._providers = _Providers(config.given)
        self._connectors: dict[str, _RunningConnector] = {}
        self._tasks: dict[TaskId, TaskSpec] = {}
        self._lock = threading.Lock()
        self._admin = Cluster(
            Connection(
                bootstrap=config.bootstrap, client_id=config["client.id"] or "connect-admin", security=config.security
            )
        )

    def start(self) -> None:
        """Load the stored offsets. Raises ConnectError."""
        self._offsets.start()

    def stop(self) -> None:
        """Stop all connectors and tasks, and close the connections. Tasks that still run after
        ``task.shutdown.graceful.timeout.ms`` are abandoned.
        """
        for name in list(self._connectors):
            self.stop_connector(name)
        self.stop_tasks(list(self._tasks))
        self._host.close(self._config["task.shutdown.graceful.timeout.ms"])
        self._offsets.stop()
        self._admin.close()

    # Connectors.

    def start_connector(self, name: str, config: Mapping[str, str], target: TargetState) -> None:
        """Start a connector. If ``target`` is PAUSED or STOPPED, the connector's object is created but not started.

        The connector's state is reported as an event: FAILED if the connector raises an error. Raises ConnectError if
        the connector already runs here.
        """
        running = _RunningConnector(name, config, self._providers, self._events, self._offsets_of)
        with self._lock:
            if name in self._connectors:
                raise ConnectError(f"Connector with name {name} already exists")
            self._connectors[name] = running
        running.make(self.plugins)
        running.become(target)

    def stop_connector(self, name: str) -> None:
        """Stop a connector, but not its tasks, if it runs here."""
        with self._lock:
            running = self._connectors.pop(name, None)
        if running is not None:
            running.end()

    def set_target_state(self, name: str, target: TargetState) -> None:
        """Pause, stop or start the connector here, if there is one, and pause or resume its tasks here."""
        running = self._connectors.get(name)
        if running is not None:
            running.become(target)
        for task in [one for one in self._tasks if one.connector == name]:
            if target is TargetState.STARTED:
                self._host.resume(task)
            else:
                self._host.pause(task)

    def task_configs(self, name: str) -> list[dict[str, str]]:
        """Return the configurations of a running connector's tasks (at most ``tasks.max``), for ``start_task``.

        Raises ConnectError if the connector is not running, and the connector's errors.
        """
        running = self._connectors.get(name)
        if running is None:
            raise ConnectError(f"Connector {name} is not running in this worker.")
        return running.task_configs()

    # Tasks.

    def start_task(
        self,
        task: TaskId,
        tasks: int,
        connector_config: Mapping[str, str],
        task_config: Mapping[str, str],
        target: TargetState,
        *,
        generation: int = 0,
    ) -> None:
        """Start a task. ``tasks`` is the number of its connector's tasks. Its state is reported as events.

        ``generation`` is the number of times that the connector's tasks were committed. The tasks of a sink share its
        partitions by their number. If that number changes, all of them must be stopped before the first is started
        again.

        Raises ConnectError if a task with this id is running or the task's thread cannot be started, and ConfigError if
        there is no such connector class or a value that the configuration refers to is unavailable.
        """
        sink = is_sink(self._class_of(connector_config))
        resolved = self._providers.resolve(connector_config)
        spec = TaskSpec(
            id=task,
            tasks=tasks,
            is_sink=sink,
            connector_config=resolved,
            task_config=self._providers.resolve(task_config),
            is_paused=target is TargetState.PAUSED,
            exactly_once=None if sink else self._exactly_once(task, resolved, generation),
        )
        with self._lock:
            if task in self._tasks:
                raise ConnectError(f"Task already exists in this worker: {task}")
            self._tasks[task] = spec
        self._host.start(spec)

    def stop_tasks(self, tasks: Iterable[TaskId]) -> None:
        """Commit offsets and stop tasks, all at the same time. Tasks that do not stop in time are abandoned."""
        ended = [one for one in tasks if one in self._tasks]
        if ended:
            self._host.stop(ended, self._config["task.shutdown.graceful.timeout.ms"])
        with self._lock:
            for one in ended:
                self._tasks.pop(one, None)

    def _guard(self, spec: TaskSpec) -> Guard:
        return Guard(spec, self._events, lambda: self._offsets_of(spec.connector_config))

    # Exactly-once sources (KIP-618).

    def writes_exactly_once(self, config: Mapping[str, str]) -> bool:
        """Return True if the tasks of a connector write in transactions. Raises ConfigError if there is no
        such class."""
        return self._config.exactly_once_sources and not is_sink(self._class_of(config))

    def fence_tasks(self, name: str, config: Mapping[str, str], count: int) -> None:
        """Fence the first ``count`` tasks of a source, so that they can no longer write. Raises KafkaError, and
        ConnectError.
        """
        producer = ClientSettings.of("producer", self._config, self._providers.resolve(config))
        with Cluster(producer.connection(self._config, f"connect-fencing-{name}")) as cluster:
            for number in range(count):
                Producer(cluster, Writing(transactional_id=self._transactional_id(TaskId(name, number)))).identity()

    def _exactly_once(self, task: TaskId, config: Mapping[str, str], generation: int) -> ExactlyOnce | None:
        if not self._config.exactly_once_sources:
            return None
        topic = config.get(_OFFSETS_TOPIC) or self._config["offset.storage.topic"]
        return ExactlyOnce(self._transactional_id(task), topic, generation)

    def _transactional_id(self, task: TaskId) -> str:
        return f"{self._config['group.id']}-{task}"

    def _offsets_of(self, config: Mapping[str, str]) -> OffsetStore:
        """Return the store of a source connector's offsets, by its resolved configuration. Raises ConnectError."""
        workers = self._config.values.get("offset.storage.topic")
        if workers is None:
            return self._offsets
        topic = config.get(_OFFSETS_TOPIC) or workers
        if topic == workers and not self._config.exactly_once_sources:
            return self._offsets
        client_id = f"connect-{self._config['group.id']}"
        connection = ClientSettings.of("producer", self._config, config).connection(self._config, client_id)
        if (connection.bootstrap, topic) == (self._config.bootstrap, workers):
            return self._offsets
        return cast(TopicOffsetStore, self._offsets).at(connection, topic)

    # Configurations and offsets.

    def validate(self, plugin: str, config: Mapping[str, str | None]) -> ConfigInfos:
        """Check the configuration of a connector and of its converters, transforms and predicates.

        Raises ConfigError if there is no such connector class.
        """
        policy = self._config["connector.client.config.override.policy"]
        given = {key: value for key, value in config.items() if value is not None}
        resolved = self._providers.resolve(given)
        infos = validated(plugin, resolved, self.plugins, policy=policy, worker=self._config.given)
        for one in infos.configs:
            if resolved.get(one.value.name) != given.get(one.value.name):
                one.value.value = given[one.value.name]
        return infos

    def offsets(self, name: str, config: Mapping[str, str]) -> list[SourceOffset]:
        """Return a connector's offsets, as the REST API shows them: for a sink, its group's offsets (KIP-875).

        Raises ConnectError if there is no such connector class, or if the offsets cannot be read.
        """
        if is_sink(self._class_of(config)):
            return sink_offsets(self._admin, name, config)
        return self._offsets_of(self._providers.resolve(config)).all(name)

    def alter_offsets(self, name: str, config: Mapping[str, str], offsets: Sequence[SourceOffset] | None) -> str:
        """Set offsets of a connector whose tasks are stopped; None deletes all. Returns a message about the result.

        Raises BadRequest (``parley.pipeline.connect.herder_results``) if the offsets are invalid or the connector
        rejects them, HerderError if they cannot be changed, and ConnectError if the connector's class or offset store
        is not available.
        """
        config = self._providers.resolve(config)
        connector = self._class_of(config)()
        if isinstance(connector, SinkConnector):
            return alter_sink_offsets(self._admin, connector, name, config, offsets)
        store = self._offsets_of(config)
        return alter_source_offsets(store, cast(SourceConnector, connector), name, config, offsets)

    def _class_of(self, config: Mapping[str, str]) -> type[Connector]:
        return cast(type[Connector], self.plugins.load(config.get("connector.class", ""), cast(Any, Connector)))


class _RunningConnector:
    """A connector's object, its configuration and its state. Errors of the connector are reported, not raised, except
    by ``task_configs``.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, str],
        providers: _Providers,
        events: WorkerEvents,
        offsets_of: Callable[[Mapping[str, str]], OffsetStore],
    ) -> None:
        self.name = name
        self.connector: Connector | None = None
        self._given = dict(config)
        self._config = self._given
        self._providers = providers
        self._events = events
        self.offsets = ConnectorOffsets(name, lambda: offsets_of(self._config))
        self._is_started = False
        self._is_ended = False
        self._lock = threading.RLock()

    def make(self, plugins: Plugins) -> None:
        try:
            self._config = self._providers.resolve(self._given)
            connector: Connector = plugins.make(self._config.get("connector.class", ""), cast(Any, Connector))
            connector.initialize(self)
            self.connector = connector
        except Exception as error:
            self._failed(error)

    def become(self, target: TargetState) -> None:
        """Start the connector, or stop it if the target is PAUSED or STOPPED, and report its new state."""
        with self._lock:
            if self.connector is None or self._is_ended:
                return
            try:
                if target is TargetState.STARTED and not self._is_started:
                    self.connector.start(self._config)
                elif target is not TargetState.STARTED and self._is_started:
                    self.connector.stop()
                self._is_started = target is TargetState.STARTED
            except Exception as error:
                self._failed(error)
                return
        states = {TargetState.STARTED: State.RUNNING, TargetState.PAUSED: State.PAUSED}
        self._events.connector_state(self.name, states.get(target, State.STOPPED), None)

    def end(self) -> None:
        with self._lock:
            self._is_ended = True
            if self.connector is not None and self._is_started:
                try:
                    self.connector.stop()
                except Exception as error:
                    _log.warning("Stopping connector %s failed: %s", self.name, error, exc_info=error)

    def task_configs(self) -> list[dict[str, str]]:
        with self._lock:
            if self.connector is None or not self._is_started:
                raise ConnectError(f"Connector {self.name} is not running.")
            most = int(self._config.get("tasks.max", "1"))
            given = self.connector.task_configs(most)
            task_class = self.connector.task_class
        if len(given) > most and self._config.get("tasks.max.enforce", "true").strip().lower() != "false":
            raise ConnectError(
                f"The connector {self.name} has generated {len(given)} tasks, which is greater than {most}, the "
                "maximum number of tasks it is configured to create. Raise tasks.max, or change the connector."
            )
        always = {"task.class": f"{task_class.__module__}.{task_class.__qualname__}"}
        if isinstance(self.connector, SinkConnector):
            always |= {key: self._config[key] for key in ("topics", "topics.regex") if self._config.get(key)}
        return [self._named({**one, **always}) for one in given]

    def _named(self, task_config: Mapping[str, str]) -> dict[str, str]:
        """Return the task's configuration with references in place of the values to which they were resolved, so that
        secrets are not stored.
        """
        return {
            key: self._given[key] if value == self._config.get(key) else value for key, value in task_config.items()
        }

    def _failed(self, error: BaseException) -> None:
        _log.error("Connector %s failed.", self.name, exc_info=error)
        if not self._is_ended:
            self._events.connector_state(self.name, State.FAILED, stack_trace(error))

    # The services for a connector: parley.pipeline.connect.connector.ConnectorContext.

    def request_task_reconfiguration(self) -> None:
        if not self._is_ended:
            self._events.reconfigure(self.name)

    def raise_error(self, error: BaseException) -> None:
        self._failed(error)


class _Providers:
    """Resolves references in configurations: ``${provider:path:key}`` (KIP-297). Raises ConfigError.

    References keep secrets out of topics and out of the REST API's responses. They are resolved whenever a connector or
    a task starts.
    """

    def __init__(self, worker: Mapping[str, str]) -> None:
        try:
            self._providers = ConfigProviders(worker)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error

    def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        try:
            return self._providers.resolve(config)
        except UnresolvedValue as error:
            raise ConfigError(str(error)) from error
