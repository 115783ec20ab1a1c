"""Registers the brokers that join the cluster, and fences those that are no longer alive, for the controller.

* A broker is fenced immediately if its process has ended (``dead_process_detection``) or its session has expired. While
  the controller's own session is new, brokers without a session get time to join, because the store may have been down.
* A broker is fenced if it has not requested metadata for ``silence_s``: it does not learn of changes, so it must not
  lead. This applies only while the controller hears from at least half of all brokers. Otherwise the controller may be
  the broker that is cut off. See docs/architecture.md, "Fencing silent brokers, and deposing a silent controller".
* No broker is fenced before the members have been compared with the store, which may have been rolled back.
* Fencing is safe and can be undone: a broker that is alive joins again under a higher epoch. If a broker joins again
  although connections to it were refused, something in between, such as a firewall, refuses them. From then on, the
  controller fences this broker only for silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from parley.broker.controller.brokers import fence_broker, register_broker
from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.membership.dead_process_detection import until_gone
from parley.broker.membership.joining import BROKERS_GROUP
from parley.broker.membership.store_rollback import StoreRollback
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.types import BrokerRegistration, Endpoint
from parley.broker.runtime.tasks import TaskSet, race
from parley.consensus.recipes.groups import Groups, Member
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

CHECKS_PER_SILENCE = 10
REGISTRATION_PAUSE_S = 1.0
"""The pause before a failed registration is retried."""


class BrokerFencing:
    """Registers and fences brokers while this broker is the controller."""

    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        metadata: Metadata,
        publisher: MetadataPublisher,
        *,
        hold: Callable[[Endpoint], Awaitable[None]],
        listener: str,
        rules: RulesOf,
        recovery: UncleanRecovery,
        silence_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._publisher = publisher
        self._hold = hold
        self._listener = listener
        self._rules = rules
        self._recovery = recovery
        self._rollback = StoreRollback(controller, rules, recovery)
        self._silence_s = silence_s
        self._monotonic = monotonic
        self._present: set[int] | None = None  # the group's members, or None until they are known
        self._seen: set[int] = set()  # brokers that have been members during this term
        self._trusted_s = 0.0  # from this time on, brokers that are not members are fenced
        self._since: dict[tuple[int, int], float] = {}  # (broker, epoch) -> when its silence began
        self._watched: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._joining: dict[tuple[int, int], asyncio.Task[None]] = {}  # registrations in progress
        self._failures = FailureLog(_log)
        self._refusing: set[UUID] = set()  # incarnations whose machines refused connections
        self._distrusted: UUID | None = None  # the incarnation that was deposed as controller for being silent

    async def run(self, groups: Groups, session_since_s: float) -> None:
        """Register the brokers that join the group, and fence those that are no longer alive, until cancelled.

        ``session_since_s`` is the time (monotonic seconds) at which the controller's own session was opened.

        Raises CoordinationError if the watch of the group ends, KafkaError (NOT_CONTROLLER) at the end of the term, and
        StoreChanged or Outranked if the store was rolled back.
        """
        tasks = TaskSet()
        self._present = None
        self._trusted_s = session_since_s + self._silence_s
        self._seen.clear()
        self._since.clear()
        self._watched.clear()
        self._joining.clear()
        self._refusing.clear()
        try:
            await race(self._follow(groups, tasks), self._fence_the_silent(tasks))
        finally:
            await tasks.close()

    def distrust(self, incarnation_id: UUID) -> None:
        """Treat this incarnation as silent when the next term starts: it was deposed as controller because it was
        silent."""
        self._distrusted = incarnation_id

    def trust_all(self) -> None:
        """Forget the distrusted incarnation, because another broker is the controller now."""
        self._distrusted = None

    async def _follow(self, groups: Groups, tasks: TaskSet) -> None:
        async def present() -> Collection[BrokerRegistration]:
            return _live(await groups.members(BROKERS_GROUP)).values()

        await self._rollback.check_store(groups.backend, present)
        await race(self._rollback.until_rolled_back(groups.backend), self._follow_members(groups, tasks))

    async def _follow_members(self, groups: Groups, tasks: TaskSet) -> None:
        async for members in groups.watch(BROKERS_GROUP):
            await self._reconcile(_live(members), tasks)
            self._update_watched(tasks)

    async def _reconcile(self, live: Mapping[int, BrokerRegistration], tasks: TaskSet) -> None:
        await self._rollback.check_members(live.values())  # first, because fencing elects leaders from the store's data
        self._present = set(live)
        await self._fence_the_absent()
        self._seen |= live.keys()
        joined = {(broker.broker_id, broker.epoch): broker for broker in live.values() if self._is_news(broker)}
        for key in self._joining.keys() - joined.keys():
            self._joining.pop(key).cancel()
        for key in joined.keys() - self._joining.keys():
            self._joining[key] = tasks.start(
                self._register(joined[key], tasks), name=f"registration of broker {key[0]}"
            )
            self._joining[key].add_done_callback(partial(self._joined, key))

    def _joined(self, key: tuple[int, int], task: asyncio.Task[None]) -> None:
        if self._joining.get(key) is task:
            del self._joining[key]

    def _is_news(self, broker: BrokerRegistration) -> bool:
        known = self._metadata.image.brokers.get(broker.broker_id)
        return known is None or known.epoch < broker.epoch

    async def _register(self, broker: BrokerRegistration, tasks: TaskSet) -> None:
        """Register a broker after requesting a report of its logs. Retry until the registration succeeds."""
        while True:
            try:
                report = await self._recovery.request(broker, None)
                decide = partial(register_broker, registration=broker, report=report, rules=self._rules)
                recoveries = await self._controller.submit(decide, waits_for_store=True, is_slow=True)
                break
            except Exception as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
                    return  # the term is over
                self._failures.report(
                    "could not register a broker: retrying",
                    error,
                    self._monotonic(),
                    broker=broker.broker_id,
                )
            await asyncio.sleep(REGISTRATION_PAUSE_S)
        self._recovery.note(recoveries)
        self._update_watched(tasks)

    async def _fence_the_absent(self) -> None:
        assert self._present is not None
        all_count = self._monotonic() >= self._trusted_s
        for broker in self._metadata.image.live_brokers():
            if broker.broker_id not in self._present and (all_count or broker.broker_id in self._seen):
                await self._fence(broker.broker_id, broker.epoch, "it has no session with the coordination store")

    async def _fence(self, broker_id: int, epoch: int, reason: str) -> None:
        if await self._controller.submit(
            lambda image: fence_broker(image, broker_id, self._rules, epoch=epoch), waits_for_store=True, is_slow=True
        ):
            _log.warning("broker fenced", extra={"broker": broker_id, "epoch": epoch, "reason": reason})

    # --- Brokers whose process ends ---

    def _update_watched(self, tasks: TaskSet) -> None:
        """Watch every live broker except this one, and stop watching brokers that are no longer alive."""
        living = {(b.broker_id, b.epoch): b for b in self._metadata.image.live_brokers()}
        living.pop((self._broker_id, self._own_epoch()), None)
        for key in self._watched.keys() - living.keys():
            self._watched.pop(key).cancel()
            self._since.pop(key, None)
        now = self._monotonic()
        for key in living.keys() - self._watched.keys():
            is_silent = self._distrusted is not None and living[key].incarnation_id == self._distrusted
            if is_silent:
                self._distrusted = None
            self._since[key] = now - self._silence_s if is_silent else now
            self._watched[key] = tasks.start(self._watch(living[key], tasks), name=f"watch over broker {key[0]}")

    def _own_epoch(self) -> int:
        own = self._metadata.image.brokers.get(self._broker_id)
        return -1 if own is None else own.epoch

    async def _watch(self, broker: BrokerRegistration, tasks: TaskSet) -> None:
        endpoint = broker.endpoint(self._listener)
        if broker.incarnation_id in self._refusing:
            _log.warning("the controller cannot reach a broker that is alive", extra={"broker": broker.broker_id})
        elif endpoint is not None:
            await until_gone(endpoint, self._hold)
            self._refusing.add(broker.incarnation_id)
            try:
                await self._fence(broker.broker_id, broker.epoch, "its process has ended: connections are refused")
            except KafkaError as error:
                if error.code != ErrorCode.NOT_CONTROLLER:
                    raise
                return  # the term is over
            self._update_watched(tasks)

    # --- Silent brokers ---

    async def _fence_the_silent(self, tasks: TaskSet) -> None:
        pause_s = self._silence_s / CHECKS_PER_SILENCE
        before = self._monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = self._monotonic()
            if now - before > 3 * pause_s:  # this process itself was stalled, and could not hear the brokers
                self._since = dict.fromkeys(self._since, now)
            before = now
            if self._present is None:
                continue  # the members have not been compared with the store yet, which may have been rolled back
            await self._fence_the_absent()
            for broker_id, epoch in self._silent(now):
                await self._fence(broker_id, epoch, f"it has not requested metadata for {self._silence_s:g} s")
            self._update_watched(tasks)

    def _silent(self, now: float) -> list[tuple[int, int]]:
        """Return the ids and epochs of the brokers to fence because they are silent.

        Brokers that are cut off at the same moment do not become silent at the same moment: their last requests can be
        a third of ``silence_s`` apart, which is the interval between two requests. So only a request in the last half
        of ``silence_s`` counts as a sign of life.
        """
        lasts = {broker: now - self._heard_s(*broker, since) for broker, since in self._since.items()}
        heard = 1 + sum(each <= self._silence_s / 2 for each in lasts.values())
        if 2 * heard < len(self._metadata.image.brokers):
            return []
        return [broker for broker, each in lasts.items() if each > self._silence_s]

    def _heard_s(self, broker_id: int, epoch: int, since: float) -> float:
        progress = self._publisher.progress_of.get(broker_id)
        if progress is None or progress.broker_epoch != epoch:
            return since
        return max(progress.fetched_s, since)


def _live(members: Mapping[str, Member]) -> dict[int, BrokerRegistration]:
    """Return the registrations of the members, by broker id."""
    joined = (replace(registration_from_bytes(each.data), epoch=each.incarnation) for each in members.values())
    return {registration.broker_id: registration for registration in joined}
