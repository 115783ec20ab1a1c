"""One client's connection: when its requests begin, and what limits its client.

The states::

    OPEN         requests are handled
    DRAINING     no further request begins; the connection closes when its responses have been sent
    CLOSING      the transport is closing
    LOST         the transport has closed (final)

``ResponseQueue`` contains the responses. docs/architecture.md, "How a connection is kept in check", has the rules for
pausing and cutting off clients.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from typing import Any, Protocol, cast

from parley.broker.network.configured_limits import Limits
from parley.broker.network.deadline import Deadline
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.load import Load
from parley.broker.network.peers import is_broker
from parley.broker.network.request_context import (
    ConnectedClient,
    Disconnect,
    LoginFailed,
    MaybeResponse,
    SessionExpired,
)
from parley.broker.network.response_queue import PendingResponse, ResponseQueue
from parley.broker.network.sending import SliceLost, make_sender
from parley.broker.runtime.purgatory import Delayed
from parley.broker.runtime.states import IllegalStep
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.turns import CLIENT
from parley.broker.security.session import ClientSession
from parley.protocol.connection import FrameReader, FrameTooLarge
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.transactions import EndTxnRequest
from parley.storage.resource_exhaustion import MEMORY

PIPELINED_MAX = 64
"""The maximum number of produce requests of one connection that may wait for replication at the same time."""
UNSENT_MAX = 256 << 10
"""The number of bytes of responses that a connection gathers before it sends them and begins the next request."""
TURN_S = 0.005
"""How long, in seconds, a connection may handle requests, in one read or several, before other connections get a
turn."""
LOGIN_USUAL_S = 2.0
"""Well-behaved clients authenticate within this many seconds. Connections of slower clients are closed first if file
descriptors run out."""
RECEIVING_USUAL_S = 10.0
"""How long, in seconds, a large request may hold memory before it can lose this memory to waiting requests. The time
counts only while the broker is ready to read the request, or while the client delays its start."""
SLOW_BYTES_PER_S = 64 << 10
"""After ``RECEIVING_USUAL_S``, a request that arrives at a lower rate than this is too slow."""
PRODUCE_KEY = b"\x00\x00"
URGENT_KEY = EndTxnRequest.API_KEY.to_bytes(2, "big")
"""The API key of EndTxn. A commit is cheap, and its client cannot do anything else in the meantime, so a commit does
not wait for other clients' records."""
_PRODUCE = 0
_discarded = bytearray(4096)  # receives what arrives on a closing connection
_DISCONNECTED = getattr(select, "POLLRDHUP", 0)  # without it, poll reports only a completely closed connection


class ConnectionState(IntEnum):
    """The state of a connection. The module docstring explains each one."""

    OPEN = 0
    DRAINING = 1
    CLOSING = 2
    LOST = 3


class ConnectionEvent(IntEnum):
    """An event in the life of a connection."""

    DRAIN = 0
    """The listener stops."""
    CLOSE = 1
    """The client misbehaved or was idle, the socket broke, or a draining connection has nothing left to send."""
    LOSE = 2
    """The transport has closed."""


_STEPS: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.OPEN, ConnectionEvent.DRAIN): ConnectionState.DRAINING,
    (ConnectionState.OPEN, ConnectionEvent.CLOSE): ConnectionState.CLOSING,
    (ConnectionState.OPEN, ConnectionEvent.LOSE): ConnectionState.LOST,
    (ConnectionState.DRAINING, ConnectionEvent.CLOSE): ConnectionState.CLOSING,
    (ConnectionState.DRAINING, ConnectionEvent.LOSE): ConnectionState.LOST,
    (ConnectionState.CLOSING, ConnectionEvent.DRAIN): ConnectionState.CLOSING,
    (ConnectionState.CLOSING, ConnectionEvent.CLOSE): ConnectionState.CLOSING,
    (ConnectionState.CLOSING, ConnectionEvent.LOSE): ConnectionState.LOST,
}

_OPEN, _LOST = ConnectionState.OPEN, ConnectionState.LOST  # an attribute of an enum costs more than a global


class ConnectionOwner(Protocol):
    """The part of a listener that its connections use."""

    dispatcher: Dispatcher
    limits: Limits
    load: Load
    tasks: TaskSet
    monotonic: Callable[[], float]

    def connected(self, connection: Connection) -> None:
        """Record a connection whose transport is ready."""

    def disconnected(self, connection: Connection, client: ConnectedClient) -> None:
        """Record that a connection has ended."""

    def report_closed(self, client: ConnectedClient, reason: str) -> None:
        """Count and log a connection that the broker closes because its client misbehaved."""

    def logged_in(self, client: ConnectedClient, *, again: bool) -> None:
        """Set the client's session and count its login; ``again`` is True for a re-authentication.

        Raises the errors of the operator's principal builder.
        """

    def login_failed(self, client: ConnectedClient, reason: str) -> None:
        """Count and log a failed login. The connection is closed later, to slow down password guessing."""

    def session_expired(self) -> None:
        """Count a connection that is closed because its client did not re-authenticate in time."""

    def muted(self, change: int) -> None:
        """Add ``change`` (1 or -1) to the number of throttled connections."""


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one accepted connection. Its listener creates, counts and ends it."""

    __slots__ = (
        "_began",
        "_client",
        "_deadline",
        "_dispatcher",
        "_frames",
        "_held_up_s",
        "_is_identified",
        "_load",
        "_loop",
        "_monotonic",
        "_mute",
        "_owner",
        "_reader",
        "_reading",
        "_receiving_s",
        "_reserved",
        "_responses",
        "_seen_sent",
        "_starved",
        "_state",
        "_transport",
        "_turn_left_s",
        "_waiting_for_load",
        "_waiting_for_turn",
        "is_peer",
        "last_active",
    )

    def __init__(self, owner: ConnectionOwner, client: ConnectedClient) -> None:
        self._owner = owner
        self._dispatcher = owner.dispatcher
        self._load = owner.load
        self._monotonic = owner.monotonic
        self._client = client
        self._state = ConnectionState.OPEN
        login = client.login
        self._reader = FrameReader(owner.limits.request_bytes if login is None else login.rules.receive_bytes_max)
        self._deadline: Deadline | None = None  # for the login
        self._began = 0.0  # when the login began
        self._frames: deque[memoryview] = deque()
        self._mute: asyncio.TimerHandle | None = None  # ends the throttling of the client
        self._reading = True
        self._waiting_for_load = False
        self._waiting_for_turn = False
        self._turn_left_s = TURN_S
        self._reserved = 0  # bytes reserved for the large frame that is being received or waits to be handled
        self._receiving_s = 0.0  # how long the broker has been willing to read that frame
        self._held_up_s = 0.0  # how long the client has delayed its start
        self._starved = False  # a large frame must wait for memory
        self._seen_sent = 0
        self._is_identified = False
        self.is_peer = False
        """True if the first request came from another broker."""
        self.last_active = 0.0

    def _step(self, event: ConnectionEvent) -> None:
        try:
            self._state = _STEPS[self._state, event]
        except KeyError:
            raise IllegalStep("connection", self._state, event) from None

    # --- Callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        sender = make_sender(self._transport, self._loop, self._advance, self._broken)
        self._responses = ResponseQueue(self._dispatcher, self._transport, sender, self._monotonic)
        self.last_active = self._monotonic()
        self._owner.connected(self)
        self._client.on_throttle, self._client.is_abandoned = self._throttle, self._is_abandoned
        if (login := self._client.login) is not None:
            login.on_complete, login.on_refused = self._logged_in, self._login_refused
            login.on_renewal = self._limit_login
            self._limit_login()

    def _limit_login(self) -> None:
        self._began = self._monotonic()
        self._deadline = Deadline(self._loop, self._owner.limits.login_s, self._login_too_slow)

    def _logged_in(self, again: bool) -> None:
        self._owner.logged_in(self._client, again=again)
        self._end_login()
        self._reader.limit(self._owner.limits.request_bytes)

    def _login_refused(self, reason: str) -> None:
        self._end_login()
        self._owner.login_failed(self._client, reason)

    def _end_login(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _login_too_slow(self) -> None:
        assert self._client.login is not None
        self._client.login.refuse(f"no login within {self._owner.limits.login_s:g} s")
        self.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self._reader.get_buffer(sizehint)
        except MemoryError:
            if self._state is _OPEN:
                self._step(ConnectionEvent.CLOSE)
                self._loop.call_soon(self._close_for_memory)  # uvloop crashes if the transport is closed here
            return memoryview(_discarded)

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is not _OPEN:
            return
        self.last_active = now = self._monotonic()
        try:
            self._frames.extend(self._reader.buffer_updated(nbytes))
        except (FrameTooLarge, MalformedMessage) as malformed:
            self._advance()
            self.close(str(malformed))
            return
        except MemoryError:
            self._close_for_memory()
            return
        if self._reader.large_frame_bytes and not self._reserved:
            self._reserve()
        self._advance_at(now)

    def _close_for_memory(self) -> None:
        """Close the connection because there is no memory for the request that is arriving. The client will retry
        it."""
        MEMORY.make_room()
        self.close("no memory for the request")

    def eof_received(self) -> bool:
        return False  # the transport closes itself: a client that has half-closed reads no responses

    def connection_lost(self, exc: Exception | None) -> None:
        self._step(ConnectionEvent.LOSE)
        self._end_login()
        self._client.on_throttle = self._client.is_abandoned = None
        self._client.has_disconnected = True
        self._end_throttling()
        self._frames.clear()
        self._responses.abandon()
        self._release(self._take_reserved())
        for ended in tuple(self._client.on_disconnect.values()):
            ended()
        self._owner.disconnected(self, self._client)

    def pause_writing(self) -> None:
        self._responses.sender.pause()

    def resume_writing(self) -> None:
        self._responses.sender.resume()

    # --- Requests ---

    def _advance(self) -> None:
        self._advance_at(self._monotonic())

    def _advance_at(self, began: float) -> None:
        """Begin the requests that may begin, send the responses that are ready, and pause or resume reading.

        ``began`` is the time at which this work began, in monotonic seconds. A clock costs about as much as 20 plain
        calls, so callers pass a time that they have.
        """
        frames, responses = self._frames, self._responses
        ended: Disconnect | None = None
        if responses.unread and not responses.sender.blocked:
            responses.record_send_times()
        try:
            if frames:
                now = began
                turn_ends = began + self._turn_left_s
                while frames and self._may_begin(frames[0], now > turn_ends):
                    self._begin(frames.popleft())
                    if responses.unsent_bytes >= UNSENT_MAX:
                        self._send()
                    now = self._monotonic()
                took = now - began
                self._load.turns.used(took)
                self._turn_left_s -= took
                if self._turn_left_s < 0:  # the loop may read the next request before it serves other connections
                    self._wait_for_turn()
        except Disconnect as disconnect:
            ended = disconnect
        self._send()
        if ended is not None:
            self._end(ended)
        elif self._state is not _OPEN:
            self._close_if_drained()
        elif self._should_read() is not self._reading:
            self._set_reading(not self._reading)

    def _should_read(self) -> bool:
        """Return True if the loop should read from the client.

        If a single request only waits for its turn, reading is not paused: most clients send nothing more before they
        have the response, and pausing and resuming takes two system calls.
        """
        if self._starved or self._responses.sender.blocked:
            return False
        if self._mute is not None and not self._reserved:  # while throttled, read only the rest of a large frame
            return False
        frames = self._frames
        return not frames or (self._waiting_for_turn and len(frames) == 1 and self._reading)

    def _may_begin(self, frame: memoryview, turn_is_over: bool) -> bool:
        responses = self._responses
        if self._state is not _OPEN or responses.sender.blocked:
            return False
        if self._mute is not None and len(frame) != self._reserved:
            return False
        pending = responses.pending
        if pending and not (len(pending) < PIPELINED_MAX and pending[-1].pipelined and frame[:2] == PRODUCE_KEY):
            if isinstance(future := pending[-1].future, Delayed):
                future.next_request_arrived()
            return False
        only = self._dispatcher.only
        if only is not None and frame[:2] not in only:
            return False
        load = self._load
        if load.is_crowded and not load.has_room(self._client.session.user_or_host):
            self._wait_for_load()
            return False
        if self._waiting_for_turn:
            return False
        turns = load.turns
        must_wait = turns.only_urgent and (turns.are_over or frame[:2] != URGENT_KEY)
        if must_wait or turn_is_over:
            self._wait_for_turn()
            return False
        return True

    def proceed(self) -> None:
        """Begin the requests that waited for ``Dispatcher.serve_all``."""
        if self._state is not _LOST:
            self._advance()

    def _wait_for_turn(self) -> None:
        if not self._waiting_for_turn:
            self._waiting_for_turn = True
            self._load.turns.wait(self._client.session.user_or_host, self._next_turn)

    def _next_turn(self) -> None:
        self._waiting_for_turn = False
        self._turn_left_s = TURN_S
        self._advance()

    def _wait_for_load(self) -> None:
        if not self._waiting_for_load:
            self._waiting_for_load = True
            self._load.call_when_eased(self._load_eased)

    def _load_eased(self) -> None:
        self._waiting_for_load = False
        if self._starved and self._state is not _LOST:
            self._reserve()
        self._advance()

    def _reserve(self) -> None:
        """Reserve memory for the large frame that has begun to arrive, or wait until memory is available."""
        size = self._reader.large_frame_bytes
        self._starved = not self._load.reserve(size, self)
        if self._starved:
            self._wait_for_load()
        else:
            self._reserved, self._receiving_s, self._held_up_s = size, 0.0, 0.0

    @property
    def _is_held_up_by_client(self) -> bool:
        """True if a large request has arrived completely, and its own client delays its start.

        A delay because of earlier produce requests or the broker's limits does not count.
        """
        responses = self._responses
        waits = bool(responses.pending) and responses.pending[-1].context.api_key != _PRODUCE
        return self._mute is not None or responses.sender.blocked or waits

    def count_receiving(self, seconds: float) -> None:
        if self._reading:
            self._receiving_s += seconds
        elif self._is_held_up_by_client:
            self._held_up_s += seconds

    def close_if_slow(self) -> None:
        if self.is_closed:
            return
        if self._receiving_s + self._held_up_s <= RECEIVING_USUAL_S:
            return
        if self._reading:
            is_slow = self._reader.large_frame_received_bytes < self._receiving_s * SLOW_BYTES_PER_S
        else:
            is_slow = self._is_held_up_by_client
        if is_slow:
            self.close("the request held memory for too long while other requests waited for memory")

    def _take_reserved(self) -> int:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._load.received(self)
        return reserved

    def _release(self, reserved: int) -> None:
        if reserved:
            self._load.release(reserved)

    def _begin(self, frame: memoryview) -> None:
        dispatcher = self._dispatcher
        reserved = self._take_reserved() if len(frame) == self._reserved else 0
        try:
            context, response = dispatcher.handle(self._client, frame, self.last_active)
        except Disconnect:
            self._release(reserved)
            raise
        if not self._is_identified:
            self._is_identified = True
            self.is_peer = is_broker(context.client_id)
        responses = self._responses
        if isinstance(response, list) and not responses.pending:
            responses.gather(response, context)
        else:
            pending = PendingResponse(context, dispatcher.monotonic())
            responses.pending.append(pending)
            if isinstance(response, list):
                pending.parts = response
                pending.pipelined = True
            elif isinstance(response, asyncio.Future):
                self._await(pending, response)
            else:
                self._work(pending, response, reserved)
                return
        if reserved:
            self._release(reserved)

    def _await(self, pending: PendingResponse, future: asyncio.Future[Any]) -> None:
        pending.pipelined = pending.context.api_key == _PRODUCE
        pending.future = future
        future.add_done_callback(lambda done: self._done(pending, done))

    def _work(self, pending: PendingResponse, work: Awaitable[MaybeResponse], reserved: int) -> None:
        """Run a coroutine handler as a task."""
        dispatcher, load = self._dispatcher, self._load
        is_counted, client = not pending.context.needs_place, self._client.session.user_or_host
        if is_counted:
            load.begin(client)
        name = f"{dispatcher.routes[pending.context.api_key].name} from {self._client.client_host}"
        before = CLIENT.set(client)
        task = self._owner.tasks.start(dispatcher.work(pending.context, work), name=name)
        CLIENT.reset(before)

        def done(task: asyncio.Task[Any]) -> None:
            if task.cancelled() and isinstance(work, Coroutine):
                work.close()  # a task that never started has not awaited the coroutine
            if is_counted:
                load.end(client)
            self._release(reserved)
            self._done(pending, task)

        task.add_done_callback(done)

    def _done(self, pending: PendingResponse, done: asyncio.Future[Any]) -> None:
        """Take the response of a finished task or future. If the result is another future, wait for that future."""
        if self._state is _LOST:
            if not done.cancelled() and done.exception() is None and isinstance(late := done.result(), Delayed):
                late.cancel()
            return
        dispatcher = self._dispatcher
        try:
            if done.cancelled():
                raise Disconnect("the request was cancelled")
            error = done.exception()
            response = dispatcher.failure(pending.context, error) if error is not None else done.result()
            if isinstance(response, asyncio.Future):
                self._await(pending, response)
                self._advance()
                return
            if isinstance(response, Disconnect):
                raise response
            now = dispatcher.monotonic()
            if isinstance(response, list):
                pending.parts = response
            else:
                pending.parts = dispatcher.encode(pending.context, response, now)
        except Disconnect as disconnect:
            self._send_last(pending, disconnect)
            self._end(disconnect)
            return
        dispatcher.metrics_of(pending.context).remote_seconds += now - pending.since
        pending.since = now
        self._responses.collect(now)
        self._advance_at(now)

    def _send_last(self, pending: PendingResponse, disconnect: Disconnect) -> None:
        """Send the final response of a closing connection, unless it has none or an earlier response is
        still missing."""
        responses = self._responses
        if disconnect.response is not None and responses.pending and responses.pending[0] is pending:
            dispatcher = self._dispatcher
            parts = dispatcher.encode(pending.context, disconnect.response, dispatcher.monotonic())
            responses.gather(parts, pending.context)
            self._send()

    def _send(self) -> None:
        try:
            if self._responses.send():
                self._load.unread_responses.watch(self)
        except OSError as broken:
            self._broken(broken)

    def count_unread(self, seconds: float) -> int:
        return 0 if self.is_closed else self._responses.count_unread(seconds)

    @property
    def stalled_s(self) -> float:
        return self._responses.stalled_s

    def _set_reading(self, reading: bool) -> None:
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- Throttling ---

    def _throttle(self, seconds: float) -> None:
        """Neither read from the client nor begin its requests for ``seconds``. A longer throttle that is in effect is
        kept.

        Requests in progress continue, and their responses are sent. A large request that already holds memory
        continues, too, if it is next: other requests wait for that memory.
        """
        if self._state is _LOST:
            return
        if self._mute is not None and self._mute.when() >= self._loop.time() + seconds:
            return
        self._end_throttling()
        self._mute = self._loop.call_later(seconds, self._unmute)
        self._owner.muted(1)

    def _unmute(self) -> None:
        self._end_throttling()
        self._advance()

    def _end_throttling(self) -> None:
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
            self._owner.muted(-1)

    # --- The end ---

    @property
    def is_closed(self) -> bool:
        """True if the transport is closing or has closed."""
        return self._state >= ConnectionState.CLOSING

    @property
    def session(self) -> ClientSession:
        """The client's identity, and how it was authenticated."""
        return self._client.session

    @property
    def is_slow_to_log_in(self) -> bool:
        """True if the client must log in and has not done so within ``LOGIN_USUAL_S``."""
        return self._deadline is not None and self._monotonic() - self._began > LOGIN_USUAL_S

    @property
    def is_busy(self) -> bool:
        """True if responses are pending, or the client has not read them yet."""
        return bool(self._responses.pending) or self._responses.sender.blocked

    def is_idle(self, before: float) -> bool:
        """Return True if the client has sent and read nothing since ``before`` (monotonic seconds), and awaits no
        response or has disconnected without the broker noticing."""
        sent = self._responses.sender.sent_bytes
        if sent != self._seen_sent:
            self._seen_sent = sent
            self.last_active = self._monotonic()
        return self.last_active < before and (not self._responses.pending or self._is_abandoned())

    def _is_abandoned(self) -> bool:
        """Return True if the client has disconnected without the broker noticing.

        That happens if the client's next request waits unread behind a pending response.
        """
        plain = self._transport.get_extra_info("socket")
        if self._reading or plain is None or plain.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(plain.fileno(), _DISCONNECTED)
        return bool(poll.poll(0))

    def _end(self, disconnect: Disconnect) -> None:
        """Close the connection because of ``disconnect``. Failed logins have already been counted and logged."""
        if isinstance(disconnect, SessionExpired):
            self._owner.session_expired()
        self.close("" if isinstance(disconnect, LoginFailed | SessionExpired) else str(disconnect))

    def close(self, reason: str = "") -> None:
        """Close the connection. If a ``reason`` is given, count and log that the broker closed it for this reason.
        Bytes that were already sent are still delivered, unless the client does not read."""
        if self._state is _LOST:
            return
        if reason:
            self._owner.report_closed(self._client, reason)
        self._step(ConnectionEvent.CLOSE)
        self._frames.clear()
        if self._responses.sender.blocked:
            self._transport.abort()  # a normal close would wait for the client to read
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately, and drop all unsent bytes."""
        if self._state is _LOST:
            return
        self._step(ConnectionEvent.CLOSE)
        self._frames.clear()
        self._transport.abort()

    def drain(self) -> None:
        """Begin no further request, and close once every pending response has been sent. Call this at most once."""
        self._step(ConnectionEvent.DRAIN)
        self._frames.clear()
        if self._reading:
            self._set_reading(False)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._state is ConnectionState.DRAINING and not self.is_busy:
            self._step(ConnectionEvent.CLOSE)
            self._transport.close()

    def _broken(self, error: OSError) -> None:
        if isinstance(error, SliceLost):
            self._owner.report_closed(self._client, str(error))
        self.abort()
