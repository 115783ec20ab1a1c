"""The load of clients on secured listeners: handshakes, logins, requests, and a thousand simultaneous handshakes.

Run it as ``python -m bench.secured_load handshakes|logins|metadata|storm ...``. It prints a JSON object. Only the
brokers' CPU time counts, so the client may be slow, but it must send the same requests to each broker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from parley.protocol.client import Client
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.security.client_security import client_security

API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""An ApiVersions request of version 0 without a client id."""
AT_ONCE = 8
"""The number of clients that connect or log in at the same time."""
WAIT_S = 60.0


def trusting(authority: str) -> ssl.SSLContext:
    """Return the TLS context of clients, which use TLS 1.3."""
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def round_trip(sock: socket.socket) -> None:
    """Send ApiVersions and read the response. With TLS 1.3, the tickets for later sessions arrive before
    the response."""
    sock.sendall(API_VERSIONS)
    size = int.from_bytes(_exactly(sock, 4))
    _exactly(sock, size)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise SystemExit("the broker has closed the connection")
        data += piece
    return data


def handshakes(address: tuple[str, int], count: int, authority: str, *, resume: bool) -> Any:
    """Connect ``count`` times, and each time send a request and disconnect. With ``resume``, resume an earlier TLS
    session. Returns the numbers of connections and of resumed sessions, and the seconds."""
    context = trusting(authority)

    def some(number: int) -> int:
        session, resumed = None, 0
        for _ in range(number):
            with (
                socket.create_connection(address, WAIT_S) as raw,
                context.wrap_socket(raw, server_hostname=address[0], session=session) as sock,
            ):
                round_trip(sock)
                resumed += bool(sock.session_reused)
                if resume:
                    session = sock.session
        return resumed

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        resumed = sum(threads.map(some, [count // AT_ONCE] * AT_ONCE))
    return {"count": count // AT_ONCE * AT_ONCE, "resumed": resumed, "seconds": time.perf_counter() - began}


async def logins(bootstrap: str, count: int, properties: dict[str, str]) -> Any:
    """Connect and log in ``count`` times, and disconnect each time. Returns the number of logins, and the seconds."""
    security = client_security(properties)

    async def some() -> None:
        for _ in range(count // AT_ONCE):
            async with Client(bootstrap, security=security, timeout=WAIT_S):
                pass

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return {"count": count // AT_ONCE * AT_ONCE, "seconds": time.perf_counter() - began}


async def metadata(bootstrap: str, count: int, topics: list[str], properties: dict[str, str]) -> Any:
    """Request the metadata of these topics, or of all topics if none are given, ``count`` times. Returns the number of
    requests, the number of topics in a response, and the seconds."""
    security, known = client_security(properties), 0
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics] or None

    async def some() -> None:
        nonlocal known
        async with Client(bootstrap, security=security, timeout=WAIT_S) as client:
            for _ in range(count // AT_ONCE):
                response = await client.send(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
                known = sum(not topic.error_code for topic in response.topics)

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return {"count": count // AT_ONCE * AT_ONCE, "topics": known, "seconds": time.perf_counter() - began}


class _Handshake:
    """A TLS handshake without I/O; the caller sends and receives its bytes."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection(address, WAIT_S)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=address[0])
        self.advance()

    def advance(self) -> bool:
        """Advance by one step. Returns True if the handshake is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def send(self) -> None:
        self.sock.sendall(self._outgoing.read())

    def receive(self) -> bool:
        """Process received bytes and respond. Returns True if the handshake is complete. Raises SystemExit if the
        broker closes the connection."""
        data = self.sock.recv(16_384)
        if not data:
            raise SystemExit("the broker has refused a handshake")
        self._incoming.write(data)
        is_done = self.advance()
        self.send()
        return is_done


def storm(address: tuple[str, int], count: int, authority: str) -> Any:
    """Open ``count`` connections. When a line arrives on standard input, start the handshakes of all of them
    simultaneously. Returns the count, and the seconds until all are complete."""
    context = trusting(authority)
    waiting = selectors.DefaultSelector()
    clients = [_Handshake(address, context) for _ in range(count)]
    print("connected", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for client in clients:
        client.send()
        waiting.register(client.sock, selectors.EVENT_READ, client)
    left = count
    while left:
        for key, _ in waiting.select(WAIT_S):
            if key.data.receive():
                waiting.unregister(key.fileobj)
                left -= 1
    return {"count": count, "seconds": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("handshakes", "logins", "metadata", "storm"))
    parser.add_argument("bootstrap")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--authority", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--topic", action="append", default=[])
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    properties = dict(pair.split("=", 1) for pair in given.property)
    host, _, port = given.bootstrap.rpartition(":")
    address = (host, int(port))
    done: Any
    if given.work == "handshakes":
        done = handshakes(address, given.count, given.authority, resume=given.resume)
    elif given.work == "storm":
        done = storm(address, given.count, given.authority)
    elif given.work == "logins":
        done = asyncio.run(logins(given.bootstrap, given.count, properties))
    else:
        done = asyncio.run(metadata(given.bootstrap, given.count, given.topic, properties))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
