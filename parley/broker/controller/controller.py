"""The controller: the one writer of the cluster's metadata.

Every broker campaigns; the one that is elected reads the store into an image, then carries out decisions one after
another on one queue. Decisions that wait together are committed together. A batch goes to the store first, under the
guard of this term's leadership, and only then becomes the image that brokers see and the answers callers get: so
nothing is ever seen that a successor could not read. A write that is refused by the guard ends the term at once.

A controller found dead is deposed (:meth:`Controller.depose`): the campaign goes on in its place, whatever its session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from parley.broker.controller.decision import Decide, Decision
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.stored_metadata import PREFIXES, Writes, read_image, writes_for
from parley.broker.metadata.changes import (
    Change,
    ControllerElected,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.consensus.backend import Delete, Op, Put
from parley.consensus.errors import CoordinationError, Fenced, LeadershipLost, LimitExceeded, Retriable
from parley.consensus.recipes.elections import Elections, Leader, Leadership
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

T = TypeVar("T")

ELECTION = "controller"
QUEUE_MAX = 10_000
"""Decisions that may wait; beyond it callers wait for room."""
BATCH_MAX = 500
"""Decisions committed together."""
RETRY_SECONDS = 0.1


@dataclass(slots=True)
class _Request:
    decide: Decide[Any]
    reply: asyncio.Future[Any]


@dataclass(slots=True)
class _Batch:
    """What a round of decisions amounts to, before it is committed."""

    changes: list[Change]
    answers: list[tuple[_Request, Any]]


@dataclass(frozen=True, slots=True)
class _Named:
    """The topics that a batch speaks of, by what it says of them."""

    changed: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    def note(self, change: Change) -> None:
        """The batch says this too."""
        match change:
            case TopicCreated(topic):
                self.changed.add(topic.name)
            case PartitionChanged(name):
                self.changed.add(name)
            case PartitionsAdded(name):
                self.changed.add(name)
                self.grown.add(name)
            case TopicDeleted(name):
                self.deleted.add(name)

    def forbids(self, change: Change) -> bool:
        """Whether the change has to wait for another batch."""
        match change:
            case TopicCreated(topic):
                return topic.name in self.deleted
            case PartitionsAdded(name):
                return name in self.grown
            case TopicDeleted(name):
                return name in self.changed
        return False


class Controller:
    """This broker's part in controlling the cluster: a candidate, or the one in office."""

    def __init__(
        self,
        broker_id: int,
        candidate: bytes,
        rng: Random,
        metadata: Metadata,
        publisher: MetadataPublisher,
    ) -> None:
        """``candidate`` is what the other brokers need to know to follow; ``publisher`` is open during each term."""
        self._broker_id = broker_id
        self._candidate = candidate
        self._publisher = publisher
        self._dead: Leader | None = None
        self._found_dead = asyncio.Event()
        self._rng = rng
        self._metadata = metadata
        self._queue: asyncio.Queue[_Request] = asyncio.Queue(QUEUE_MAX)
        self._leadership: Leadership | None = None

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._leadership is not None

    async def submit(self, decide: Decide[T]) -> T:
        """Have a decision carried out, and answer its result once its changes are durable and applied here.

        Raises NOT_CONTROLLER where this broker is not, or ceases to be, the controller (the change may then have been
        made nevertheless), and whatever ``decide`` raises.
        """
        if not self.is_active:
            raise _not_controller()
        request = _Request(decide, asyncio.get_running_loop().create_future())
        await self._queue.put(request)
        self._refuse_if_idle()  # the term may have ended while the request waited for room
        result: T = await request.reply
        return result

    async def run(self, elections: Elections, in_office: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Campaign, serve, campaign again, in one session; ends when it is lost, raising SessionLost.

        What it reads and writes is in the store that the elections are in.
        ``in_office()`` runs beside each term, from the moment the image is read; it is cancelled at the end.
        """
        self._store = KeyValue(elections.backend, self._rng)
        while True:
            try:
                await self._serve(await self._campaign(elections), in_office)
            except (Fenced, LeadershipLost) as lost:
                log.warning("controller lost its office", extra={"broker": self._broker_id, "reason": str(lost)})
            except Retriable as error:
                log.warning("coordination store does not answer", extra={"error": str(error)})
                await asyncio.sleep(RETRY_SECONDS)
            except CoordinationError:
                raise
            except Exception:
                log.exception("the controller gives up its office", extra={"broker": self._broker_id})
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._leadership = None
                self._refuse_all()

    def depose(self, leader: Leader) -> None:
        """This controller is dead: campaign in its place. Nothing happens if it does not lead any more.

        Who says so once more does not hold up the campaign that is under way: a slow store would never see its end.
        """
        if leader != self._dead:
            self._dead = leader
            self._found_dead.set()

    async def _campaign(self, elections: Elections) -> Leadership:
        """Wait for the office to be free, or for its holder to be found dead."""
        while True:
            self._found_dead.clear()
            campaign = asyncio.ensure_future(
                elections.campaign(
                    ELECTION,
                    self._candidate,
                    min_epoch=self._metadata.image.controller_epoch + 1,
                    depose=self._dead,
                )
            )
            found_dead = asyncio.ensure_future(self._found_dead.wait())
            try:
                await asyncio.wait({campaign, found_dead}, return_when=asyncio.FIRST_COMPLETED)
                if campaign.done():
                    return campaign.result()
            finally:
                campaign.cancel()
                found_dead.cancel()
                await asyncio.wait({campaign})

    async def _serve(self, leadership: Leadership, in_office: Callable[[], Coroutine[Any, Any, None]]) -> None:
        image = await self._read()
        self._take_office(leadership, image)
        companion = asyncio.ensure_future(in_office())
        lost = asyncio.ensure_future(leadership.lost.wait())
        get = asyncio.ensure_future(self._queue.get())
        try:
            while True:
                await asyncio.wait({get, lost, companion}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done():
                    break
                if companion.done():
                    companion.result()  # it follows the members as long as the term lasts: it ends by failing only
                request, get = get.result(), asyncio.ensure_future(self._queue.get())
                await self._round(leadership, request)
        finally:
            if get.done():
                _fail([get.result()], _not_controller())
            self._leadership = None
            self._publisher.close()
            for task in (get, lost, companion):
                task.cancel()
            await asyncio.gather(companion, return_exceptions=True)
            await self._resign(leadership)

    @staticmethod
    async def _resign(leadership: Leadership) -> None:
        try:
            await leadership.resign()
        except CoordinationError as error:
            log.info("leadership not given back", extra={"reason": str(error)})

    async def _read(self) -> MetadataImage:
        stored: dict[str, bytes] = {}
        for prefix in PREFIXES:
            async for entry in self._store.entries(prefix):
                stored[entry.key] = entry.value
        return read_image(self._metadata.image.cluster_id, stored)

    def _take_office(self, leadership: Leadership, stored: MetadataImage) -> None:
        image = _with_controller(stored, self._broker_id, leadership.epoch)
        changes = image.changes_since(self._metadata.image)
        self._leadership = leadership
        self._metadata.replace(image, Delta(leadership.epoch, image.version, changes))
        self._publisher.open()
        log.info(
            "controller in office",
            extra={"broker": self._broker_id, "epoch": leadership.epoch, "topics": len(image.topics)},
        )

    # -- one round ---------------------------------------------------------------------------------------------

    async def _round(self, leadership: Leadership, first: _Request) -> None:
        """Decide on everything that waits, commit it together, answer."""
        requests = [first]
        while len(requests) < BATCH_MAX and not self._queue.empty():
            requests.append(self._queue.get_nowait())
        try:
            try:
                await self._carry_out(leadership, requests)
            except LimitExceeded:
                for request in requests:
                    if not request.reply.done():  # what came before the trouble was carried out
                        await self._round_of_one(leadership, request)
        except BaseException:
            _fail(requests, _not_controller())
            raise

    async def _round_of_one(self, leadership: Leadership, request: _Request) -> None:
        try:
            await self._carry_out(leadership, [request])
        except LimitExceeded as too_much:
            _fail([request], KafkaError(ErrorCode.INVALID_REQUEST, f"Too large for the coordination store: {too_much}"))

    async def _carry_out(self, leadership: Leadership, requests: list[_Request]) -> None:
        while requests:
            before = self._metadata.image
            batch, after = self._decide(before, requests)
            if batch.changes:
                await self._commit(leadership, writes_for(batch.changes, after, before))
                self._metadata.apply(Delta(leadership.epoch, before.version + 1, tuple(batch.changes)))
            for request, answer in batch.answers:
                if request.reply.done():
                    continue
                if isinstance(answer, Exception):
                    request.reply.set_exception(answer)
                else:
                    request.reply.set_result(answer)
            requests = requests[len(batch.answers) :]

    @staticmethod
    def _decide(image: MetadataImage, requests: list[_Request]) -> tuple[_Batch, MetadataImage]:
        """Decide on the first requests, or on all of them.

        A batch says nothing of a topic after which an earlier word of it no longer fits the image it leads to, for the
        store and every broker look topics up in that image. So a topic grows once in a batch, and is not deleted in the
        one that changes it. Nor is another of its name made in the one that deletes it: should the writes be cut off in
        the middle, the one topic's key would stand over the other's partitions.
        """
        batch = _Batch([], [])
        named = _Named()
        for request in requests:
            try:
                decision: Decision[Any] = request.decide(image)
            except Exception as error:
                if not isinstance(error, KafkaError):
                    log.exception("a decision failed")
                batch.answers.append((request, error))
                continue
            if any(map(named.forbids, decision.changes)):
                break
            for change in decision.changes:
                named.note(change)
            if decision.changes:
                image = image.with_changes(decision.changes)
                batch.changes += decision.changes
            batch.answers.append((request, decision.result))
        return batch, image

    async def _commit(self, leadership: Leadership, writes: Writes) -> None:
        """Write in order, under the guard, in as few transactions as the store's limits allow."""
        ops: list[Op] = [Delete(key) if value is None else Put(key, value) for key, value in writes.items()]
        for part in self._store.split(ops):
            while True:
                try:
                    await self._store.txn((), part, guard=leadership.guard())
                    break
                except Retriable as error:
                    # The writes are whole values, and guarded: repeating one whose fate is unknown does no harm.
                    log.warning("metadata write repeated", extra={"reason": str(error)})
                    leadership.require()
                    await asyncio.sleep(RETRY_SECONDS)

    def _refuse_if_idle(self) -> None:
        if self._leadership is None:
            self._refuse_all()

    def _refuse_all(self) -> None:
        while not self._queue.empty():
            _fail([self._queue.get_nowait()], _not_controller())


def _with_controller(image: MetadataImage, broker_id: int, epoch: int) -> MetadataImage:
    return image.apply(Delta(epoch, 0, (ControllerElected(broker_id, epoch),)))


def _fail(requests: list[_Request], error: KafkaError) -> None:
    for request in requests:
        if not request.reply.done():
            request.reply.set_exception(error)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller of the cluster.")
