"""Clients that complete the handshake honestly, and then send records with no or very little data."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from parley.broker.network.request_context import RequestContext
from parley.broker.network.tls_channel import HANDSHAKE_RECEIVE_BYTES, IDLE_RECORDS_MAX, RECEIVE_BYTES
from parley.broker.network.tls_records import RecordEnds
from parley.broker.security.tls.kernel import KeyLog, kernel_suites
from parley.broker.security.tls.principal_mapping import PrincipalMapping
from parley.broker.security.tls.server import ServerTls
from parley.configuration.tls import tls_settings
from parley.protocol.codec import request_frame
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.network.harness import eventually, serving
from tests.broker.network.test_tls import METADATA, Asked, Tls, by_hand, client_context, connected, files, tls
from tests.support.tls_records import (
    ALERT,
    HANDSHAKE,
    KEY_UPDATE,
    KEY_UPDATE_ASKS_FOR_ONE,
    HostileClient,
    hostile,
)

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
CLIENT_HELLO = b"\x01\x00\x00\x29\x03\x03" + bytes(32) + b"\x00\x00\x02\xc0\x2c\x01\x00"
NO_CERTIFICATE = b"\x01\x29"
FLOODS: dict[str, tuple[ssl.TLSVersion, Callable[[HostileClient], bytes]]] = {
    "new keys": (V13, lambda client: client.key_update()),
    "new keys of both": (V13, lambda client: client.key_update(KEY_UPDATE_ASKS_FOR_ONE)),
    "empty records": (V13, lambda client: client.record(b"")),
    "warnings": (V13, lambda client: client.record(NO_CERTIFICATE, ALERT)),
    "tickets": (V13, lambda client: client.record(b"\x04\x00\x00\x00", HANDSHAKE)),
    "empty records of TLS 1.2": (V12, lambda client: client.record(b"")),
    "warnings of TLS 1.2": (V12, lambda client: client.record(NO_CERTIFICATE, ALERT)),
    "renegotiations": (V12, lambda client: client.record(CLIENT_HELLO, HANDSHAKE)),
    "requests to renegotiate": (V12, lambda client: client.record(bytes(4), HANDSHAKE)),
}


def fresh_context() -> ssl.SSLContext:
    with files("none") as properties:
        del properties["ssl.keystore.location"]
        return tls_settings(properties).client_context()


@pytest.mark.parametrize("flood", FLOODS)
async def test_records_without_data_end_the_connection(flood: str, caplog: pytest.LogCaptureFixture) -> None:
    version, record = FLOODS[flood]
    async with serving({3: Asked()}, security=tls()) as listener:
        client = await hostile(("127.0.0.1", listener.port), fresh_context, version)
        await client.flood(b"".join(record(client) for _ in range(2 * IDLE_RECORDS_MAX)))
        assert await client.is_closed()
        await eventually(lambda: len(listener) == 0)
        assert listener.metrics.killed == 1
        client.writer.close()
        async with connected(listener, client_context()) as known:
            await known.ask(METADATA, 8)
    assert [each.message for each in caplog.records] == ["connection closed"]


@pytest.mark.parametrize("flood", ["new keys", "new keys of both"])
async def test_new_keys_do_not_fill_the_key_log(flood: str) -> None:
    """OpenSSL would log each of them, and stop the event loop as soon as the log is full."""
    with files("CN=broker") as properties:
        settings = tls_settings(properties)
    logged = settings.server_context()
    log = KeyLog(logged, kernel_suites())
    security = Tls(ServerTls(logged, PrincipalMapping("DEFAULT"), settings, key_log=log))
    async with serving({3: Asked()}, security=security) as listener:
        client = await hostile(("127.0.0.1", listener.port), fresh_context, V13)
        await client.flood(b"".join(FLOODS[flood][1](client) for _ in range(2 * IDLE_RECORDS_MAX)))
        assert await client.is_closed()
        client.writer.close()


@pytest.mark.parametrize("version", [V12, V13])
async def test_a_request_may_come_in_records_of_one_byte(version: ssl.TLSVersion) -> None:
    async with serving({3: Asked()}, security=tls()) as listener:
        client = await hostile(("127.0.0.1", listener.port), fresh_context, version)
        request = b"".join(request_frame(METADATA, 8, 7, "c" * 3 * IDLE_RECORDS_MAX))
        await client.flood(b"".join(client.record(bytes([each])) for each in request))
        assert await client.reader.readexactly(5)
        client.writer.close()


async def test_a_client_may_renew_its_keys_between_requests() -> None:
    asked = Asked()
    async with serving({3: asked}, security=tls()) as listener:
        client = await hostile(("127.0.0.1", listener.port), fresh_context, V13)
        request = b"".join(request_frame(METADATA, 8, 7, None))
        keys = IDLE_RECORDS_MAX // 2
        sent = [client.key_update() for _ in range(keys)] + [client.record(request)]
        sent += [client.key_update() for _ in range(keys)] + [client.record(request)]
        await client.flood(b"".join(sent))
        await eventually(lambda: len(asked.principals) == 2)
        client.writer.close()


@pytest.mark.parametrize("version", [V12, V13])
async def test_requests_may_follow_the_handshake_at_once(version: ssl.TLSVersion) -> None:
    """Ten times what is received at a time arrives behind the client's Finished."""
    asked, count = Asked(), 100
    context = fresh_context()
    context.maximum_version = version
    async with serving({3: asked}, security=tls()) as listener, by_hand(listener, context) as client:
        await client.until(client.tls.do_handshake, holds_last=True)
        for each in range(count):
            client.tls.write(b"".join(request_frame(METADATA, 8, each, "c" * 30_000)))
        assert client.outgoing.pending > 10 * RECEIVE_BYTES
        client.writer.write(client.outgoing.read())
        await eventually(lambda: len(asked.principals) == count)
        assert listener.metrics.failed_authentications == 0


async def test_a_response_within_a_part_of_a_message_for_new_keys_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, may_respond = asyncio.Event(), asyncio.Event()

    async def respond(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        begun.set()
        await may_respond.wait()
        return MetadataResponse(brokers=[], topics=[])

    async with serving({3: respond}, security=tls()) as listener:
        client = await hostile(("127.0.0.1", listener.port), fresh_context, V13)
        await client.flood(client.record(b"".join(request_frame(METADATA, 8, 7, None))))
        await begun.wait()
        (connection,) = listener._connections
        channel: Any = connection._transport
        await eventually(lambda: channel._idle_records == 0)
        await client.flood(client.record(KEY_UPDATE[:4], HANDSHAKE))
        await eventually(lambda: channel._idle_records == 1 and not channel._incoming.pending)
        may_respond.set()
        assert await client.is_closed()
        client.writer.close()
    assert [each.message for each in caplog.records] == ["connection closed"]
    assert "an incomplete TLS message" in caplog.records[0].__dict__["reason"]


async def test_a_handshake_keeps_little_while_a_step_of_it_waits() -> None:
    """The socket is not read any more, however much a client sends behind its first message."""
    may_shake = threading.Event()
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    async with serving({3: Asked()}, security=tls()) as listener, by_hand(listener, fresh_context()) as client:
        executor.submit(may_shake.wait)
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        hello = client.outgoing.read()
        client.writer.write(hello)
        await eventually(lambda: len(listener._channels) == 1)
        (channel,) = listener._channels
        client.writer.write(bytes(1 << 20))
        await eventually(lambda: not channel._socket_is_read)
        assert len(channel._arrived) < 2 * HANDSHAKE_RECEIVE_BYTES
        may_shake.set()
        await eventually(lambda: listener.metrics.failed_authentications == 1)


async def test_the_rest_of_a_burst_is_read_when_a_paused_client_may_go_on() -> None:
    """The connection stops reading behind each request that waits, in the middle of what has arrived."""
    count = 200
    async with serving({3: Asked(20_000)}, security=tls()) as listener, connected(listener, client_context()) as client:
        requests = (request_frame(METADATA, 8, each, "c" * 10_000) for each in range(count))
        client.writer.write(b"".join(part for each in requests for part in each))
        for each in range(count):
            assert (await client.answer(type(METADATA), 8))[0] == each


def test_ends_of_records_are_found_however_the_bytes_arrive() -> None:
    random = Random(1)
    sizes = [random.choice((0, 1, 5, 300, 2_000)) for _ in range(60)]
    stream = b"".join(b"\x17\x03\x03" + size.to_bytes(2) + bytes(size) for size in sizes)
    for largest in (1, 7, 5_000, len(stream)):
        ends, taken, counted = RecordEnds(), 0, 0
        while taken < len(stream):
            piece = memoryview(stream)[taken : taken + random.randint(1, largest)]
            most = random.randint(1, 20)
            size, ended = ends.take(piece, most)
            assert size == len(piece) or ended == most
            taken, counted = taken + size, counted + ended
            if ended == most:
                assert taken == sum(5 + each for each in sizes[:counted])
        assert counted == len(sizes)
