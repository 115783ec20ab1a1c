"""TLS between a socket and its connection: the handshake in threads, then encryption on the event loop.

The states::

    HANDSHAKE    bytes of the client go to the handshake; the connection does not exist yet
    OPEN         the connection receives and sends plaintext through this channel, which is its transport
    CLOSING      the transport is closing
    LOST         the transport has closed (final)

A handshake takes a millisecond of arithmetic (RSA), so its steps run in threads: a thousand at once do not hold up
other connections. docs/security.md, "What TLS costs", has the measurements.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final, Protocol, cast

from parley.broker.network.connection import LOGIN_USUAL_S
from parley.broker.network.deadline import Deadline
from parley.broker.network.handshakes import Done, Handshakes
from parley.broker.runtime.states import step
from parley.broker.security.principal import Principal
from parley.broker.security.tls.principal_mapping import NoRuleMatches
from parley.broker.security.tls.server import ServerTls

HANDSHAKE_BYTES_MAX: Final = 256 << 10
"""The most bytes that a client may send in a handshake: a long certificate chain takes 20 KiB."""
RECEIVE_BYTES: Final = 256 << 10
CLOSE_MAX_S: Final = 5.0
"""How long a closed connection waits for a client that does not read."""
PIECE_BYTES: Final = 64 << 10
"""Encrypted at a time: larger pieces cost twice as much, because their memory is new each time."""


class TlsState(IntEnum):
    """What a channel is doing."""

    HANDSHAKE = 0
    OPEN = 1
    CLOSING = 2
    LOST = 3


class TlsEvent(IntEnum):
    """What happens to a channel."""

    AGREE = 0
    """The handshake has succeeded."""
    CLOSE = 1
    """The broker or the client closes, or breaks the protocol."""
    LOSE = 2
    """The transport has closed."""


_STEPS: dict[tuple[TlsState, TlsEvent], TlsState] = {
    (TlsState.HANDSHAKE, TlsEvent.AGREE): TlsState.OPEN,
    (TlsState.HANDSHAKE, TlsEvent.CLOSE): TlsState.CLOSING,
    (TlsState.HANDSHAKE, TlsEvent.LOSE): TlsState.LOST,
    (TlsState.OPEN, TlsEvent.CLOSE): TlsState.CLOSING,
    (TlsState.OPEN, TlsEvent.LOSE): TlsState.LOST,
    (TlsState.CLOSING, TlsEvent.CLOSE): TlsState.CLOSING,
    (TlsState.CLOSING, TlsEvent.LOSE): TlsState.LOST,
}
_OPEN, _HANDSHAKE, _LOST = TlsState.OPEN, TlsState.HANDSHAKE, TlsState.LOST


class ChannelOwner(Protocol):
    """What a channel uses of its listener."""

    @property
    def monotonic(self) -> Callable[[], float]:
        """The clock."""
        ...

    def agreed(self, channel: TlsChannel, principal: Principal) -> asyncio.BufferedProtocol:
        """Return the connection of a client whose handshake has succeeded. Raises if the client is refused."""

    def handshake_failed(self, channel: TlsChannel, reason: str) -> None:
        """Count and log a handshake that failed."""

    def ended(self, channel: TlsChannel) -> None:
        """Note that a channel has ended before it had a connection."""


class TlsChannel(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of an accepted socket, and the transport of its connection."""

    def __init__(
        self,
        owner: ChannelOwner,
        tls: ServerTls,
        *,
        buffer: memoryview,
        handshakes: Handshakes,
        handshake_s: float,
    ) -> None:
        """``buffer`` is received into; channels of one event loop can share it. The handshake may take
        ``handshake_s``."""
        asyncio.Transport.__init__(self)
        self._owner = owner
        self._tls = tls
        self._buffer = buffer
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._state = _HANDSHAKE
        self._arrived = bytearray()  # received while a step of the handshake runs, and at the end of the stream
        self._has_begun = False
        self._is_stepping = False
        self._has_ended = False
        self._reading = True
        self._is_scheduled = False
        self.last_active = owner.monotonic()
        """When the socket was accepted."""
        self._raw: Any = None  # the transport, once there is one
        self._connection: asyncio.BufferedProtocol | None = None
        self._deadline: Deadline | asyncio.TimerHandle | None = None

    def _step(self, event: TlsEvent) -> None:
        self._state = step("TLS channel", _STEPS, self._state, event)

    # --- The protocol of the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._raw = cast(asyncio.Transport, transport)
        if self._state is not _HANDSHAKE:  # evicted before it had a transport
            self._raw.abort()
            return
        self._deadline = Deadline(self._loop, self._handshake_s, self._handshake_too_slow)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _OPEN:
            self._incoming.write(self._buffer[:nbytes])
            self._read()
        elif self._state is _HANDSHAKE:
            self._has_begun = True
            self._arrived += self._buffer[:nbytes]
            if len(self._arrived) + self._incoming.pending > HANDSHAKE_BYTES_MAX:
                self._fail_handshake(f"more than {HANDSHAKE_BYTES_MAX} bytes before the end of the handshake")
            elif not self._is_stepping:
                self._continue_handshake()

    def eof_received(self) -> bool:
        if self._state is _HANDSHAKE and self._has_begun:
            self._fail_handshake("the client has disconnected")
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _HANDSHAKE and self._has_begun:  # a probe of the port sends nothing, and is no failure
            self._owner.handshake_failed(self, str(exc or "the client has disconnected"))
        self._step(TlsEvent.LOSE)
        self._end_handshake()
        if self._connection is None:
            self._owner.ended(self)
        else:
            self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # --- A connection that may be closed to make room, during its handshake ---

    @property
    def is_busy(self) -> bool:
        return False

    @property
    def is_slow_to_log_in(self) -> bool:
        """True if the handshake takes longer than ``LOGIN_USUAL_S``."""
        return self._owner.monotonic() - self.last_active > LOGIN_USUAL_S

    @property
    def is_closed(self) -> bool:
        return self._state >= TlsState.CLOSING

    # --- The handshake ---

    def _continue_handshake(self) -> None:
        """Take what has arrived, and run the next step in a thread. Nothing else uses the TLS objects meanwhile."""
        self._incoming.write(self._arrived)
        self._arrived.clear()
        self._is_stepping = True
        self._handshakes.step(self._take_step, self._stepped, lambda: self._state is _HANDSHAKE)

    def _take_step(self) -> Principal | None:
        """Run the handshake as far as it comes, in a thread. Returns the client's principal at its end, None before.

        Raises SSLError, NoRuleMatches and ValueError if the client is refused.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return None
        return self._tls.principal_of(self._ssl.getpeercert(binary_form=True))

    def _stepped(self, done: Done) -> None:
        self._is_stepping = False
        if self._state is not _HANDSHAKE:
            return
        self._flush()
        if done.error is not None:
            self._fail_handshake(_reason(done.error))
        elif done.principal is not None:
            self._agree(done.principal)
        elif self._arrived:
            self._continue_handshake()

    def _agree(self, principal: Principal) -> None:
        try:
            connection = self._owner.agreed(self, principal)
        except Exception as error:  # the operator's rules for principals
            self._fail_handshake(f"principal.builder.class failed: {type(error).__name__}")
            return
        self._step(TlsEvent.AGREE)
        self._end_handshake()
        self._connection = connection
        try:
            connection.connection_made(self)
            if self._arrived:
                self._incoming.write(self._arrived)
            self._arrived = bytearray()
            self._read()
        except BaseException:
            self.abort()  # as the event loop does with the protocol of a plain socket
            raise

    def _handshake_too_slow(self) -> None:
        self._fail_handshake(f"no TLS handshake within {self._handshake_s:g} s")

    def _fail_handshake(self, reason: str) -> None:
        self._owner.handshake_failed(self, reason)
        self._step(TlsEvent.CLOSE)
        self._end_handshake()
        self._close_raw()  # sends the alert first

    def _close_raw(self) -> None:
        """Close when the client has taken what was sent, but at the latest after ``CLOSE_MAX_S``."""
        self._raw.close()
        self._deadline = self._loop.call_later(CLOSE_MAX_S, self._raw.abort)

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- Plaintext for the connection ---

    def _read(self) -> None:
        """Pass on what has arrived, until the connection pauses."""
        self._is_scheduled = False
        connection, tls, incoming = self._connection, self._ssl, self._incoming
        assert connection is not None
        try:
            while self._reading and self._state is _OPEN and (incoming.pending or tls.pending()):
                buffer: Any = connection.get_buffer(-1)
                if received := self._fill(buffer):
                    connection.buffer_updated(received)
                if self._has_ended:
                    self.close()  # a client that has half-closed reads no responses
                    return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._flush()  # the alert
            self.abort()
            return
        if self._outgoing.pending:
            self._flush()

    def _fill(self, buffer: memoryview) -> int:
        """Decrypt what has arrived, record by record, up to the size of the buffer.

        The client's closing alert sets ``_has_ended``. Raises SSLWantReadError if there is no whole record.
        """
        read: Callable[[int, memoryview], int] = cast(Any, self._ssl.read)
        incoming, size = self._incoming, len(buffer)
        more = filled = read(size, buffer)
        while more and filled < size and incoming.pending:
            try:
                more = read(size - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                return filled
            filled += more
        self._has_ended = not more
        return filled

    def _flush(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # --- The transport of the connection ---

    def write(self, data: Any) -> None:
        if not data or self._state is not _OPEN:
            return
        if len(data) <= PIECE_BYTES:
            self._ssl.write(data)  # takes all of it: the memory is not bounded here, but by the sender
            self._flush()
            return
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._ssl.write(view[start : start + PIECE_BYTES])
            self._flush()

    def pause_reading(self) -> None:
        self._reading = False
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._state is not _OPEN:
            return
        self._reading = True
        self._raw.resume_reading()
        if not self._is_scheduled and (self._incoming.pending or self._ssl.pending()):
            self._is_scheduled = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        if self._state is _OPEN:
            self._read()

    def close(self) -> None:
        if self._state is _LOST:
            return
        if self._state is _OPEN:
            with suppress(ssl.SSLError):  # the client's own alert is not awaited
                self._ssl.unwrap()
            self._flush()
        was_open = self._state is _OPEN
        self._step(TlsEvent.CLOSE)
        if was_open:
            self._close_raw()

    def abort(self) -> None:
        if self._state is not _LOST:
            self._step(TlsEvent.CLOSE)
            if self._raw is not None:
                self._raw.abort()

    def is_closing(self) -> bool:
        return self._state >= TlsState.CLOSING or self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ssl if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return cast(int, self._raw.get_write_buffer_size())


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, NoRuleMatches):
        return str(error)
    return f"TLS handshake failed: {type(error).__name__}"
