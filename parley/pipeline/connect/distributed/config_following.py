"""Carries out the changes in the configuration log, in their order.

======================  ==============================================================================================
a connector is new      the leader assigns the work again
... is changed          its worker restarts it, and computes its tasks again
... is deleted          its workers stop it and its tasks; the leader assigns the work again
tasks are committed     if their number changed, the leader assigns again; else the worker restarts changed ones
a target state          is passed to the connector and its tasks here
a restart is requested  the named connector and tasks that run here are restarted
a logger's level        is set
======================  ==============================================================================================

A worker computes a connector's tasks when the connector starts, and when the connector requests it. If they differ from
the tasks in the log, the leader writes them; another worker sends them to the leader in a signed request. This is
retried until it succeeds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from parley.pipeline.connect.distributed import signing
from parley.pipeline.connect.distributed.assignment import Share
from parley.pipeline.connect.distributed.configs import Change, Changed, ConfigStore
from parley.pipeline.connect.distributed.fencing import Fencing
from parley.pipeline.connect.distributed.local_work import Running
from parley.pipeline.connect.distributed.loggers import Loggers
from parley.pipeline.connect.distributed.membership import Membership
from parley.pipeline.connect.distributed.protocol import PROTOCOLS, Work
from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder_results import HerderError, NotFound, State, TargetState, TaskId
from parley.protocol.errors import KafkaError

_RETRY_FIRST_S: Final = 0.25
_RETRY_MAX_S: Final = 60.0
_FENCE_S: Final = 30.0
"""How long a task waits for the leader to fence older tasks."""
_log = logging.getLogger(__name__)


def restart_plan(statuses: StatusStore, name: str, *, include_tasks: bool, only_failed: bool) -> Work:
    """Return the connector and tasks that a restart request applies to (KIP-745), according to their last
    known states.
    """

    def is_meant(state: State) -> bool:
        return state is State.FAILED if only_failed else state is not State.RESTARTING

    connector = statuses.connectors.get(name)
    tasks = statuses.tasks_of(name) if include_tasks else {}
    return Work(
        frozenset((name,)) if connector is not None and is_meant(connector.state) else frozenset(),
        frozenset(TaskId(name, number) for number, status in tasks.items() if is_meant(status.state)),
    )


class Following:
    """Follows the configuration log. A caller that writes configurations must hold ``turn``."""

    def __init__(
        self,
        configs: ConfigStore,
        statuses: StatusStore,
        membership: Membership,
        loggers: Loggers,
        *,
        turn: asyncio.Lock,
        rules: signing.SigningRules,
        tls: ssl.SSLContext | None,
        now_ms: Callable[[], int],
    ) -> None:
        """``tls`` verifies the other workers if their REST API uses HTTPS; None means the system's certificate
        authorities."""
        self._configs = configs
        self._statuses = statuses
        self._membership = membership
        self._loggers = loggers
        self._turn = turn
        self._rules = rules
        self._now_ms = now_ms
        self._counts: dict[str, int] = {}
        """The known connectors, with their numbers of tasks."""
        self._worked_out: dict[str, Mapping[str, str]] = {}
        """The connectors' configurations at the time when this worker last computed their tasks."""
        self._doing: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(timeout=30, verify=True if tls is None else tls)
        self._running: Running
        self._share: Share
        self._fencing: Fencing

    def use(self, running: Running, share: Share, fencing: Fencing) -> None:
        """Set the objects to which changes are applied. Call this once, before ``start``."""
        self._running, self._share, self._fencing = running, share, fencing

    async def start(self) -> None:
        """Read the log of configurations to its end, and follow it from then on. Raises ConnectError if the log's topic
        cannot be used.
        """
        await self._configs.start(self._on_change)
        state = self._configs.state
        self._counts = {name: len(state.tasks.get(name, ())) for name in state.connectors}

    async def stop(self) -> None:
        """Cancel the work in progress, and close the connections to other workers."""
        for one in self._doing:
            one.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)
        await self._client.aclose()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work in a task. Work on the same connector stays in order, because ``Running`` takes turns."""
        task = asyncio.create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a change of configuration could not be applied", exc_info=task.exception())

    # Changes in the log.

    def _on_change(self, changed: Changed) -> None:
        name = changed.name
        match changed.what:
            case Change.CONNECTOR:
                self._connector(name)
            case Change.DELETED:
                self._counts.pop(name, None)
                self._worked_out.pop(name, None)
                self._do(self._running.stop(self._of(name)))
                self._rejoin()
            case Change.TASKS:
                self._tasks(name)
            case Change.TARGET:
                self._do(self._running.set_target_state(name, self._configs.state.target(name)))
            case Change.RESTART:
                self._do(self._restart(name, *changed.value))
            case Change.LOGGER:
                self._set_logger(name, changed.value)

    def _connector(self, name: str) -> None:
        if name not in self._counts:
            self._counts[name] = 0
            self._rejoin()
        elif name in self._running.work.connectors:
            self._do(self._running.restart(Work(connectors=frozenset((name,)))))

    def _tasks(self, name: str) -> None:
        count = len(self._configs.state.tasks[name])
        if self._counts.get(name) != count:
            self._counts[name] = count
            self._rejoin()
        else:
            self._do(self._running.restart(self._running.reconfigured(name)))

    def _of(self, name: str) -> Work:
        work = self._running.work
        return Work(work.connectors & {name}, frozenset(task for task in work.tasks if task.connector == name))

    def _rejoin(self) -> None:
        """Join the group again. Every worker that reads this change does so: heartbeats alone would spread it more
        slowly.
        """
        if self._share.joined.is_set():
            self._membership.rejoin()

    async def _restart(self, name: str, include_tasks: bool, only_failed: bool) -> None:
        await self._statuses.refresh()
        await self._running.restart(
            restart_plan(self._statuses, name, include_tasks=include_tasks, only_failed=only_failed)
        )

    def _set_logger(self, name: str, level: str) -> None:
        try:
            self._loggers.set(name, level)
        except NotFound as error:
            _log.warning("the level of logger %s cannot be set: %s", name, error)

    # Leading.

    def lead(self) -> None:
        """Begin to lead: fence earlier leaders, replace an old signing key, delete outdated statuses. Does not wait,
        and retries while this worker leads.
        """
        self._do(self._lead())

    async def _lead(self) -> None:
        pause = _RETRY_FIRST_S
        while self._share.leads:
            try:
                await self._configs.claim()
                await self._clean_up()
                return
            except KafkaError as error:
                _log.warning(
                    "this worker is the leader, but cannot write configurations yet: %s; it tries again", error
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MAX_S)

    async def _clean_up(self) -> None:
        state = self._configs.state
        key = state.session_key
        is_out_of_date = key is None or self._now_ms() - key.created_ms > self._rules.key_ttl_ms
        if is_out_of_date and self._share.version >= PROTOCOLS["sessioned"]:
            await self._configs.put_session_key(signing.new_key(self._now_ms(), self._rules))
        gone = (self._statuses.connectors.keys() | {task.connector for task in self._statuses.tasks}) - (
            state.connectors.keys()
        )
        for name in gone:
            tasks = [task for task in self._statuses.tasks if task.connector == name]
            await self._statuses.delete(name, tasks, whole=True)
        for name in state.connectors:
            wanted = set(state.task_ids(name))
            tasks = [task for task in self._statuses.tasks if task.connector == name and task not in wanted]
            await self._statuses.delete(name, tasks, whole=False)

    # Computing tasks.

    def reconfigure(self, name: str) -> None:
        """Compute the tasks of a connector that runs here, and submit them to the leader if they have changed. Does not
        wait.
        """
        self._do(self._work_out(name))

    async def _work_out(self, name: str) -> None:
        pause = _RETRY_FIRST_S
        while self._runs(name):
            config = self._configs.state.connectors.get(name, {})
            try:
                tasks = await self._running.task_configs(name)
            except Exception as error:
                if self._runs(name):
                    self._running.failed(name, error)
                return
            was = self._worked_out.get(name, config)
            if tasks == self._configs.state.tasks.get(name) and was == config:
                self._worked_out[name] = config
                return
            try:
                await self._submit(name, tasks)
                self._worked_out[name] = config
                return
            except (HerderError, KafkaError, httpx.HTTPError) as error:
                _log.warning("the tasks of %s could not be sent to the leader: %s; the worker tries again", name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MAX_S)

    def _runs(self, name: str) -> bool:
        is_here = name in self._running.work.connectors
        return is_here and self._configs.state.target(name) is TargetState.STARTED

    # Before a task writes exactly once.

    async def fence(self, task: TaskId) -> None:
        """Have the leader fence older tasks of the connector. Raises ConnectError if this does not succeed in time, or
        if the task no longer belongs to this worker.
        """
        give_up, pause = asyncio.get_running_loop().time() + _FENCE_S, _RETRY_FIRST_S
        while True:
            try:
                await self._fence(task.connector)
                return
            except (HerderError, KafkaError, httpx.HTTPError) as error:
                is_late = asyncio.get_running_loop().time() + pause > give_up
                if is_late or task not in self._running.allowed.tasks:
                    raise ConnectError(f"Failed to perform round of zombie fencing: {error}") from error
                _log.warning(
                    "earlier tasks of %s are not fenced yet: %s; the worker tries again", task.connector, error
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_MAX_S)

    async def _fence(self, name: str) -> None:
        if self._share.leads:
            await self._fencing.round(name)
        else:
            await self._ask_leader("PUT", f"connectors/{quote(name, safe='')}/fence", b"")

    async def verify(self, task: TaskId, generation: int) -> None:
        """Raise ConnectError if newer tasks of the connector were committed, if another worker now runs the task, or if
        the log cannot be read.
        """
        try:
            await self._configs.refresh()
        except KafkaError as error:
            raise ConnectError(f"Failed to perform preflight check for task {task}: {error}") from error
        if self._configs.state.generations.get(task.connector, 0) != generation:
            raise ConnectError(
                f"Cannot start source task {task} with exactly-once support as the connector has already generated a "
                "new set of task configs"
            )
        if task not in self._running.allowed.tasks:
            raise ConnectError(
                f"Cannot start source task {task} with exactly-once support as it has already been revoked from this "
                "worker"
            )

    async def _submit(self, name: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """Have the leader write the tasks. Raises HerderError, KafkaError or httpx.HTTPError."""
        if self._share.leads:
            async with self._turn:
                await self._configs.put_tasks(name, tasks)
            return
        body = json.dumps([dict(one) for one in tasks]).encode()
        await self._ask_leader("POST", f"connectors/{quote(name, safe='')}/tasks", body)

    async def _ask_leader(self, method: str, path: str, body: bytes) -> None:
        """Send the leader a signed request. Raises HerderError or httpx.HTTPError."""
        url, key = self._share.leader_url, self._configs.state.session_key
        if url is None:
            raise HerderError("no leader is known")
        signed = {} if key is None else signing.sign(key, body, self._rules)
        answer = await self._client.request(
            method,
            f"{url.rstrip('/')}/{path}",
            params={"forward": "false"},
            content=body,
            headers={"content-type": "application/json", **signed},
        )
        if answer.is_error:
            raise HerderError(f"the leader {url} returned {answer.status_code}: {answer.text}")
