"""A broker's life in the cluster: its session with the coordination store, its membership and its candidacy.

All of these depend on one session. Until it expires, the broker is a member of the group of brokers and a candidate for
controller. When the session is lost, the broker opens another one and joins again under a higher broker epoch.
Meanwhile it keeps following the last known controller. The elected controller turns the group's members into
registrations in the metadata (``broker_fencing``). ``broker_state`` defines the states and their transitions.

The cluster may move to another store while it runs (``store_move``). The broker then opens its next session in the
store that the cluster now uses. All epochs are carried over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any

from parley.broker.controller.controller import ELECTION, RETRY_SECONDS, Controller, store_unavailable
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.membership.broker_fencing import BrokerFencing
from parley.broker.membership.broker_state import BrokerEvent, BrokerState, next_state
from parley.broker.membership.controlled_shutdown import ControlledShutdown
from parley.broker.membership.controller_follower import ControllerFollower
from parley.broker.membership.controller_silence import ControllerSilence
from parley.broker.membership.joining import BROKERS_GROUP, Joining
from parley.broker.membership.measured_store import StoreCounts
from parley.broker.membership.remembered_epochs import EpochFile, RememberedEpochs
from parley.broker.membership.store_outage import StoreOutage
from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.network.peers import Peers
from parley.broker.runtime.tasks import TaskSet, race
from parley.broker.store_move.driver import StoreMoveDriver
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.consensus.backend import Session, SessionState
from parley.consensus.errors import CoordinationError, Lost, Moved, OlderStore, Retriable
from parley.consensus.recipes.elections import Elections, Leader
from parley.consensus.recipes.groups import Groups, Membership
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.session import SAFE_FRACTION
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID

_log = logging.getLogger(__name__)

OUTAGE_PATIENCE_S = 1.0
"""How long a controlled shutdown continues while the coordination store does not respond."""
EPOCH_WRITE_MAX_S = 2.0
"""How long a broker waits for its new epoch to be written to disk before it joins anyway."""
SESSION_CLOSE_MAX_S = 2.0
"""How long closing a session may take. A session that was not closed expires by itself."""


class BrokerLifecycle:
    """Keeps this broker a member of the cluster and a candidate for controller, and keeps its metadata up to date."""

    def __init__(
        self,
        store_move: StoreMoveParticipant,
        store_move_driver: StoreMoveDriver,
        registration: BrokerRegistration,
        metadata: Metadata,
        publisher: MetadataPublisher,
        peers: Peers,
        *,
        listener: str,
        session_ttl_ms: int,
        heartbeat_ms: int,
        epochs: EpochFile,
        ids_in_use: Callable[[], Mapping[str, int]],
        rules: RulesOf,
        recovery: UncleanRecovery,
        duties: Sequence[Callable[[Controller], Coroutine[Any, Any, None]]],
        monotonic: Callable[[], float],
        rng: Random,
        counts: StoreCounts,
    ) -> None:
        """``listener`` is the name of the inter-broker listener. ``ids_in_use()`` returns, for counters in the store,
        one more than the highest id that this broker knows to be in use. ``duties`` run during each of this broker's
        terms as controller, until they are cancelled."""
        broker_id = registration.broker_id
        self._silence_s = session_ttl_ms / 1000
        self.state = BrokerState.CONNECTING
        self.silence = ControllerSilence(monotonic)
        """Measures how long this broker has not heard from the controller."""
        self.broker_epoch = NO_EPOCH
        """The broker epoch of this broker's latest membership; ``NO_EPOCH`` before the first one."""
        self.store_move = store_move
        self.outage = StoreOutage(monotonic)
        self._store_move_driver = store_move_driver
        self._epochs = epochs
        self._ids_in_use = ids_in_use
        self._broker = registration
        self._joining = Joining(registration, listener)
        self._metadata = metadata
        self._publisher = publisher
        self._session_ttl_ms = session_ttl_ms
        self._duties = duties
        self._monotonic = monotonic
        self._rng = rng
        self._counts = counts
        self._session: Session | None = None
        self._named_epoch = NO_EPOCH
        """Epoch of the last controller that the coordination store has named."""
        self._rejoin = asyncio.Event()
        self._background = TaskSet()
        self.controller = Controller(
            broker_id,
            self._joining.data,
            rng,
            metadata,
            publisher,
            is_store_frozen=lambda: not store_move.is_settled,
        )
        self._fencing = BrokerFencing(
            broker_id,
            self.controller,
            metadata,
            publisher,
            hold=peers.hold,
            listener=listener,
            rules=rules,
            recovery=recovery,
            silence_s=self._silence_s,
            monotonic=monotonic,
        )
        self._controller_follower = ControllerFollower(
            broker_id,
            self._joining.data,
            metadata,
            peers,
            listener=listener,
            broker_epoch=lambda: self.broker_epoch,
            depose=self._depose,
            stale=self._epoch_refused,
            silence=self.silence,
            why_no_election=lambda: self.outage.description,
            heartbeat_s=min(heartbeat_ms / 1000, self._silence_s / 3),
            silence_s=self._silence_s,
            monotonic=monotonic,
        )
        self.shutdown = ControlledShutdown(
            broker_id, self.controller, metadata, peers, broker_epoch=lambda: self.broker_epoch, rules=rules
        )

    def _on(self, event: BrokerEvent) -> None:
        self.state = next_state(self.state, event)

    async def run(self) -> None:
        """Keep a session with the store until cancelled. When a session is lost, open another.

        Raises CoordinationError if the store permanently rejects this broker, and DuplicateBrokerId if another broker
        uses this broker's id.
        """
        try:
            await race(self._controller_follower.run(), self._keep_session(), self._epochs.run())
        finally:
            self._on(BrokerEvent.STOP)
            await self._background.close()

    @property
    def may_be_superseded(self) -> bool:
        """True if the other brokers may have fenced and replaced this one without this broker knowing.

        This depends on the clock: True if more than two thirds of the session TTL have passed since this broker sent
        the latest request to which a controller responded. No broker is fenced earlier than that. After a process was
        stalled for longer, this is therefore True until a controller has responded to a new request. The controller
        itself relies on its session instead.
        """
        if self._publisher.is_open:
            return self._session is None or self._session.state is not SessionState.CONNECTED
        return self.silence.metadata_age_s > SAFE_FRACTION * self._silence_s

    @property
    def registration(self) -> BrokerRegistration:
        """The registration that this broker submits, without the epoch that it will be assigned."""
        return self._broker

    @property
    def store(self) -> KeyValue:
        """The keys and values of the store that the cluster currently uses."""
        return KeyValue(self.store_move.store, self._rng)

    def store_error(self) -> KafkaError | None:
        """Return the error for clients whose change requires the store, or None while the store responds."""
        duration_s, store = self.outage.duration_s, self.store_move.store.capabilities.name
        if duration_s is None:
            return None
        return store_unavailable(store, f"has not responded for {duration_s:.0f} s", is_uncertain=False)

    @property
    def incarnation_id(self) -> UUID:
        """The id that identifies this process in its registration."""
        return self._broker.incarnation_id

    @property
    def registered_epoch(self) -> int:
        """The epoch under which the metadata shows this process as registered; ``NO_EPOCH`` if it does not."""
        known = self._metadata.image.brokers.get(self._broker.broker_id)
        is_this = known is not None and known.incarnation_id == self._broker.incarnation_id
        return known.epoch if known is not None and is_this else NO_EPOCH

    @property
    def clean_epoch(self) -> int:
        """The broker epoch for the clean-shutdown marker; ``NO_EPOCH`` if this process was never registered.

        This is the epoch of the latest join, even of a join in progress. The controller may already have registered
        this process under that epoch without this broker knowing, and the marker must not appear older than the
        registration.
        """
        if self.registered_epoch == NO_EPOCH:
            return NO_EPOCH
        return max(self.broker_epoch, self._epochs.known.broker_epoch)

    async def until_registered(self) -> None:
        """Wait, without a time limit, until the metadata shows this process as registered and alive."""

        def is_registered(image: MetadataImage) -> bool:
            known = image.brokers.get(self._broker.broker_id)
            return known is not None and known.incarnation_id == self._broker.incarnation_id and not known.fenced

        await self._metadata.until(is_registered, None)

    async def leave(self, *, retries: int, pause_s: float) -> None:
        """Have the controller move this broker's leaderships before the broker stops (``ControlledShutdown.leave``).

        Raises KafkaError if that fails. Raises COORDINATOR_NOT_AVAILABLE without further attempts if the store does not
        respond for ``OUTAGE_PATIENCE_S``, because then no controller can move them.
        """
        self._on(BrokerEvent.LEAVE)
        leaving = asyncio.ensure_future(self.shutdown.leave(retries=retries, pause_s=pause_s))
        store_is_down = asyncio.ensure_future(self.outage.wait_until_longer_than(OUTAGE_PATIENCE_S))
        try:
            await asyncio.wait({leaving, store_is_down}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"{self.outage.description}: the partitions that this broker leads have no new leader, and the "
                    "cluster shows it as alive until the store responds again",
                )
            leaving.result()
        finally:
            leaving.cancel()
            store_is_down.cancel()
            await asyncio.wait({leaving, store_is_down})

    # --- The session ---

    async def _keep_session(self) -> None:
        while True:
            try:
                await self._live_in_one_session()
            except Moved as moved:
                _log.warning(
                    "the cluster has moved to another coordination store: switching to it", extra={"reason": str(moved)}
                )
                await self.store_move.continue_in_new_store(self._named_epoch, self._metadata.image.controller_epoch)
            except OlderStore as older:
                _log.error(
                    "the coordination store was rolled back under this broker: opening it again",
                    extra={"reason": str(older)},
                )
                await self.store_move.open_again(self.outage.record_failure)
            except Lost as lost:
                _log.warning("session with the coordination store lost", extra={"reason": str(lost)})
            except Retriable as error:
                self.outage.record_failure(str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _live_in_one_session(self) -> None:
        """Open a session, and remain a member and a candidate in it. Raises the first error that ends the session, the
        membership or the candidacy."""
        store = self.store_move.store
        session = self._session = await store.open_session(self._session_ttl_ms)
        self.outage.record_response()
        self._counts.session_opened(session)
        session.add_callback(self._session_changed)
        self._on(BrokerEvent.SESSION_OPENED)
        since_s = self._monotonic()
        elections = Elections(store, session, self._rng)
        groups = Groups(store, session, self._rng)
        joined = asyncio.Event()
        try:
            await race(
                self.store_move.follow(str(self._broker.broker_id), session),
                self._observe_elections(elections),
                self._stay_member(groups, session, joined),
                self._be_candidate(elections, groups, since_s, joined),
            )
        finally:
            self._on(BrokerEvent.SESSION_ENDED)
            self._counts.session_closing(session)
            is_hopeless = self.state is BrokerState.LEAVING and self.outage.duration_s is not None
            try:
                async with asyncio.timeout(0 if is_hopeless else SESSION_CLOSE_MAX_S):
                    await session.close()
            except (CoordinationError, TimeoutError) as error:
                reason = str(error) or "the coordination store does not respond"
                _log.info("the session could not be closed: it will expire by itself", extra={"reason": reason})

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            self.outage.record_failure("the session with it is not being renewed")
        elif state is SessionState.CONNECTED:
            self.outage.record_response()

    # --- The controller ---

    async def _observe_elections(self, elections: Elections) -> None:
        async for leader in elections.observe(ELECTION):
            if leader is not None:
                self._named_epoch = leader.epoch
                if leader.candidate != self._joining.data:
                    self._fencing.trust_all()  # from now on, that broker judges the deposed controller
            self._controller_follower.follow(leader)

    async def _be_candidate(self, elections: Elections, groups: Groups, since_s: float, joined: asyncio.Event) -> None:
        await joined.wait()  # a broker whose id is taken must not become controller
        await self.controller.run(elections, lambda: self._run_duties(groups, since_s))

    async def _run_duties(self, groups: Groups, since_s: float) -> None:
        await race(
            self._fencing.run(groups, since_s),
            self._store_move_driver.run(groups.session, lambda: groups.members(BROKERS_GROUP)),
            *(duty(self.controller) for duty in self._duties),
        )

    def _depose(self, leader: Leader, is_silent: bool) -> None:
        if is_silent:
            self._fencing.distrust(registration_from_bytes(leader.candidate).incarnation_id)
        self._background.start(self.store_move.abandon_move_of(leader.epoch), name="end of a dead controller's move")
        self.controller.depose(leader)

    # --- Membership ---

    async def _stay_member(self, groups: Groups, session: Session, joined: asyncio.Event) -> None:
        """Remain a member until the session ends. Join again under a new epoch whenever this broker has been fenced."""
        while True:
            await self._raise_counters()
            membership = await self._joining.join(groups, self._epochs.known, self._remember_epoch)
            self._rejoin.clear()
            # The incarnation of a member is a number: it becomes the broker epoch. It is not ``incarnation_id``, which
            # identifies this process.
            self.broker_epoch = membership.incarnation
            self._epochs.note(RememberedEpochs(broker_epoch=membership.incarnation))
            self._on(BrokerEvent.JOINED)
            joined.set()
            self._compare_with_metadata()
            await self._until_over(membership)
            session.require()
            await self._joining.refuse_successor(groups, membership.incarnation)
            self._on(BrokerEvent.MEMBERSHIP_ENDED)

    async def _remember_epoch(self, epoch: int) -> None:
        """Write to disk that this broker is about to take this epoch.

        A disk that is full or hangs delays the broker by at most ``EPOCH_WRITE_MAX_S``.
        """
        self._epochs.note(RememberedEpochs(broker_epoch=epoch))
        saving = self._background.start(self._epochs.save(), name="write of the broker epoch", expected=(OSError,))
        await asyncio.wait({saving}, timeout=EPOCH_WRITE_MAX_S)
        reason = saving.exception() if saving.done() else "the disk hangs"
        if reason is not None:
            _log.warning(
                "joining before the broker epoch is on disk: if this broker dies now, its replicas count as lost",
                extra={"epoch": epoch, "reason": str(reason)},
            )

    async def _raise_counters(self) -> None:
        """Raise the store's counters above the ids in use, in case the store was rolled back to an older state."""
        for counter, end in self._ids_in_use().items():
            was = await self.store.reserve_below(counter, end)
            if was is not None:
                _log.warning(
                    "a counter in the coordination store was below ids in use and has been raised",
                    extra={"counter": counter, "was": was, "now": end},
                )

    async def _until_over(self, membership: Membership) -> None:
        """Wait until this membership has ended, or is useless because this broker was fenced."""
        over = [asyncio.ensure_future(membership.lost.wait()), asyncio.ensure_future(self._rejoin.wait())]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in over:
                future.cancel()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Update the state of the membership after a metadata change. The metadata calls this for every change."""
        self._epochs.note_image(delta, image)
        self._compare_with_metadata()
        self.store_move.controller_elected(image.controller_epoch)

    def _compare_with_metadata(self) -> None:
        """Update the state from this broker's current registration in the metadata. Join again if it was fenced."""
        known = self._metadata.image.brokers.get(self._broker.broker_id)
        if known is None or not known.epoch >= self.broker_epoch >= 0:
            return
        if not known.fenced:
            self._on(BrokerEvent.REGISTERED)
        elif self.state is not BrokerState.LEAVING:
            self._on(BrokerEvent.FENCED)
            self._rejoin.set()

    def _epoch_refused(self) -> None:
        """Join again, because the controller has rejected this broker's epoch."""
        self._on(BrokerEvent.FENCED)
        self._rejoin.set()
