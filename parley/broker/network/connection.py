"""One client's connection: frames in, answers out, in order.

Rules of this module:

* Answers leave in the order of their requests. The next request begins when the previous one is done; behind produce
  requests that only wait for their replicas, more produce requests begin, up to ``PIPELINED_MAX``. Whatever waits for
  an event is told that another request waits behind it.
* Nothing is read while a request is queued, the peer does not take its answers, or the broker is loaded to its limits;
  so a connection holds at most one read's worth of requests and the answers it owes.
* A peer that does not read keeps no more than ``UNSENT_MAX`` bytes of answers here and the one that exceeded it. It is
  cut off when it has taken nothing for as long as others may be idle.
* After ``TURN_S`` of handling what one peer has sent at once, the loop serves others first.
* What breaks the protocol closes the connection with one log line; no other connection notices.

No task is made for a request whose handler answers at once or with a future; only a coroutine becomes a task.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from parley.broker.network.dispatch import Answer, Disconnect, Peer, RequestContext
from parley.broker.network.sending import Part, Sender, SliceLost, SocketSender, TransportSender
from parley.broker.runtime.purgatory import Delayed
from parley.protocol.connection import FrameReader, FrameTooLarge
from parley.protocol.errors import MalformedMessage

if TYPE_CHECKING:
    from parley.broker.network.listener import Listener

PIPELINED_MAX = 64
"""Produce requests of one connection that wait for their replicas at the same time."""
UNSENT_MAX = 256 << 10
"""Bytes of answers gathered before they are sent, and the next request is begun."""
TURN_S = 0.005
PRODUCE_KEY = b"\x00\x00"


class _Owed:
    """An answer that is not there yet, and those behind it: ``parts`` is None until it can be sent."""

    __slots__ = ("awaited", "context", "parts", "pipelined", "since")

    def __init__(self, context: RequestContext, since: float) -> None:
        self.context = context
        self.since = since
        self.parts: list[Part] | None = None
        self.awaited: asyncio.Future[Any] | None = None
        self.pipelined = False


class Connection(asyncio.BufferedProtocol):
    """The protocol of one accepted connection; its listener makes, counts and ends it."""

    __slots__ = (
        "_closing",
        "_frames",
        "_listener",
        "_loop",
        "_lost",
        "_out",
        "_owed",
        "_peer",
        "_reader",
        "_reading",
        "_reserved",
        "_seen_sent",
        "_sender",
        "_starved",
        "_transport",
        "_unsent",
        "_waiting_for_load",
        "_waiting_for_turn",
        "last_active",
    )

    def __init__(self, listener: Listener, peer: Peer) -> None:
        self._listener = listener
        self._peer = peer
        self._reader = FrameReader(listener.limits.request_bytes)
        self._frames: deque[memoryview] = deque()
        self._owed: deque[_Owed] = deque()
        self._out: list[Part] = []
        self._closing = False
        self._lost = False
        self._reading = True
        self._unsent = 0  # bytes of what is gathered to be sent
        self._waiting_for_load = False
        self._waiting_for_turn = False
        self._reserved = 0  # bytes of the large frame that is being received or waits to be begun
        self._starved = False  # a large frame must wait for memory
        self._seen_sent = 0
        self.last_active = 0.0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._sender = self._make_sender()
        self.last_active = self._listener.monotonic()
        self._listener.made(self)

    def _make_sender(self) -> Sender:
        transport = self._transport
        plain = transport.get_extra_info("socket")
        if plain is None or transport.get_extra_info("ssl_object") is not None:
            return TransportSender(transport, self._advance)
        own = socket.socket(plain.family, plain.type, plain.proto, fileno=plain.fileno())
        own.setblocking(False)
        return SocketSender(transport, own, self._loop, self._advance, self._broken)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.last_active = self._listener.monotonic()
        try:
            self._frames.extend(self._reader.buffer_updated(nbytes))
        except (FrameTooLarge, MalformedMessage) as malformed:
            self._advance()
            self.close(str(malformed))
            return
        if self._reader.large_frame_bytes and not self._reserved:
            self._reserve()
        self._advance()

    def eof_received(self) -> bool:
        return False  # the transport closes itself: a client that has half-closed reads no answers

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._lost = True
        self._frames.clear()
        self._sender.close()
        self._release(self._take_reserved())
        for owed in self._owed:
            if isinstance(owed.awaited, Delayed):
                owed.awaited.cancel()
        self._listener.forget(self, self._peer)

    def pause_writing(self) -> None:
        self._sender.pause()

    def resume_writing(self) -> None:
        self._sender.resume()

    # Requests.

    def _advance(self) -> None:
        """Begin what may begin, send what is ready, and read on if nothing stands in the way."""
        frames = self._frames
        reason = ""
        try:
            if frames:
                turn_ends = self._listener.monotonic() + TURN_S
                while frames and self._may_begin(frames[0], turn_ends):
                    self._begin(frames.popleft())
                    if self._unsent >= UNSENT_MAX:
                        self._send()
        except Disconnect as disconnect:
            reason = str(disconnect)
        self._send()
        if reason:
            self.close(reason)
        elif self._closing:
            self._finish_closing()
        elif (not frames and not self._starved and not self._sender.blocked) is not self._reading:
            self._set_reading(not self._reading)

    def _may_begin(self, frame: memoryview, turn_ends: float) -> bool:
        if self._closing or self._sender.blocked:
            return False
        owed = self._owed
        if owed and not (len(owed) < PIPELINED_MAX and owed[-1].pipelined and frame[:2] == PRODUCE_KEY):
            if isinstance(awaited := owed[-1].awaited, Delayed):
                awaited.next_request_arrived()
            return False
        if self._listener.load.is_full:
            self._wait_for_load()
            return False
        if self._listener.monotonic() > turn_ends:
            if not self._waiting_for_turn:
                self._waiting_for_turn = True
                self._loop.call_soon(self._next_turn)
            return False
        return True

    def _next_turn(self) -> None:
        self._waiting_for_turn = False
        self._advance()

    def _wait_for_load(self) -> None:
        if not self._waiting_for_load:
            self._waiting_for_load = True
            self._listener.load.call_when_eased(self._load_eased)

    def _load_eased(self) -> None:
        self._waiting_for_load = False
        if self._starved and not self._lost:
            self._reserve()
        self._advance()

    def _reserve(self) -> None:
        """Take memory for the large frame that has begun, or wait for it."""
        size = self._reader.large_frame_bytes
        self._starved = not self._listener.load.reserve(size)
        if self._starved:
            self._wait_for_load()
        else:
            self._reserved = size

    def _take_reserved(self) -> int:
        reserved, self._reserved = self._reserved, 0
        return reserved

    def _release(self, reserved: int) -> None:
        if reserved:
            self._listener.load.release(reserved)

    def _begin(self, frame: memoryview) -> None:
        dispatcher = self._listener.dispatcher
        reserved = self._take_reserved() if len(frame) == self._reserved else 0
        try:
            context, answer = dispatcher.handle(self._peer, frame, self.last_active)
        except Disconnect:
            self._release(reserved)
            raise
        if isinstance(answer, list) and not self._owed:
            self._gather(answer)
        else:
            owed = _Owed(context, dispatcher.monotonic())
            self._owed.append(owed)
            if isinstance(answer, list):
                owed.parts = answer
                owed.pipelined = True
            elif isinstance(answer, asyncio.Future):
                self._await(owed, answer)
            else:
                self._work(owed, answer, reserved)
                return
        if reserved:
            self._release(reserved)

    def _await(self, owed: _Owed, answer: asyncio.Future[Any]) -> None:
        owed.pipelined = owed.context.api_key == 0
        owed.awaited = answer
        answer.add_done_callback(lambda done: self._arrived(owed, done))

    def _work(self, owed: _Owed, work: Awaitable[Answer], reserved: int) -> None:
        dispatcher, load = self._listener.dispatcher, self._listener.load
        load.begin()
        name = f"{dispatcher.routes[owed.context.api_key].name} from {self._peer.client_host}"
        task = self._listener.tasks.start(dispatcher.work(owed.context, work), name=name)

        def done(task: asyncio.Task[Any]) -> None:
            load.end()
            self._release(reserved)
            self._arrived(owed, task)

        task.add_done_callback(done)

    def _arrived(self, owed: _Owed, done: asyncio.Future[Any]) -> None:
        """The answer is there, or the task that worked on it ended with a future to wait for."""
        if self._lost:
            return
        dispatcher = self._listener.dispatcher
        try:
            if done.cancelled():
                raise Disconnect("the broker gave up the request")
            error = done.exception()
            answer = dispatcher.failure(owed.context, error) if error is not None else done.result()
            if isinstance(answer, asyncio.Future):
                self._await(owed, answer)
                self._advance()
                return
            if isinstance(answer, Disconnect):
                raise answer
            now = dispatcher.monotonic()
            owed.parts = dispatcher.encode(owed.context, answer, now)
        except Disconnect as disconnect:
            self.close(str(disconnect))
            return
        dispatcher.routes[owed.context.api_key].metrics.remote_seconds += now - owed.since
        owed.since = now
        self._collect(now)
        self._advance()

    def _collect(self, now: float) -> None:
        """Take the answers that are there, up to the first one still owed."""
        owed = self._owed
        while owed and (parts := owed[0].parts) is not None:
            first = owed.popleft()
            self._gather(parts)
            metrics = self._listener.dispatcher.routes[first.context.api_key].metrics
            metrics.response_queue_seconds += now - first.since

    def _gather(self, parts: list[Part]) -> None:
        self._out += parts
        for part in parts:
            self._unsent += len(part)

    def _send(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._unsent = 0
            try:
                self._sender.send(out)
            except OSError as broken:
                self._broken(broken)

    def _set_reading(self, reading: bool) -> None:
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # The end.

    @property
    def is_busy(self) -> bool:
        """Whether answers are owed or not yet taken by the peer."""
        return bool(self._owed) or self._sender.blocked

    def is_idle(self, before: float) -> bool:
        """Whether the peer has asked nothing and taken nothing since ``before``, and waits for nothing."""
        sent = self._sender.sent_bytes
        if sent != self._seen_sent:
            self._seen_sent = sent
            self.last_active = self._listener.monotonic()
        return self.last_active < before and not self._owed

    def close(self, reason: str = "") -> None:
        """Close at once; a reason is logged. What the socket has taken still arrives."""
        if reason and not self._lost:
            self._listener.complain(self._peer, reason)
        self._closing = True
        self._frames.clear()
        if self._sender.blocked:
            self._transport.abort()  # else it would wait for the peer to read
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever was still to be sent."""
        self._closing = True
        self._frames.clear()
        self._transport.abort()

    def finish(self) -> None:
        """Begin no further request, and close once every answer owed has been sent."""
        self._closing = True
        self._frames.clear()
        if self._reading:
            self._set_reading(False)
        self._finish_closing()

    def _finish_closing(self) -> None:
        if not self.is_busy:
            self._transport.close()

    def _broken(self, error: OSError) -> None:
        if isinstance(error, SliceLost):
            self._listener.complain(self._peer, str(error))
        self.abort()
