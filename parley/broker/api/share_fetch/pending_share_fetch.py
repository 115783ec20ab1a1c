"""One share fetch: it looks at the partitions, waits for records, and responds.

Rules of this module:

* A look finds the partitions with available records, and their positions in the log. Records are acquired only when
  there are ``min_bytes`` or the time has expired, so a waiting fetch locks nothing.
* The partitions get equal shares of the response's bytes. The first partition differs from request to request.
* A fetch waits for appended records, and for records that other members release. Waiting fetches are served in order of
  arrival.
* Records that are not in memory are read in a thread and acquired afterwards, because another member may acquire them
  in the meantime.
* With many partitions, the event loop serves other clients between looks. A fetch then looks again at the partitions
  that have changed in between.
* A fetch whose session has ended acquires nothing: its client is disconnected, and the records would stay locked until
  the lock expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from typing import Any, Final, NamedTuple

from parley.broker.api.fetch.read import SENT_FROM_FILE_BYTES
from parley.broker.api.share_fetch.acknowledging import Acknowledging
from parley.broker.api.share_fetch.dependencies import ShareDependencies
from parley.broker.api.share_fetch.reading import Headers, read_headers
from parley.broker.api.share_fetch.render import RENDERED_IN_A_TURN, Fetched, rendering
from parley.broker.api.share_fetch.sessions import ShareSession, TopicPartition
from parley.broker.network.request_context import RequestContext
from parley.broker.network.sending import FileSlice
from parley.broker.runtime.purgatory import Delayed
from parley.broker.runtime.steps import Steps, each_of, in_turns, run_now
from parley.broker.share.leading import LeadingState, LedSharePartition
from parley.broker.share.share_partition import Wanted
from parley.protocol.errors import KafkaError
from parley.protocol.messages.share_groups import ShareFetchRequest

LOOKED_AT_IN_A_TURN: Final = 100
"""The number of partitions that a fetch looks at, or acquires records from, before the event loop serves other clients.
Each takes up to about 50 microseconds."""
LOOKS_MAX = 4
"""The maximum number of looks in direct succession that a fetch takes while it finds only batches without records for
consumers."""


class _Candidate(NamedTuple):
    target: TopicPartition
    led: LedSharePartition
    offset: int


class PendingShareFetch(Delayed[Any]):
    """One share fetch, as a future of its response. It enters the purgatory only if it must wait."""

    def __init__(
        self,
        dependencies: ShareDependencies,
        context: RequestContext,
        request: ShareFetchRequest,
        session: ShareSession,
        acknowledging: Acknowledging,
    ) -> None:
        super().__init__()
        self._dependencies = dependencies
        self._context = context
        self._request = request
        self._session = session
        self._acknowledging = acknowledging
        self._settings = dependencies.share_partitions.settings_of(session.key.group_id)
        self._max_bytes = min(request.max_bytes, dependencies.max_bytes)
        self._changed = dict.fromkeys(session.in_turn())
        self._targets: dict[LedSharePartition, TopicPartition] = {}
        self._candidates: list[_Candidate] = []
        self._found: dict[TopicPartition, Fetched] = {}
        self._acquired = 0
        self._acquired_bytes = 0
        self._is_woken = False  # a look at the changed partitions is scheduled
        self._looks_in_turns = False
        self._is_expired = False
        self._needs_disk = False

    @property
    def _fetches_nothing(self) -> bool:
        return self._request.max_records <= 0 or self._max_bytes <= 0 or self._request.is_renew_ack

    def first_look(self) -> Any:
        """Look at the partitions. Returns the response, a coroutine that returns it, or this future if the fetch must
        wait."""
        if self._fetches_nothing:
            return self._respond()
        if self._has_much_to_look_at:
            return self._first_look_in_turns()
        if run_now(self._look()) or not self._targets:
            return self._respond()
        if self._request.max_wait_ms <= 0:
            run_now(self._acquire_all())
            return self._respond()
        self._watch()
        return self

    async def _first_look_in_turns(self) -> Any:
        if not await in_turns(self._look()) and self._targets:
            if self._request.max_wait_ms > 0:
                self._watch()
                await self._look_for_what_was_missed()
                return self
            await in_turns(self._acquire_all())
        response = self._respond()
        return await response if asyncio.iscoroutine(response) else response

    def _watch(self) -> None:
        self._dependencies.share_partitions.waiting.watch(self, self._targets, self._request.max_wait_ms / 1000)

    async def _look_for_what_was_missed(self) -> None:
        """Look again at the partitions that changed before the fetch watched them."""
        try:
            await in_turns(each_of(list(self._targets.items()), LOOKED_AT_IN_A_TURN, self._note_if_missed))
        except BaseException:
            self.cancel()
            raise
        if self._changed:
            self._wake()

    def _note_if_missed(self, watched: tuple[LedSharePartition, TopicPartition]) -> None:
        led, target = watched
        if led.state is LeadingState.ENDED:
            self._found[target] = Fetched(error=led.error)
            self._changed[target] = None
        elif self._available(led) is not None:
            self._changed[target] = None

    # --- Looking ---

    @property
    def _has_much_to_look_at(self) -> bool:
        return len(self._changed) + len(self._candidates) > LOOKED_AT_IN_A_TURN

    def _look(self) -> Steps[bool]:
        """Look at the changed partitions, and acquire records if there are enough. Returns True if the fetch must
        respond.

        Partitions with too few bytes are looked at again later.
        """
        for _ in range(LOOKS_MAX):
            yield from self._find_candidates()
            if self._found:  # an error
                yield from self._acquire_all()
                return True
            if not self._candidates or (yield from self._located_bytes()) < self._request.min_bytes:
                return False
            yield from self._acquire_all()
            if self._acquired or self._needs_disk:
                return True
            self._changed |= dict.fromkeys(each.target for each in self._candidates)
        return False

    def _find_candidates(self) -> Steps[None]:
        """Find the partitions with records, among the changed partitions and the earlier candidates."""
        targets = dict.fromkeys((*(each.target for each in self._candidates), *self._changed))
        self._candidates, self._changed = [], {}
        return each_of(targets, LOOKED_AT_IN_A_TURN, self._look_at)

    def _look_at(self, target: TopicPartition) -> None:
        if target in self._found:
            return
        try:
            candidate = self._candidate(target)
            if candidate is not None:
                self._candidates.append(candidate)
        except KafkaError as error:
            self._found[target] = Fetched(error=error)

    def _candidate(self, target: TopicPartition) -> _Candidate | None:
        partition = self._dependencies.find(self._context, target)
        led = self._dependencies.share_partitions.of(self._session.key.group_id, partition)
        self._targets[led] = target
        offset = self._available(led)
        return None if offset is None else _Candidate(target, led, offset)

    def _available(self, led: LedSharePartition) -> int | None:
        """Return the first offset that the member can acquire now, or None."""
        offset = led.next_offset() if led.is_active else None
        return None if offset is None or offset >= led.partition.end_visible(self._settings.isolation) else offset

    def _located_bytes(self) -> Steps[int]:
        """Return a lower bound of the available bytes. The search stops at ``min_bytes``."""
        found = 0
        for number, (_, led, offset) in enumerate(self._candidates, 1):
            if found >= self._request.min_bytes:
                break
            found += self._size(led, offset)
            if not number % LOOKED_AT_IN_A_TURN:
                yield
        return found

    def _size(self, led: LedSharePartition, offset: int) -> int:
        try:
            isolation, allowance = self._settings.isolation, self._allowance
            read = led.partition.read(offset, allowance, isolation=isolation, min_one_batch=True, nowait=True)
            return read.size
        except (BlockingIOError, KafkaError):
            return self._request.min_bytes  # the acquisition reports the error

    @property
    def _allowance(self) -> int:
        """The bytes that one partition may contribute to the response."""
        return max(1, self._max_bytes // max(1, len(self._candidates)))

    # --- Acquiring ---

    @property
    def _has_enough(self) -> bool:
        return self._acquired >= self._request.max_records or self._acquired_bytes >= self._max_bytes

    def _acquire_all(self) -> Steps[None]:
        for number, candidate in enumerate(self._candidates, 1):
            if self._has_enough:
                return
            try:
                self._acquire(candidate, self._headers(candidate, nowait=True))
            except BlockingIOError:
                self._needs_disk = True
            except KafkaError as error:
                self._found[candidate.target] = Fetched(error=error)
            if not number % LOOKED_AT_IN_A_TURN:
                yield

    def _headers(self, candidate: _Candidate, *, nowait: bool) -> Headers:
        led = candidate.led
        records = self._request.max_records + led.share.in_flight
        isolation = self._settings.isolation
        return read_headers(led.partition, candidate.offset, self._allowance, records, isolation, nowait=nowait)

    def _acquire(self, candidate: _Candidate, headers: Headers) -> None:
        request, led = self._request, candidate.led
        if not led.is_active or self._session.has_ended or self.cancelled():
            return
        wanted = Wanted(request.max_records - self._acquired, request.share_acquire_mode == 1)
        acquired = led.acquire(self._session.key.member_id, candidate.offset, headers.batches, wanted)
        if not acquired:
            return
        self._acquired += sum(each.last - each.first + 1 for each in acquired)
        part = headers.part(acquired)
        self._acquired_bytes += part.size
        led.partition.counters.bytes_out += part.size
        self._found[candidate.target] = Fetched(part, headers.split(acquired, request.batch_size))

    # --- Waiting ---

    def on_change(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, LedSharePartition)
        if key.state is LeadingState.ENDED:
            self._found[self._targets[key]] = Fetched(error=key.error)
        self._changed[self._targets[key]] = None
        self._wake()
        return True

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self.get_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._looks_in_turns:
            return
        self._is_woken = False
        if self.done() or self._purgatory is None:
            return
        if self._session.has_ended:
            self._finish()
            return
        if self._has_much_to_look_at:
            self._start_look_in_turns()
            return
        quotas = self._dependencies.quotas
        if quotas.is_active:
            quotas.time_step(self._context, self._look_now)
        else:
            self._look_now()

    def _look_now(self) -> None:
        try:
            if run_now(self._look()):
                self._finish()
        except Exception as error:
            self.fail(error)

    def _start_look_in_turns(self) -> None:
        self._is_woken = self._looks_in_turns = True
        self._dependencies.tasks.start(self._look_in_turns(), name="look of a share fetch")

    async def _look_in_turns(self) -> None:
        """Look at many partitions again, a few per turn of the event loop. Changes that arrive meanwhile, and the end
        of the wait, are handled afterwards."""
        try:
            is_due = await in_turns(self._look())
            if self._is_expired and not is_due:
                await in_turns(self._acquire_all())
            self._is_woken = self._looks_in_turns = False
            if self.done():
                return
            if is_due or self._is_expired:
                self._finish()
            elif self._changed:
                self._wake()
        except Exception as error:
            self.fail(error)

    def expired(self) -> None:
        self._is_expired = True
        if self._looks_in_turns:
            return
        if self._has_much_to_look_at:
            self._start_look_in_turns()
            return
        try:
            run_now(self._find_candidates())
            run_now(self._acquire_all())
            self._finish()
        except Exception as error:
            self.fail(error)

    # --- Responding ---

    def _finish(self) -> None:
        response = self._respond()
        if asyncio.iscoroutine(response):
            self.complete(self._dependencies.tasks.start(response, name="share fetch"))
        else:
            self.complete(response)

    @property
    def _has_much_to_render(self) -> bool:
        return len(self._found) + sum(self._session.partitions.values()) > RENDERED_IN_A_TURN

    def _respond(self) -> Any:
        """Return the response, or a coroutine that returns it if it needs the disk or the share coordinator."""
        if (
            self._needs_disk
            or not self._acknowledging.is_done
            or self._has_much_to_render
            or not self._load(nowait=True)
        ):
            return self._respond_later()
        return run_now(self._rendering())

    def _rendering(self) -> Steps[Any]:
        if self._dependencies.quotas.is_active:
            self._dependencies.quotas.record_fetch(self._context, sum(each.size for each in self._found.values()))
        return rendering(self._dependencies, self._context, self._session, self._found, self._acknowledging)

    async def _respond_later(self) -> Any:
        if self._needs_disk:
            await self._acquire_from_disk()
        await self._acknowledging.stored()
        if self._has_much_to_render or not self._load(nowait=True):
            await self._in_thread(partial(self._load, nowait=False))
        return await in_turns(self._rendering())

    async def _acquire_from_disk(self) -> None:
        for candidate in self._candidates:
            if self._has_enough:
                return
            if candidate.target in self._found or not candidate.led.is_active:
                continue
            try:
                self._acquire(candidate, await self._in_thread(partial(self._headers, candidate, nowait=False)))
            except KafkaError as error:
                self._found[candidate.target] = Fetched(error=error)

    def _in_thread(self, work: Any) -> Any:
        return asyncio.get_running_loop().run_in_executor(self._dependencies.threads.reads, work)

    def _load(self, *, nowait: bool) -> bool:
        """Load the records into the response. Returns False if that would block on the disk."""
        for fetched in self._found.values():
            read = fetched.read
            if read is None or fetched.records is not None:
                continue
            if read.size < SENT_FROM_FILE_BYTES:
                try:
                    fetched.records = read.try_read() if nowait else read.read()
                except BlockingIOError:
                    return False
                except KafkaError as error:
                    fetched.error = error
                continue
            part = FileSlice(read.fd, read.position, read.size, read)
            if nowait and not part.is_cached():
                return False
            if not nowait:
                part.load()
            fetched.records = [part]
        return True
