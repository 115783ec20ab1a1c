"""TLS between a socket and its connection: the handshake runs in threads, and the encryption on the event loop.

The states::

    HANDSHAKE    the client's bytes go to the handshake; the connection does not exist yet
    OPEN         the connection receives and sends plaintext through this channel, which is its transport
    CLOSING      the transport is closing
    LOST         the transport has closed (final)

A handshake takes a millisecond of CPU time (RSA), so its steps run in threads: a thousand concurrent handshakes do not
delay other connections. Received bytes are decrypted a few records at a time, in turns that all connections share.
While received bytes wait for a turn, the socket is not read. docs/security.md, "What security costs", has the
measurements.

With ``ssl.ktls.enable``, the kernel encrypts once the handshake is complete. The connection then writes plaintext to
the socket, as without TLS, and what OpenSSL wants to send is dropped.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final, Protocol, cast

from parley.broker.network.connection import LOGIN_USUAL_S, TURN_S, Connection
from parley.broker.network.deadline import Deadline
from parley.broker.network.handshakes import Done, Handshakes
from parley.broker.network.load import Load
from parley.broker.network.tls_records import RecordEnds
from parley.broker.runtime.states import step
from parley.broker.security.principal import Principal
from parley.broker.security.tls.kernel import KernelSending, send_closing_alert
from parley.broker.security.tls.principal_mapping import NoRuleMatches
from parley.broker.security.tls.server import ServerTls

HANDSHAKE_BYTES_MAX: Final = 128 << 10
"""The maximum number of bytes that a client may send in a handshake. OpenSSL accepts certificate chains of 100 KiB. A
long chain is 20 KiB, and Kafka's brokers accept 32 KiB (Java's ``jdk.tls.maxHandshakeMessageSize``)."""
HANDSHAKE_RECEIVE_BYTES: Final = 16 << 10
"""The number of bytes received at a time in a handshake. While a step of the handshake runs, at most twice as many
wait."""
RECEIVE_BYTES: Final = 256 << 10
RECORDS_AT_ONCE: Final = 256
"""The number of records passed to OpenSSL at a time. OpenSSL takes 3 ms for this many records without data."""
HANDSHAKE_RECORDS_AT_ONCE: Final = 8
"""The number of records passed to OpenSSL at a time during a handshake. A client's second flight is five records; later
records are not part of it."""
IDLE_RECORDS_MAX: Final = 1024
"""The maximum number of consecutive records without data. Well-behaved clients send one key update per many
gigabytes."""
DISCONNECTED: Final = (
    "the client disconnected during the TLS handshake: it may not trust the certificate of this broker"
)
CLOSE_MAX_S: Final = 5.0
"""The maximum time, in seconds, that a closed connection waits for a client that does not read."""
PIECE_BYTES: Final = 64 << 10
"""The number of bytes encrypted at a time. Larger pieces cost twice as much, because OpenSSL allocates new memory for
each."""


class TlsState(IntEnum):
    """The state of a channel. The module docstring explains each one."""

    HANDSHAKE = 0
    OPEN = 1
    CLOSING = 2
    LOST = 3


class TlsEvent(IntEnum):
    """An event in the life of a channel."""

    AGREE = 0
    """The handshake has succeeded."""
    CLOSE = 1
    """The broker or the client closes the channel, or the client violates the protocol."""
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
    """The part of a listener that its channels use."""

    load: Load

    @property
    def monotonic(self) -> Callable[[], float]:
        """The monotonic clock, in seconds."""
        ...

    def agreed(self, channel: TlsChannel, principal: Principal) -> Connection:
        """Return the connection of a client whose handshake has succeeded. Raises the errors of the operator's
        principal builder, which reject the client."""

    def handshake_failed(self, channel: TlsChannel, reason: str) -> None:
        """Count and log a failed handshake."""

    def ended(self, channel: TlsChannel) -> None:
        """Record that a channel ended before its connection existed."""


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
        host: str,
    ) -> None:
        """``buffer`` receives the socket's bytes; all channels of an event loop can share it. ``handshake_s`` is the
        time limit of the handshake, in seconds; ``host`` is the client's address."""
        asyncio.Transport.__init__(self)
        self._owner = owner
        self._tls = tls
        self._buffer = buffer
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._host = host
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._state = _HANDSHAKE
        self._arrived = bytearray()  # not passed to OpenSSL yet
        self._records = RecordEnds()
        self._idle_records = 0  # in a row
        self._handshake_bytes = 0
        self._has_begun = False
        self._is_stepping = False
        self._has_ended = False
        self._reading = True  # the connection accepts more data
        self._socket_is_read = True
        self._is_scheduled = False
        self._turn_left_s = TURN_S
        self._waits_for_turn = False
        self.last_active = owner.monotonic()
        """The monotonic time at which the socket was accepted, in seconds."""
        self._kernel: KernelSending | None = None
        self.kernel_encrypts = False
        """True if the socket accepts plaintext, which the kernel encrypts."""
        self._raw: Any = None  # the transport, once there is one
        self._connection: Connection | None = None
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
        return self._buffer[:HANDSHAKE_RECEIVE_BYTES] if self._state is _HANDSHAKE else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        arrived = self._buffer[:nbytes]
        if self._state is _OPEN:
            if not self._arrived:
                taken = self._feed(arrived, RECORDS_AT_ONCE)
                arrived = arrived[taken:]
            self._arrived += arrived
            self._read()
        elif self._state is _HANDSHAKE:
            self._has_begun = True
            self._arrived += arrived
            if not self._is_stepping:
                self._continue_handshake()
            elif len(self._arrived) >= HANDSHAKE_RECEIVE_BYTES:
                self._watch_socket()

    def _feed(self, data: memoryview | bytearray, records_max: int) -> int:
        """Pass the next records to OpenSSL. Returns their size in bytes."""
        with memoryview(data) as view:
            taken, records = self._records.take(view, records_max)
            self._incoming.write(view[:taken])
        self._idle_records += records
        return taken

    def _feed_arrived(self, records_max: int) -> int:
        taken = self._feed(self._arrived, records_max)
        del self._arrived[:taken]
        return taken

    def _watch_socket(self) -> None:
        """Pause reading the socket while received bytes wait or the connection accepts no more. Otherwise resume
        reading."""
        if self._state is _HANDSHAKE:
            wanted = len(self._arrived) < HANDSHAKE_RECEIVE_BYTES
        else:
            wanted = self._reading and not self._waits_for_turn
        if wanted is not self._socket_is_read:
            self._socket_is_read = wanted
            if wanted:
                self._raw.resume_reading()
            else:
                self._raw.pause_reading()

    def eof_received(self) -> bool:
        if self._state is _HANDSHAKE and self._has_begun:
            self._fail_handshake(DISCONNECTED)
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is _HANDSHAKE and self._has_begun:  # a port probe sends nothing and is not a failure
            self._owner.handshake_failed(self, DISCONNECTED)
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
        """Pass received bytes to OpenSSL, and run the next step of the handshake in a thread.

        Nothing else uses the TLS objects until the step is done.
        """
        if self._kernel is None and self._tls.key_log is not None:
            self._kernel = KernelSending(self._tls.key_log, self._arrived)
        self._handshake_bytes += self._feed_arrived(HANDSHAKE_RECORDS_AT_ONCE)
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX or self._idle_records > IDLE_RECORDS_MAX:
            self._fail_handshake("the handshake is too long")
            return
        self._watch_socket()
        self._is_stepping = True
        self._handshakes.step(self._host, self._take_step, self._stepped, lambda: self._state is _HANDSHAKE)

    def _take_step(self) -> Principal | None:
        """Continue the handshake with the bytes received so far. Runs in a thread.

        Returns the client's principal if the handshake is complete, else None. Raises SSLError, NoRuleMatches or
        ValueError if the client is refused.
        """
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return None
        finally:
            if self._kernel is not None:
                self._kernel.note_secret()
        return self._tls.principal_of(self._ssl.getpeercert(binary_form=True))

    def _stepped(self, done: Done) -> None:
        self._is_stepping = False
        if self._state is not _HANDSHAKE:
            return
        sent = self._flush()
        if done.error is not None:
            self._fail_handshake(_reason(done.error, "TLS handshake failed"))
        elif done.principal is not None:
            if self._tls.key_log is not None:
                self._tls.key_log.leave(self._ssl)
            self._let_kernel_encrypt(sent)
            self._agree(done.principal)
        elif self._arrived:
            self._continue_handshake()

    def _let_kernel_encrypt(self, sent: bytes) -> None:
        """Give the kernel the keys, if it can encrypt as agreed. ``sent`` is what OpenSSL has just sent.

        Bytes that the socket has not accepted are encrypted already: then OpenSSL remains responsible.
        """
        cipher = self._ssl.cipher()
        if self._kernel is None or cipher is None or self._raw.get_write_buffer_size():
            return
        setsockopt = self._raw.get_extra_info("socket").setsockopt
        self.kernel_encrypts = self._kernel.begin(self._ssl.version(), cipher[0], sent, setsockopt)
        self._kernel = None

    def _agree(self, principal: Principal) -> None:
        try:
            connection = self._owner.agreed(self, principal)
        except Exception as error:  # raised by the operator's principal builder
            self._fail_handshake(f"principal.builder.class failed: {type(error).__name__}")
            return
        self._step(TlsEvent.AGREE)
        self._end_handshake()
        self._connection = connection
        try:
            connection.connection_made(self)
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
        """Close the socket once the client has read the sent bytes, but after ``CLOSE_MAX_S`` at the latest."""
        self._raw.close()
        self._deadline = self._loop.call_later(CLOSE_MAX_S, self._raw.abort)

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- Plaintext for the connection ---

    def _read(self) -> None:
        """Decrypt received bytes and pass them to the connection, until it pauses or its turn is over."""
        self._is_scheduled = False
        connection = self._connection
        assert connection is not None
        try:
            while self._reading and self._state is _OPEN and self._has_more() and self._is_its_turn():
                if received := self._fill(connection.get_buffer(-1)):
                    self._idle_records = 0
                    connection.buffer_updated(received)
                elif self._idle_records > IDLE_RECORDS_MAX:
                    connection.close(f"more than {IDLE_RECORDS_MAX} TLS records without data")
                if self._has_ended:
                    self.close()  # a client that has half-closed reads no responses
        except ssl.SSLError as error:
            connection.close(_reason(error, "malformed TLS"))  # sends the alert
        if self._state is _OPEN:
            self._flush()
            self._watch_socket()

    def _has_more(self) -> bool:
        """Return True if OpenSSL has bytes to decrypt. If it has none, pass it more of the received bytes."""
        if not (self._incoming.pending or self._ssl.pending()) and self._arrived:
            self._feed_arrived(RECORDS_AT_ONCE)
        return bool(self._incoming.pending or self._ssl.pending())

    def _is_its_turn(self) -> bool:
        """Return True if the connection may continue now. If not, it continues after the event loop has served other
        connections."""
        turns = self._owner.load.turns
        if (turns.are_over or self._turn_left_s < 0) and not self._waits_for_turn:
            self._waits_for_turn = True
            connection = self._connection
            turns.wait(None if connection is None else connection.session.user_or_host, self._next_turn)
        return not self._waits_for_turn

    def _next_turn(self) -> None:
        self._waits_for_turn = False
        self._turn_left_s = TURN_S
        if self._state is _OPEN:
            self._read()

    def _fill(self, buffer: Any) -> int:
        """Decrypt record by record into the buffer, until it is full or OpenSSL has no more. Returns the number of
        bytes.

        Sets ``_has_ended`` on the client's closing alert. Raises SSLError if the client violates the protocol.
        """
        read: Callable[[int, memoryview], int] = cast(Any, self._ssl.read)
        incoming, size, filled = self._incoming, len(buffer), 0
        began = self._owner.monotonic()
        try:
            while more := read(size - filled, buffer[filled:] if filled else buffer):
                filled += more
                if filled == size or not incoming.pending:
                    break
            self._has_ended = not more
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        took = self._owner.monotonic() - began
        self._turn_left_s -= took
        self._owner.load.turns.used(took)
        return filled

    def _flush(self) -> bytes:
        """Send what OpenSSL has encrypted, and return it. It is dropped if the kernel encrypts."""
        if not self._outgoing.pending or self._raw.is_closing():
            return b""
        data = self._outgoing.read()
        if not self.kernel_encrypts:
            self._raw.write(data)
        return data

    # --- The transport of the connection ---

    def write(self, data: Any) -> None:
        if not data or self._state is not _OPEN:
            return
        if self.kernel_encrypts:
            self._raw.write(data)
            return
        try:
            self._encrypt(data)
        except ssl.SSLError as error:
            assert self._connection is not None
            self._connection.close(_reason(error, "cannot encrypt a response"))

    def _encrypt(self, data: Any) -> None:
        """Encrypt and send ``data``. Raises SSLError if the client has sent only a part of a key update message."""
        if len(data) <= PIECE_BYTES:
            self._ssl.write(data)  # takes everything: the sender bounds the memory
            self._flush()
            return
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._ssl.write(view[start : start + PIECE_BYTES])
            self._flush()

    def pause_reading(self) -> None:
        self._reading = False
        self._watch_socket()

    def resume_reading(self) -> None:
        if self._state is not _OPEN:
            return
        self._reading = True
        self._watch_socket()
        if not self._is_scheduled and (self._arrived or self._incoming.pending or self._ssl.pending()):
            self._is_scheduled = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        if self._state is _OPEN:
            self._read()

    def close(self) -> None:
        if self._state is _LOST:
            return
        if self._state is _OPEN:
            with suppress(ssl.SSLError):  # do not wait for the client's closing alert
                self._ssl.unwrap()
            self._flush()
            if self.kernel_encrypts and not self._raw.get_write_buffer_size():
                with suppress(OSError):  # a client that does not read gets no alert
                    send_closing_alert(self._raw.get_extra_info("socket").fileno())
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
        """Return information about the transport. ``ssl_object`` is missing if the socket accepts plaintext."""
        if name == "ssl_object":
            return default if self.kernel_encrypts else self._ssl
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return cast(int, self._raw.get_write_buffer_size())


def _reason(error: BaseException, what: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLWantReadError):
        return f"{what}: the client has sent an incomplete TLS message"
    if isinstance(error, ssl.SSLError):
        return f"{what}: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, NoRuleMatches):
        return str(error)
    return f"{what}: {type(error).__name__}"
