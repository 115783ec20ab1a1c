"""Load through plain sockets: produce requests of one record, readers that fetch, idle connections.

Run it as ``python -m bench.small_load produce|paced|read|idle ...``. It prints a JSON object. Requests are encoded
once, so that the client takes little of the processor time that it shares with the broker.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from bench.creation import FRAME_BYTES_MAX, METADATA_VERSION, Client
from bench.small_requests import FETCH_VERSION, PRODUCE_VERSION, SESSION_MS, error_of
from parley.protocol.codec import request_frame
from parley.protocol.connection import ClientConnection
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.protocol.schema import Request

WAIT_S = 60.0
PERCENTILES = (50.0, 99.0, 99.9)
READ_BYTES = 1 << 20
FETCH_WAIT_MS = 500
NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""Errors that requests for a new topic may return at first. Clients retry them."""
TRIES, PAUSE_S = 200, 0.05
IN_FLIGHT_MAX = 5
"""The maximum number of requests in flight on a paced connection, as in Kafka's producer."""


def produce_request(topic: str, acks: int, value_bytes: int = 100) -> ProduceRequest:
    """Return a request that appends one record to partition 0."""
    records = build([Record(0, int(time.time() * 1000), None, b"x" * value_bytes, ())])
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    wanted = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=SESSION_MS, topic_data=[wanted])


def fetch_request(topic: str, offset: int) -> FetchRequest:
    """Return a request for records from an offset, which waits for them."""
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=READ_BYTES)
    return FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=READ_BYTES,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )


def framed(request: Request, version: int) -> bytes:
    """Return the bytes of a request, including its length prefix."""
    return b"".join(request_frame(request, version, 1, "bench"))


def checked(bootstrap: str, topic: str, acks: int) -> bytes:
    """Return the bytes of a produce request that the broker has accepted once. Raises SystemExit if it keeps rejecting
    it."""
    request, client = produce_request(topic, acks), Client(bootstrap)
    for _ in range(TRIES):
        response, _ = client.ask(request, PRODUCE_VERSION)
        error = error_of(response)
        if not error:
            return framed(request, PRODUCE_VERSION)
        if error not in NOT_YET:
            break
        time.sleep(PAUSE_S)
    raise SystemExit(f"the broker responds to a produce request with error {error}")


def connected(bootstrap: str, count: int) -> list[socket.socket]:
    """Open ``count`` non-blocking connections to the first bootstrap address."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    found = []
    for _ in range(count):
        sock = socket.create_connection((host, int(port)), timeout=WAIT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        found.append(sock)
    return found


class Responses:
    """Counts the whole responses in the bytes that a connection receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = b""

    def receive(self) -> int:
        """Read from the connection. Returns the number of responses that are now complete. Raises SystemExit if the
        broker has closed the connection."""
        piece = self.sock.recv(1 << 16)
        if not piece:
            raise SystemExit("the broker has closed the connection")
        data, number = self._data + piece, 0
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4])):
            data, number = data[size:], number + 1
        self._data = data
        return number


def percentiles_ms(seconds: list[float], prefix: str = "") -> dict[str, float]:
    """Return percentiles in milliseconds, by their names after ``prefix``. Sorts ``seconds``, which must not be
    empty."""
    seconds.sort()
    return {
        f"{prefix}p{percent:g}": 1000 * seconds[min(len(seconds) - 1, int(len(seconds) * percent / 100))]
        for percent in PERCENTILES
    }


def produce(bootstrap: str, topic: str, connections: int, seconds: float, warm_up: float, acks: int) -> Any:
    """Send requests of one record on each connection, the next one when the response has arrived. Returns the number of
    requests after the warm-up, the seconds, and percentiles of the response times."""
    frame = checked(bootstrap, topic, acks)
    poll, by_number, sent = select.epoll(), {}, {}
    for sock in connected(bootstrap, connections):
        by_number[sock.fileno()] = Responses(sock)
        poll.register(sock.fileno(), select.EPOLLIN)
    now = time.perf_counter()
    begins, ends = now + warm_up, now + warm_up + seconds
    for number, each in by_number.items():
        sent[number] = now
        each.sock.send(frame)
    times: list[float] = []
    print("begun", flush=True)
    while now < ends:
        for number, _ in poll.poll(WAIT_S):
            each = by_number[number]
            if each.receive():
                now = time.perf_counter()
                if now >= begins:
                    times.append(now - sent[number])
                sent[number] = now
                each.sock.send(frame)
    return {"requests": len(times), "seconds": seconds, **percentiles_ms(times)}


class Tail:
    """A reader that fetches a partition as records arrive."""

    def __init__(self, sock: socket.socket, topic: str, offset: int) -> None:
        self.sock = sock
        self.offset = offset
        self.record_bytes = 0
        self._tries_left = TRIES
        self._topic = topic
        self._connection = ClientConnection("bench", FRAME_BYTES_MAX)

    def ask(self) -> None:
        """Send a fetch request."""
        _, pieces = self._connection.send(fetch_request(self._topic, self.offset), FETCH_VERSION)
        self.sock.send(b"".join(pieces))

    def receive(self) -> bool:
        """Receive bytes, and ask for more records after a whole response. Returns True if records have arrived. Raises
        SystemExit if the broker closes the connection or keeps returning an error."""
        before = self.offset
        room = self._connection.get_buffer(READ_BYTES)
        count = self.sock.recv_into(room)
        if not count:
            raise SystemExit("the broker has closed a reader's connection")
        for _, response in self._connection.buffer_updated(count):
            self._take(response)
        return self.offset > before

    def _take(self, response: Any) -> None:
        assert isinstance(response, FetchResponse)
        data = response.responses[0].partitions[0] if response.responses else None
        if error := response.error_code or (data.error_code if data is not None else 0):
            if error not in NOT_YET or not self._tries_left:
                raise SystemExit(f"the broker responds to a fetch with error {error}")
            self._tries_left -= 1
            time.sleep(PAUSE_S)
        records: Any = data.records if data is not None else None
        for _, header in headers(records or b""):
            self.offset = max(self.offset, header.next_offset)
        self.record_bytes += len(records or b"")
        self.ask()


class Paced:
    """Connections that send one record per request at a steady rate, in turns."""

    def __init__(self, sockets: Sequence[socket.socket], frame: bytes, rate: float, total: int) -> None:
        self._frame = frame
        self._rate = rate
        self._total = total
        self._responses = {sock: Responses(sock) for sock in sockets}
        self._waiting: dict[socket.socket, deque[float]] = {sock: deque() for sock in sockets}
        self._turns = deque(sockets)
        self._began = time.perf_counter()
        self.sent: list[float] = []
        """The time at which each sent request was due."""
        self.times: list[float] = []
        """The seconds from the time at which each request was due to its response."""

    @property
    def is_done(self) -> bool:
        return len(self.times) >= self._total

    def pause_s(self) -> float:
        """Return the seconds until the next request is due, or ``WAIT_S`` if all have been sent."""
        if len(self.sent) == self._total:
            return WAIT_S
        return max(0.0, self._began + len(self.sent) / self._rate - time.perf_counter())

    def send_due(self) -> None:
        """Send the requests that are due, on the connections that may send."""
        for _ in range(len(self._turns)):
            due = self._began + len(self.sent) / self._rate
            if len(self.sent) == self._total or due > time.perf_counter():
                return
            sock = self._turns[0]
            self._turns.rotate(-1)
            if len(self._waiting[sock]) < IN_FLIGHT_MAX:
                self._waiting[sock].append(due)
                self.sent.append(due)
                sock.send(self._frame)

    def receive(self, sock: socket.socket) -> None:
        """Take the responses that have arrived on a connection, and record the times that they took. Raises SystemExit
        if the broker has closed the connection."""
        for _ in range(self._responses[sock].receive()):
            self.times.append(time.perf_counter() - self._waiting[sock].popleft())


def paced(bootstrap: str, topic: str, connections: int, seconds: float, rate: float, acks: int, warm_up: float) -> Any:
    """Send one record per request at a steady rate. Latency counts from the time at which a request was due. Returns
    the number of requests after the warm-up, the seconds, and percentiles of the latency.

    With one connection, a reader also measures the time from then until it has received the record.
    """
    frame = checked(bootstrap, topic, acks)
    readers = [Tail(sock, topic, 0) for sock in connected(bootstrap, 1 if connections == 1 else 0)]
    for reader in readers:
        reader.ask()
        while not reader.offset:  # until it has received the record that ``checked`` has sent
            select.select([reader.sock], [], [], WAIT_S)
            reader.receive()
    first = readers[0].offset if readers else 0
    sockets = connected(bootstrap, connections)
    load = Paced(sockets, frame, rate, int(rate * (seconds + warm_up)))
    arrived: list[float] = []
    while not load.is_done:
        load.send_due()
        for sock in select.select([*sockets, *(reader.sock for reader in readers)], [], [], load.pause_s())[0]:
            if sock in sockets:
                load.receive(sock)
                continue
            known = readers[0].offset - first
            readers[0].receive()
            now = time.perf_counter()
            arrived += [now - due for due in load.sent[known : readers[0].offset - first]]
    skipped = int(rate * warm_up)
    found = {"requests": len(load.times) - skipped, "seconds": seconds, **percentiles_ms(load.times[skipped:])}
    return found | (percentiles_ms(arrived[skipped:], "end to end ") if readers else {})


def read(bootstrap: str, topic: str, connections: int, records: int) -> Any:
    """Read a topic from its beginning with each connection, until it has this many records. Returns the bytes, and the
    seconds since the first records. Raises SystemExit if no record arrives for ``WAIT_S``."""
    poll, by_number = select.epoll(), {}
    for sock in connected(bootstrap, connections):
        reader = by_number[sock.fileno()] = Tail(sock, topic, 0)
        poll.register(sock.fileno(), select.EPOLLIN)
        reader.ask()
    print("begun", flush=True)
    left, first, now = {*by_number}, 0.0, 0.0
    while left:
        ready = poll.poll(WAIT_S)
        if not ready:
            raise SystemExit(f"{len(left)} readers wait for records")
        for number, _ in ready:
            if by_number[number].receive():
                now = time.perf_counter()
                first = first or now
            if by_number[number].offset >= records and number in left:
                left.discard(number)
                poll.unregister(number)
    return {"bytes": sum(each.record_bytes for each in by_number.values()), "seconds": now - first}


def idle(bootstrap: str, connections: int) -> Any:
    """Open connections, send one request on each, and keep them until a line arrives on standard input. Returns the
    number of connections. Raises SystemExit if the broker closes one."""
    frame = framed(MetadataRequest(topics=[]), METADATA_VERSION)
    sockets = connected(bootstrap, connections)
    for sock in sockets:
        sock.setblocking(True)
        sock.sendall(frame)
        if not sock.recv(1 << 16):
            raise SystemExit("the broker has closed a connection")
    print("begun", flush=True)
    sys.stdin.readline()
    return {"connections": len(sockets)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("produce", "paced", "read", "idle"))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--acks", type=int, default=-1)
    given = parser.parse_args(words)
    where = (given.bootstrap, given.topic, given.connections)
    done: Any
    if given.work == "produce":
        done = produce(*where, given.seconds, given.warm_up, given.acks)
    elif given.work == "paced":
        done = paced(*where, given.seconds, given.rate, given.acks, given.warm_up)
    elif given.work == "read":
        done = read(*where, given.records)
    else:
        done = idle(given.bootstrap, given.connections)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
