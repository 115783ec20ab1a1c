"""The responses of one connection, from the start of their requests until the client has read them.

Rules:

* Responses leave in the order of their requests. A response that is not ready, and each one after it, is pending.
* Responses that are ready are gathered and sent together, as soon as the connection calls ``send``.
* A response that the client does not read at once is unread until the sender is no longer blocked. Its send time ends
  then.
* A client reads if the number of bytes that it has acknowledged grows, however slowly.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Any

from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.request_context import RequestContext
from parley.broker.network.sending import Part, Sender
from parley.broker.runtime.purgatory import Delayed


class PendingResponse:
    """A response that is not ready yet, or waits for an earlier response. ``parts`` is None until it is encoded.

    ``since`` is the monotonic time at which its current wait began, in seconds. If ``pipelined``, a produce request may
    begin before the response is ready.
    """

    __slots__ = ("context", "future", "parts", "pipelined", "since")

    def __init__(self, context: RequestContext, since: float) -> None:
        self.context = context
        self.since = since
        self.parts: list[Part] | None = None
        self.future: asyncio.Future[Any] | None = None
        self.pipelined = False


class ResponseQueue:
    """The responses that one client has not read yet."""

    __slots__ = (
        "_dispatcher",
        "_gathered",
        "_gathered_of",
        "_monotonic",
        "_seen_acknowledged",
        "_transport",
        "pending",
        "sender",
        "stalled_s",
        "unread",
        "unsent_bytes",
    )

    def __init__(
        self, dispatcher: Dispatcher, transport: asyncio.Transport, sender: Sender, monotonic: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._transport = transport
        self._monotonic = monotonic
        self._gathered: list[Part] = []
        self._gathered_of: list[RequestContext] = []  # the requests whose responses are gathered
        self._seen_acknowledged = -1  # at the last call of ``count_unread``
        self.sender = sender
        self.pending: deque[PendingResponse] = deque()
        """The responses that are not ready, and those that wait for them, in the order of their requests."""
        self.unsent_bytes = 0
        """The number of bytes in the gathered responses."""
        self.unread: list[tuple[RequestContext, float]] = []
        """The requests whose responses wait for the client to read, each with the monotonic time since which it
        waits."""
        self.stalled_s = 0.0
        """How long, in seconds, the client has read nothing although responses wait for it."""

    def collect(self, now: float) -> None:
        """Gather the pending responses that are ready, up to the first that is not."""
        pending = self.pending
        while pending and (parts := pending[0].parts) is not None:
            first = pending.popleft()
            self.gather(parts, first.context)
            self._dispatcher.metrics_of(first.context).response_queue_seconds += now - first.since

    def gather(self, parts: list[Part], context: RequestContext) -> None:
        """Add a response that is ready, and that no pending response precedes."""
        if parts:
            self._gathered += parts
            self._gathered_of.append(context)
        for part in parts:
            self.unsent_bytes += len(part)

    def send(self) -> bool:
        """Send the gathered responses. Returns True if they wait for the client to read.

        Raises OSError if the connection is broken.
        """
        if not self._gathered:
            return False
        gathered, self._gathered = self._gathered, []
        contexts, self._gathered_of = self._gathered_of, []
        self.unsent_bytes = 0
        self.sender.send(gathered)
        if not self.sender.blocked:
            return False
        now = self._monotonic()
        self.unread += [(context, now) for context in contexts]
        return True

    def record_send_times(self) -> None:
        """Record the send times of the responses that waited for the client and have now been sent."""
        now = self._monotonic()
        for context, since in self.unread:
            self._dispatcher.metrics_of(context).send_seconds += now - since
        self.unread.clear()

    def count_unread(self, seconds: float) -> int:
        """Return the number of bytes in memory that wait for the client to read.

        Adds ``seconds``, the time since the last call, to ``stalled_s`` if the client has read nothing since.
        """
        if not self.sender.blocked:
            return 0
        acknowledged = self.acknowledged_bytes()
        self.stalled_s = self.stalled_s + seconds if acknowledged == self._seen_acknowledged else 0.0
        self._seen_acknowledged = acknowledged
        return self.sender.memory_bytes

    def acknowledged_bytes(self) -> int:
        """Return the number of sent bytes that the client has acknowledged (by TCP)."""
        return self.sender.sent_bytes - self._transport.get_write_buffer_size() - self._in_kernel_bytes()

    def _in_kernel_bytes(self) -> int:
        """Return the number of bytes in the kernel's send buffer, which can hold megabytes: ``sent_bytes`` alone grows
        in large steps."""
        plain = self._transport.get_extra_info("socket")
        if plain is None or plain.fileno() < 0:
            return 0
        try:
            return int.from_bytes(fcntl.ioctl(plain.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:  # the system does not report this for sockets
            return 0

    def abandon(self) -> None:
        """Drop the responses, and stop the waits for events: the connection has ended."""
        self.sender.close()
        for pending in self.pending:
            if isinstance(pending.future, Delayed):
                pending.future.cancel()
