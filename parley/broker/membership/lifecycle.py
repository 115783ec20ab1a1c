"""A broker's life in the cluster: its session with the coordination store, its membership, its candidacy.

One session carries all of it. While the session lasts the broker is a member of the group of brokers and a candidate
for controller; when it is lost, everything is begun anew in another session, under a higher broker epoch. Meanwhile the
broker goes on following the controller it knows. Whoever is controller turns the members of the group into
registrations in the metadata (``members``).

The store may move while the cluster runs (``moving``): then this session is given up, and another begun in the store
that is in charge now, under the epochs that were carried over.

A broker that was fenced although it lives joins the group anew, under a higher epoch. Its id is its own: the place of
an earlier incarnation that is dead is taken at once, but a living broker with the same id makes this one give up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from parley.broker.controller.brokers import UncleanAllowed, hand_over_leadership
from parley.broker.controller.controller import ELECTION, RETRY_SECONDS, Controller
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.membership.controller_follower import Following
from parley.broker.membership.controller_silence import Silence
from parley.broker.membership.live_brokers import BROKERS_GROUP, Members
from parley.broker.membership.watchdog import is_gone
from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_from_bytes, registration_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.broker.network.peers import Peers
from parley.broker.runtime.tasks import TaskSet, race
from parley.broker.store_move.participant import Moves
from parley.consensus.backend import Session, SessionState
from parley.consensus.errors import AlreadyExists, BadConfig, CoordinationError, Lost, Moved, Retriable
from parley.consensus.recipes.elections import Elections, Leader
from parley.consensus.recipes.groups import Groups, Member, Membership
from parley.consensus.recipes.keyvalue import KeyValue
from parley.consensus.session import SAFE_FRACTION
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.brokers import ControlledShutdownRequest, ControlledShutdownResponse
from parley.protocol.sentinels import NO_EPOCH

log = logging.getLogger(__name__)

PROBE_S = 1.0
"""How long a broker with our id may take to accept a connection."""
ALIVE_PROBES = 5
"""A broker with our id that accepts so many connections, one second after another, lives: we give up."""


class Liveness:
    """Keeps this broker a member, and its metadata in step with the controller's; or is the controller."""

    def __init__(
        self,
        moves: Moves,
        registration: BrokerRegistration,
        metadata: Metadata,
        publisher: MetadataPublisher,
        peers: Peers,
        *,
        listener: str,
        session_ttl_ms: int,
        heartbeat_ms: int,
        unclean: UncleanAllowed,
        duties: Sequence[Callable[[Controller], Coroutine[Any, Any, None]]],
        monotonic: Callable[[], float],
        rng: Random,
    ) -> None:
        """``listener`` is the name of the one that brokers use among themselves; ``duties`` run beside each term in
        office, until they are cancelled."""
        silence_s = session_ttl_ms / 1000
        self._silence_s = silence_s
        self.silence = Silence(monotonic)
        """Of the controller, for this broker."""
        broker_id = registration.broker_id
        self.moves = moves
        self._registration = registration
        self._data = registration_to_bytes(registration)
        self._metadata = metadata
        self._listener = listener
        self._session_ttl_ms = session_ttl_ms
        self._rng = rng
        self._duties = duties
        self._unclean = unclean
        self._peers = peers
        self._monotonic = monotonic
        self._publisher = publisher
        self._session: Session | None = None
        self._rejoin = asyncio.Event()
        self._unfreezing = TaskSet()
        self._is_leaving = False
        self.broker_epoch = NO_EPOCH
        """Of this broker's registration, -1 before the first."""
        self.controller = Controller(broker_id, self._data, rng, metadata, publisher)
        self._members = Members(
            broker_id,
            self.controller,
            metadata,
            publisher,
            listener=listener,
            unclean=unclean,
            silence_s=silence_s,
            monotonic=monotonic,
        )
        self._following = Following(
            broker_id,
            self._data,
            metadata,
            peers,
            listener=listener,
            broker_epoch=lambda: self.broker_epoch,
            depose=self._depose,
            stale=self._rejoin.set,
            silence=self.silence,
            heartbeat_s=min(heartbeat_ms / 1000, silence_s / 3),
            silence_s=silence_s,
        )

    async def run(self) -> None:
        """Live session after session; runs until it is cancelled, or the store refuses for good."""
        try:
            await race(self._following.run(), self._live_on())
        finally:
            await self._unfreezing.close()

    @property
    def may_be_superseded(self) -> bool:
        """Whether others may hold this broker for gone by now, and lead in its place, without its having heard of it.

        It is judged by the clock: a process that was stopped knows at once, and until a controller has answered a
        question that was asked after that. Nobody is fenced earlier than that: a session may end two thirds of its time
        after the last question, since it was renewed before. A controller itself has its session to go by.
        """
        if self._publisher.is_open:
            return self._session is None or self._session.state is not SessionState.CONNECTED
        return self.silence.untold_s > SAFE_FRACTION * self._silence_s

    @property
    def store(self) -> KeyValue:
        """The keys of the store that is in charge now."""
        return KeyValue(self.moves.store, self._rng)

    async def _live_on(self) -> None:
        while True:
            try:
                await self._live()
            except Moved as moved:
                log.warning("the coordination store has moved", extra={"reason": str(moved)})
                await self.moves.go_on_elsewhere(self._metadata.image.controller_epoch)
            except Lost as lost:
                log.warning("session with the coordination store lost", extra={"reason": str(lost)})
            except Retriable as error:
                log.warning("coordination store does not answer", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _live(self) -> None:
        """One session: ends by raising, whatever part of it ends first."""
        store = self.moves.store
        session = self._session = await store.open_session(self._session_ttl_ms)
        since_s = self._monotonic()
        elections = Elections(store, session, self._rng)
        groups = Groups(store, session, self._rng)
        joined = asyncio.Event()
        try:
            await race(
                self.moves.follow(str(self._registration.broker_id), session),
                self._observe(elections),
                self._stay_member(groups, session, joined),
                self._candidacy(elections, groups, since_s, joined),
            )
        finally:
            try:
                await session.close()
            except CoordinationError as error:
                log.info("session not closed", extra={"reason": str(error)})

    async def _observe(self, elections: Elections) -> None:
        async for leader in elections.observe(ELECTION):
            if leader is not None and leader.candidate != self._data:
                self._members.trust_all()  # it is for that one to judge whoever was deposed
            self._following.controller_is(leader)

    async def _candidacy(self, elections: Elections, groups: Groups, since_s: float, joined: asyncio.Event) -> None:
        await joined.wait()  # a broker whose id is another's does not get so far
        await self.controller.run(elections, lambda: self._in_office(groups, since_s))

    async def _in_office(self, groups: Groups, since_s: float) -> None:
        await race(
            self._members.run(groups, since_s),
            self.moves.drive(groups),
            *(duty(self.controller) for duty in self._duties),
        )

    def _depose(self, leader: Leader, is_silent: bool) -> None:
        if is_silent:
            self._members.distrust(registration_from_bytes(leader.candidate).incarnation_id)
        self._unfreezing.start(self.moves.unfreeze_after(leader.epoch), name="end of a dead controller's move")
        self.controller.depose(leader)

    # -- membership ------------------------------------------------------------------------------------------------

    async def _stay_member(self, groups: Groups, session: Session, joined: asyncio.Event) -> None:
        """Be a member for as long as the session lasts, under a new epoch whenever the present one is worth nothing."""
        while True:
            membership = await self._join(groups)
            self._rejoin.clear()
            self.broker_epoch = membership.incarnation
            joined.set()
            self._look_at_ourselves()
            await self._until_over(membership)
            session.require()
            await self._refuse_successor(groups)

    async def _refuse_successor(self, groups: Groups) -> None:
        """Our place in the group may be another's now, who has this broker's id, and its address."""
        present = (await groups.members(BROKERS_GROUP)).get(str(self._registration.broker_id))
        if present is not None:
            other = registration_from_bytes(present.data)
            if other.incarnation_id != self._registration.incarnation_id:
                raise BadConfig(
                    f"another process has registered as broker {other.broker_id} with the same address: "
                    "give each broker an id and an advertised address of its own"
                )

    async def _until_over(self, membership: Membership) -> None:
        """Wait until this membership is over, or worth nothing since the broker was fenced."""
        over = [asyncio.ensure_future(membership.lost.wait()), asyncio.ensure_future(self._rejoin.wait())]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in over:
                future.cancel()

    async def _join(self, groups: Groups) -> Membership:
        member_id = str(self._registration.broker_id)
        probes = 0
        while True:
            present = (await groups.members(BROKERS_GROUP)).get(member_id)
            replaced = present if present is not None and await self._is_dead(present) else None
            try:
                return await groups.join(BROKERS_GROUP, member_id, self._data, replace=replaced)
            except AlreadyExists:
                probes += 1
                if probes == 1:
                    log.warning("another broker with this id is registered", extra={"broker": member_id})
            if probes == ALIVE_PROBES:
                raise BadConfig(
                    f"broker.id {member_id} belongs to a broker that lives, at {self._address_of(present)}: "
                    "give each broker an id of its own, or stop that one"
                )
            await asyncio.sleep(PROBE_S)

    async def _is_dead(self, member: Member) -> bool:
        """Whether the member with our id is an earlier incarnation of this broker, or a process that is gone."""
        other = registration_from_bytes(member.data)
        if other.incarnation_id == self._registration.incarnation_id:
            return True
        endpoint = other.endpoint(self._listener)
        if endpoint is None or endpoint == self._registration.endpoint(self._listener):
            return True  # the address is ours now
        return await is_gone(endpoint, timeout_s=PROBE_S)

    def _address_of(self, member: Member | None) -> str:
        endpoint = None if member is None else registration_from_bytes(member.data).endpoint(self._listener)
        return "an unknown address" if endpoint is None else f"{endpoint.host}:{endpoint.port}"

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Follow a change of the metadata (a subscriber)."""
        self._look_at_ourselves()
        self.moves.controller_is(image.controller_epoch)

    def _look_at_ourselves(self) -> None:
        """Join anew where the metadata says that this broker, as it is registered now, was fenced."""
        known = self._metadata.image.brokers.get(self._registration.broker_id)
        if known is not None and known.fenced and known.epoch >= self.broker_epoch >= 0 and not self._is_leaving:
            self._rejoin.set()

    async def until_registered(self) -> None:
        """Wait until the metadata knows this very incarnation of the broker as alive."""

        def is_registered(image: MetadataImage) -> bool:
            known = image.brokers.get(self._registration.broker_id)
            return known is not None and known.incarnation_id == self._registration.incarnation_id and not known.fenced

        await self._metadata.until(is_registered, None)

    # -- leaving ---------------------------------------------------------------------------------------------------

    async def leave(self, *, retries: int, pause_s: float) -> None:
        """Have the controller give what this broker leads to others, so that nobody waits when it stops.

        Nothing happens where no other broker lives. Where the controller does not answer, it is asked again when there
        is another one, or after a pause. Raises KafkaError when that was of no use either.
        """
        self._is_leaving = True
        own = self._registration.broker_id
        for attempt in range(retries + 1):
            image = self._metadata.image
            known = image.brokers.get(own)
            if known is None or known.fenced or all(broker.broker_id == own for broker in image.live_brokers()):
                return
            try:
                await self._hand_over()
                await self._metadata.until(lambda image: image.brokers[own].fenced, pause_s)
                return
            except KafkaError as error:
                if attempt == retries:
                    raise
                log.info("controlled shutdown is tried again", extra={"reason": str(error)})
            epoch = image.controller_epoch
            await self._metadata.until(lambda image: image.controller_epoch != epoch, pause_s)  # noqa: B023

    async def _hand_over(self) -> None:
        own = self._registration.broker_id
        if self.controller.is_active:
            await self.controller.submit(
                lambda image: hand_over_leadership(image, own, self.broker_epoch, self._unclean)
            )
            return
        answer: ControlledShutdownResponse = await self._peers.ask_controller(
            ControlledShutdownRequest(broker_id=own, broker_epoch=self.broker_epoch)
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
