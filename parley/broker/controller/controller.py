"""The controller: the only writer of the cluster's metadata.

Every broker campaigns. The winner loads the image from the store and then carries out decisions from one queue, one
after another. Decisions that wait together are committed together (``decision_batch.py``). A batch is first written to
the store, guarded by this term's leadership. Only then does it become the image that brokers see, in steps if it is
large (``published_steps.py``), and only then do callers get their results. So no broker sees anything that the next
controller could not read. If the guard rejects a write, the term ends immediately. ``controller_state.py`` defines a
controller's states as a table.

If a controller is found dead, ``Controller.depose`` makes the campaign replace it before its session expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

from parley.broker.controller.controller_state import ControllerEvent, ControllerState, next_state
from parley.broker.controller.decision import Decide
from parley.broker.controller.decision_batch import DecisionBatch, DecisionRequest, decide_batch, next_batch
from parley.broker.controller.metadata_publisher import MetadataPublisher, TermStart
from parley.broker.controller.published_steps import in_steps
from parley.broker.controller.stored_metadata import PREFIXES, TERMS, UnreadableMetadata, Writes, read_image, writes_for
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.changes import Change, ControllerElected, Delta, PartitionChanged
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import (
    NO_TERM,
    Term,
    contains,
    contradicts,
    terms_from_bytes,
    terms_to_bytes,
    with_term,
)
from parley.broker.metadata.types import NO_LEADER
from parley.broker.metrics.catalogue.replication import ControllerMetrics
from parley.broker.runtime.turns import next_turn
from parley.consensus.backend import At, Check, Delete, Op, Put, Revision
from parley.consensus.errors import (
    CoordinationError,
    Fenced,
    LeadershipLost,
    LimitExceeded,
    PreconditionFailed,
    Retriable,
)
from parley.consensus.recipes.elections import Elections, Leader, Leadership
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

T = TypeVar("T")

ELECTION = "controller"
QUEUE_MAX = 10_000
"""The maximum number of decisions in the queue. When the queue is full, callers wait for room."""
BATCH_MAX = 500
"""The maximum number of decisions that are committed together."""
RETRY_SECONDS = 0.1
UNREADABLE_S = 1.0
"""The pause before a broker that cannot read the metadata campaigns again. Meanwhile another broker can be elected."""
RESIGN_MAX_S = 2.0
"""The time limit for resigning the leadership. If that takes longer, the leadership ends with the session."""
STORE_PATIENCE_S = 5.0
"""How long a request waits for a store that does not respond, and also for the election of a controller."""
STORE_CHECK_S = 0.25
"""The interval at which the controller looks for requests that have waited too long for the store."""


class Outranked(Exception):
    """Raised if a broker has seen a controller epoch that is not below this controller's: the store was rolled back.

    The controller's duties raise it to end the term. The next campaign is for a term with an epoch above ``epoch``.
    """

    def __init__(self, broker_id: int, epoch: int) -> None:
        super().__init__(f"broker {broker_id} has seen controller epoch {epoch}")
        self.epoch = epoch


class StoreChanged(Exception):
    """Raised if the store no longer contains what this controller has written to it: the store was rolled back.

    The controller and its duties raise it to end the term. The next term begins with the metadata that the store
    contains now.
    """


class Controller:
    """This broker in its role as the controller, or as a candidate for controller."""

    def __init__(
        self,
        broker_id: int,
        candidate: bytes,
        rng: Random,
        metadata: Metadata,
        publisher: MetadataPublisher,
        *,
        is_store_frozen: Callable[[], bool] = lambda: False,
    ) -> None:
        """``candidate`` is the data that other brokers need in order to follow this one. ``publisher`` is open during
        each term.

        ``is_store_frozen()`` returns True while the store responds but holds writes back, because the cluster is moving
        to another store.
        """
        self._broker_id = broker_id
        self._candidate = candidate
        self._publisher = publisher
        self._is_store_frozen = is_store_frozen
        self._dead: Leader | None = None
        self._found_dead = asyncio.Event()
        self._rng = rng
        self._metadata = metadata
        self._queue: asyncio.Queue[DecisionRequest] = asyncio.Queue(QUEUE_MAX)
        self._state = ControllerState.IDLE
        self._terms: tuple[Term, ...] = ()  # the earlier terms
        self._terms_revision: Revision | None = None  # of the list of terms that this controller has written
        self.missing: MetadataImage | None = None
        """If the store was rolled back: the metadata that this broker had applied before its present term and that the
        store has lost. Otherwise None."""
        self._min_epoch = 0
        self._leadership: Leadership | None = None  # for the term that is loading, active or resigning
        self._store_silent_since_s: float | None = None  # loop time; None while no write is in progress
        self._store_error = ""  # the latest error of the write in progress
        self.metrics = ControllerMetrics()
        """Metrics of the decisions that this broker has made as the controller since it started."""
        self._store_failures = GrowingInterval(lambda: asyncio.get_running_loop().time())
        self._unreadable = GrowingInterval(lambda: asyncio.get_running_loop().time())

    @property
    def is_active(self) -> bool:
        """True if this broker is the controller, as far as it knows."""
        return self._state is ControllerState.ACTIVE

    @property
    def store(self) -> KeyValue:
        """The keys and values of the store in which this broker campaigns. Raises AttributeError before the first
        ``run``."""
        return self._store

    @property
    def terms(self) -> tuple[Term, ...]:
        """The latest terms recorded in the store; the current term is the last. Available only during a term."""
        return with_term(self._terms, self._metadata.image.term)

    def forget_earlier_terms(self) -> None:
        """Forget all terms before the current one. The next change to the metadata also removes them from the store.

        After that, if a broker has seen metadata of those terms, it no longer counts as evidence that the store was
        rolled back.
        """
        self._terms = ()
        self.missing = None

    def _enter(self, event: ControllerEvent) -> None:
        self._state = next_state(self._state, event)

    async def submit(self, decide: Decide[T], *, waits_for_store: bool = False, is_slow: bool = False) -> T:
        """Carry out a decision. Return its result once its changes are durable and applied on this broker.

        The controller's own duties pass ``waits_for_store``. All other callers wait at most ``STORE_PATIENCE_S`` for
        room in the queue and for a store that does not respond. Pass ``is_slow`` for a decision that looks at many
        partitions. It runs in a thread, so it must be a pure function.

        Raises NOT_CONTROLLER if this broker is not the controller or stops being the controller, and REQUEST_TIMED_OUT
        if the queue stays full or the store does not respond. After NOT_CONTROLLER, or if the store did not respond,
        the change may nevertheless have been made. Also raises the errors of ``decide``.
        """
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        loop = asyncio.get_running_loop()
        request = DecisionRequest(decide, loop.create_future(), is_slow=is_slow)
        if not waits_for_store:
            request.patience = loop.call_later(STORE_PATIENCE_S, self._withdraw_if_store_is_silent, request)
        try:
            try:
                async with asyncio.timeout(None if waits_for_store else STORE_PATIENCE_S):
                    await self._queue.put(request)
            except TimeoutError:
                request.withdraw(
                    KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The controller's request queue is full: retry later.")
                )
            self._refuse_all_if_idle()  # the term may have ended while the request waited for room
            result: T = await request.reply
        finally:
            if request.patience is not None:
                request.patience.cancel()
        return result

    def _withdraw_if_store_is_silent(self, request: DecisionRequest) -> None:
        """Fail a request if the store has not responded for ``STORE_PATIENCE_S``. Otherwise check again after
        ``STORE_CHECK_S``."""
        loop = asyncio.get_running_loop()
        if self._store_silent_since_s is not None and self._is_store_frozen():
            self._store_silent_since_s = loop.time()
        since_s = self._store_silent_since_s
        if since_s is not None and loop.time() - since_s >= STORE_PATIENCE_S:
            trouble = f"does not respond{self._store_error}"
            request.withdraw(store_unavailable(self._store_name, trouble, is_uncertain=True))
        else:
            request.patience = loop.call_later(STORE_CHECK_S, self._withdraw_if_store_is_silent, request)

    async def run(self, elections: Elections, run_duties: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Campaign, serve a term, and campaign again, within one session.

        Raises SessionLost when the session is lost, and any other CoordinationError that a retry cannot resolve.

        The metadata is in the store that ``elections`` uses. ``run_duties()`` runs during each term: it starts
        when the image has been loaded, and is cancelled when the term ends.
        """
        self._store = KeyValue(elections.backend, self._rng)
        self._store_name = elections.backend.capabilities.name
        self._enter(ControllerEvent.STARTED)
        try:
            while True:
                await self._campaign_and_serve(elections, run_duties)
        finally:
            self._enter(ControllerEvent.STOPPED)

    async def _campaign_and_serve(
        self, elections: Elections, run_duties: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await self._serve(await self._campaign(elections), run_duties)
        except (Fenced, LeadershipLost) as lost:
            _log.warning(
                "this broker lost the controller leadership", extra={"broker": self._broker_id, "reason": str(lost)}
            )
        except Outranked as outranked:
            self._min_epoch = outranked.epoch + 1
            _log.error(
                "the coordination store was rolled back to an older state: the controller is taking a higher epoch",
                extra={"broker": self._broker_id, "epoch": self._min_epoch, "reason": str(outranked)},
            )
        except StoreChanged as changed:
            _log.error(
                "the coordination store was rolled back under the controller: the next term begins with what it "
                "contains",
                extra={"broker": self._broker_id, "reason": str(changed)},
            )
        except UnreadableMetadata as error:
            if self._unreadable.claim_line():
                _log.error(
                    "the metadata in the coordination store cannot be read: this broker cannot be the controller",
                    extra={"reason": str(error)},
                )
            await asyncio.sleep(UNREADABLE_S)
        except Retriable as error:
            self._log_store_failure("the coordination store does not respond", error)
            await asyncio.sleep(RETRY_SECONDS)
        except CoordinationError:
            raise
        except Exception:
            _log.exception("the controller failed and resigns", extra={"broker": self._broker_id})
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._leadership = None
            self._refuse_all()

    def depose(self, leader: Leader) -> None:
        """Campaign to replace ``leader``, a controller that is dead. Does nothing if another leader has been elected.

        A second call for the same leader does not restart the campaign. With a slow store, repeated calls could
        otherwise prevent the campaign from ever completing.
        """
        if leader != self._dead:
            self._dead = leader
            self._found_dead.set()

    async def _campaign(self, elections: Elections) -> Leadership:
        """Wait until there is no controller, or until ``depose`` is called, and win the election."""
        while True:
            self._found_dead.clear()
            campaign = asyncio.ensure_future(
                elections.campaign(
                    ELECTION,
                    self._candidate,
                    min_epoch=max(self._metadata.image.controller_epoch + 1, self._min_epoch),
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

    async def _serve(self, leadership: Leadership, run_duties: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._become_controller(leadership)
        except CoordinationError:
            raise
        except Exception:
            await self._resign(leadership)  # perhaps another broker can read the metadata
            raise
        duties = asyncio.ensure_future(run_duties())
        lost = asyncio.ensure_future(leadership.lost.wait())
        get = asyncio.ensure_future(self._queue.get())
        try:
            while True:
                await asyncio.wait({get, lost, duties}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done():
                    break
                if duties.done():
                    duties.result()  # raises: during a term, the duties can only end by failing
                request, get = get.result(), asyncio.ensure_future(self._queue.get())
                await self._round(leadership, request)
        finally:
            self._enter(ControllerEvent.TERM_ENDED)
            if get.done() and not get.cancelled():
                get.result().fail(KafkaError(ErrorCode.NOT_CONTROLLER))
            self._publisher.close()
            for task in (get, lost, duties):
                task.cancel()
            try:
                await asyncio.gather(duties, return_exceptions=True)
                await self._resign(leadership)
            finally:
                self._enter(ControllerEvent.RESIGNED)

    @staticmethod
    async def _resign(leadership: Leadership) -> None:
        try:
            async with asyncio.timeout(RESIGN_MAX_S):
                await leadership.resign()
        except (CoordinationError, TimeoutError) as error:
            reason = str(error) or "the coordination store does not respond"
            _log.info("failed to release the controller leadership", extra={"reason": reason})

    async def _become_controller(self, leadership: Leadership) -> None:
        """Load the image from the store, make it this broker's image, and open the publisher.

        Raises UnreadableMetadata if this version cannot read the metadata, and CoordinationError.
        """
        self._enter(ControllerEvent.ELECTED)
        self._leadership = leadership
        try:
            stored = await self._load()
            image = _with_controller(stored, self._broker_id, leadership.epoch)
            await self._record_term(leadership)
            before, changes = await self._changes_to(image)
            continues = contains(self._terms, before.term)
            has_applied_any = before.controller_id != NO_TERM.controller_id  # else it is the image of a new process
            self.missing = before if has_applied_any and contradicts(self._terms, before.term) else None
        except BaseException:
            self._enter(ControllerEvent.LOADING_FAILED)
            raise
        self._enter(ControllerEvent.LOADED)
        delta = Delta(leadership.epoch, image.version, changes, continues)
        self._metadata.replace(image, delta)
        self._publisher.open(self._terms, TermStart(before.term, delta))
        _log.info(
            "this broker is the controller now",
            extra={"broker": self._broker_id, "epoch": leadership.epoch, "topics": len(image.topics)},
        )

    async def _load(self) -> MetadataImage:
        stored: dict[str, bytes] = {}
        for prefix in PREFIXES:
            async for entry in self._store.entries(prefix):
                stored[entry.key] = entry.value
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, read_image, self._metadata.image.cluster_id, stored)

    async def _changes_to(self, image: MetadataImage) -> tuple[MetadataImage, tuple[Change, ...]]:
        """Return this broker's current image and the changes that lead from it to ``image``."""
        loop = asyncio.get_running_loop()
        while True:
            before = self._metadata.image
            changes = await loop.run_in_executor(None, image.changes_since, before)
            if self._metadata.image is before:
                return before, changes

    async def _record_term(self, leadership: Leadership) -> None:
        """Record this term in the store before any broker sees metadata from it."""
        stored = await self._store.get(TERMS)
        self._terms = terms_from_bytes(stored.value) if stored is not None else ()
        terms = self._terms_with_own(leadership, 0)
        self._terms_revision = await self._store.put(TERMS, terms, guard=leadership.guard())

    def _terms_with_own(self, leadership: Leadership, version: int) -> bytes:
        return terms_to_bytes(with_term(self._terms, Term(leadership.epoch, self._broker_id, version)))

    # --- One round of decisions ---

    async def _round(self, leadership: Leadership, first: DecisionRequest) -> None:
        """Decide on all waiting requests, commit the decisions together, and return their results to the callers."""
        requests = [first]
        while len(requests) < BATCH_MAX and not self._queue.empty():
            requests.append(self._queue.get_nowait())
        requests = [request for request in requests if not request.is_withdrawn]
        try:
            try:
                await self._carry_out(leadership, requests)
            except LimitExceeded:
                for request in requests:
                    if not request.reply.done():  # the requests before the oversized one are done
                        await self._round_of_one(leadership, request)
        except BaseException:
            for request in requests:
                request.fail(KafkaError(ErrorCode.NOT_CONTROLLER))
            raise

    async def _round_of_one(self, leadership: Leadership, request: DecisionRequest) -> None:
        try:
            await self._carry_out(leadership, [request])
        except LimitExceeded as too_much:
            request.fail(KafkaError(ErrorCode.INVALID_REQUEST, f"Too large for the coordination store: {too_much}"))

    async def _carry_out(self, leadership: Leadership, requests: list[DecisionRequest]) -> None:
        while requests:
            before = self._metadata.image
            together = next_batch(requests)
            if together[0].is_slow:
                loop = asyncio.get_running_loop()
                batch, writes = await loop.run_in_executor(None, _decide, before, together)
            else:
                batch, writes = _decide(before, together)
            if batch.changes:
                began = asyncio.get_running_loop().time()
                steps = in_steps(batch.changes)
                terms = {TERMS: self._terms_with_own(leadership, before.version + len(steps))}
                await self._commit(leadership, {**writes, **terms})
                await self._publish(leadership, before, steps)
                self.metrics.leader_elections += elected_leaders(before, batch.changes)
                self.metrics.decision_time.observe(int(1e6 * (asyncio.get_running_loop().time() - began)))
            for request, outcome in batch.outcomes:
                request.finish(outcome)
            requests = [request for request in requests[len(batch.outcomes) :] if not request.is_withdrawn]

    async def _publish(self, leadership: Leadership, image: MetadataImage, steps: Sequence[tuple[Change, ...]]) -> None:
        """Apply the committed changes on this broker, which publishes them, one step per turn of the event loop.

        Raises LeadershipLost if this broker has applied another controller's metadata meanwhile.
        """
        for number, changes in enumerate(steps):
            if number:
                await next_turn()
            if self._metadata.image is not image:
                raise LeadershipLost("another controller has published metadata")
            delta = Delta(leadership.epoch, image.version + 1, changes)
            image = image.apply(delta)
            self._metadata.replace(image, delta)

    async def _commit(self, leadership: Leadership, writes: Writes) -> None:
        """Write in order, guarded by the leadership, in as few transactions as the store's limits allow.

        ``writes`` ends with the list of terms. Each write is retried until the store accepts it or the term ends.
        Raises StoreChanged if the list in the store is not the one that this controller wrote last.
        """
        ops: list[Op] = [Delete(key) if value is None else Put(key, value) for key, value in writes.items()]
        loop = asyncio.get_running_loop()
        try:
            for part in self._store.split(ops, checks=2):
                self._store_silent_since_s, self._store_error = loop.time(), ""
                while True:
                    try:
                        await self._write_part(leadership, part)
                        self._store_failures.restart()
                        break
                    except Retriable as error:
                        # The writes are whole values and guarded, so a write with an unknown outcome can be retried.
                        self._log_store_failure("retrying a metadata write", error)
                        self._store_error = f": {error}"
                        leadership.require()
                        await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._store_silent_since_s = None

    async def _write_part(self, leadership: Leadership, part: Sequence[Op]) -> None:
        """Write one part of a batch. The last part also replaces the list of terms.

        Raises StoreChanged if the list in the store is not the one that this controller wrote last. During its term, no
        other broker writes the list.
        """
        assert self._terms_revision is not None
        unchanged = Check(TERMS, At(self._terms_revision))
        last = part[-1]
        try:
            written = (await self._store.txn([unchanged], part, guard=leadership.guard())).revisions[-1]
        except PreconditionFailed as failed:
            stored = await self._store.get(TERMS)
            if stored is None or not isinstance(last, Put) or (last.key, last.value) != (TERMS, stored.value):
                raise StoreChanged(f"it no longer contains the latest metadata: {failed}") from failed
            written = stored.revision  # an earlier attempt, whose outcome was unknown, has written this part
        if last.key == TERMS:
            self._terms_revision = written

    def _log_store_failure(self, event: str, error: Retriable) -> None:
        if self._store_failures.claim_line():
            _log.warning(event, extra={"reason": str(error)})

    def _refuse_all_if_idle(self) -> None:
        if not self.is_active:
            self._refuse_all()

    def _refuse_all(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait().fail(KafkaError(ErrorCode.NOT_CONTROLLER))


def _decide(image: MetadataImage, requests: Sequence[DecisionRequest]) -> tuple[DecisionBatch, Writes]:
    """Decide on the requests, or on the first of them. Return the decisions and their writes to the store."""
    batch, after = decide_batch(image, requests)
    return batch, writes_for(batch.changes, after, image) if batch.changes else {}


def elected_leaders(before: MetadataImage, changes: Iterable[Change]) -> int:
    """Return the number of partitions to which these changes give another leader than in ``before``. New partitions
    and partitions that lose their leader do not count."""
    count = 0
    for change in changes:
        if isinstance(change, PartitionChanged) and change.state.leader != NO_LEADER:
            known = before.partition(change.topic, change.partition)
            count += known is not None and known.leader != change.state.leader
    return count


def _with_controller(image: MetadataImage, broker_id: int, epoch: int) -> MetadataImage:
    return image.apply(Delta(epoch, 0, (ControllerElected(broker_id, epoch),)))


def store_unavailable(store: str, trouble: str, *, is_uncertain: bool) -> KafkaError:
    """Return the error (REQUEST_TIMED_OUT) for a client whose change cannot be made because of the coordination store.

    ``store`` is the name of the store, and ``trouble`` says what is wrong with it, such as "does not respond". Pass
    ``is_uncertain`` if the change may have been made nevertheless.
    """
    uncertain = "This change may nevertheless have been made. " if is_uncertain else ""
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"The coordination store ({store}) {trouble}. The cluster cannot be changed until it responds again. "
        f"{uncertain}Check the store, then try again.",
    )
