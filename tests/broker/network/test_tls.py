"""TLS on a listener: handshakes, principals of certificates, and clients that break the protocol."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from parley.broker.network.connection import LOGIN_USUAL_S
from parley.broker.network.listener import Listener
from parley.broker.network.tls_channel import _STEPS, HANDSHAKE_BYTES_MAX, TlsState
from parley.broker.security.tls.principal_mapping import PrincipalMapping
from parley.broker.security.tls.server import ServerTls
from parley.configuration.tls import tls_settings
from parley.protocol.codec import request_frame
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.network.harness import RawClient, Unchanged, eventually, serving
from tests.support.certificates import Authority

METADATA = MetadataRequest(topics=[])


@dataclass(frozen=True)
class Tls(Unchanged):
    """The security of a listener with TLS and without SASL."""

    tls: ServerTls
    login_rules: None = None


@cache
def authority() -> Authority:
    return Authority()


@contextmanager
def files(name: str, *, issuer: Authority | None = None) -> Iterator[dict[str, str]]:
    """The properties of a party with a certificate, which trusts the test's authority."""
    with TemporaryDirectory() as folder:
        own = (issuer or authority()).issue(name, "localhost", "127.0.0.1").write_pem(Path(folder, "own.pem"))
        trusted = authority().write(Path(folder, "trusted.pem"))
        yield {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
        }


@cache
def tls(client_auth: str = "none", rules: str = "DEFAULT", **more: str) -> Tls:
    with files("CN=broker") as properties:
        settings = tls_settings({**properties, **{name.replace("_", "."): value for name, value in more.items()}})
        return Tls(ServerTls(settings.server_context(client_auth), PrincipalMapping(rules), settings))


@cache
def client_context(name: str = "", *, foreign: bool = False) -> ssl.SSLContext:
    """Return the context of a client, with a certificate if it has a name; ``foreign``: of an unknown authority."""
    with files(name or "none", issuer=Authority("foreign") if foreign else None) as properties:
        if not name:
            del properties["ssl.keystore.location"]
        return tls_settings(properties).client_context()


@asynccontextmanager
async def connected(listener: Listener, context: ssl.SSLContext) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=context)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        await client.close()


class Asked:
    """A handler of Metadata that notes the principals of its clients, and returns ``size`` bytes."""

    def __init__(self, size: int = 0) -> None:
        self.principals: list[str] = []
        self.size = size

    def __call__(self, context: Any, request: Any) -> MetadataResponse:
        self.principals.append(str(context.principal))
        return MetadataResponse(brokers=[], topics=[], cluster_id="x" * self.size)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_and_responses_of_every_size_pass(version: ssl.TLSVersion) -> None:
    asked = Asked()
    context = client_context()
    context.minimum_version = context.maximum_version = version
    try:
        async with serving({3: asked}, security=tls()) as listener, connected(listener, context) as client:
            assert client.writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
            for size in (0, 1, 5_000, 16_384, 30_000):
                asked.size = size
                client.client_id = "c" * size
                answer = await client.ask(METADATA, 8)
                assert len(answer.cluster_id) == size
            assert asked.principals == ["User:ANONYMOUS"] * 5
            assert listener.metrics.authentications == 1
    finally:
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


async def test_pipelined_requests_get_their_responses_in_order() -> None:
    async with serving({3: Asked()}, security=tls()) as listener, connected(listener, client_context()) as client:
        for each in range(300):
            await client.send(METADATA, 8, each)
        for each in range(300):
            assert (await client.answer(MetadataRequest, 8))[0] == each


@pytest.mark.parametrize("auth", ["required", "requested"])
async def test_a_certificate_is_the_principal(auth: str) -> None:
    asked = Asked()
    context = client_context("CN=alice,OU=ops")
    async with serving({3: asked}, security=tls(auth)) as listener, connected(listener, context) as client:
        await client.ask(METADATA, 8)
    assert asked.principals == ["User:CN=alice,OU=ops"]


async def test_mapping_rules_name_the_principal_or_refuse_the_client() -> None:
    asked = Asked()
    security = tls("required", "RULE:^CN=([a-z]+),OU=ops$/$1/U")
    async with serving({3: asked}, security=security) as listener:
        async with connected(listener, client_context("CN=alice,OU=ops")) as client:
            await client.ask(METADATA, 8)
        assert asked.principals == ["User:ALICE"]
        await refused(listener, client_context("CN=alice,OU=dev"))


async def refused(listener: Listener, context: ssl.SSLContext) -> None:
    """Connect, and expect that the broker closes the connection; in TLS 1.3 the client notices after its handshake."""
    before = listener.metrics.failed_authentications
    try:
        async with connected(listener, context) as client:
            with pytest.raises((OSError, EOFError)):
                await client.ask(METADATA, 8)
    except OSError:
        pass
    await eventually(lambda: listener.metrics.failed_authentications == before + 1)
    await eventually(lambda: len(listener) == 0)


async def test_a_client_without_a_certificate_is_refused_if_one_is_required() -> None:
    async with serving({3: Asked()}, security=tls("required")) as listener:
        await refused(listener, client_context())
    lenient = tls("requested")
    async with serving({3: Asked()}, security=lenient) as listener, connected(listener, client_context()) as client:
        await client.ask(METADATA, 8)


@pytest.mark.parametrize("auth", ["required", "requested"])
async def test_a_foreign_certificate_is_refused(auth: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving({3: Asked()}, security=tls(auth)) as listener:
        await refused(listener, client_context("CN=alice", foreign=True))
    (record,) = [each for each in caplog.records if each.message == "authentication failed"]
    assert "certificate was rejected" in record.__dict__["reason"]


async def test_a_client_without_tls_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({3: Asked()}, security=tls()) as listener:
        client = await RawClient.connect(listener)
        await client.send(METADATA, 8)
        assert (await client.reader.read())[:1] in (b"", b"\x15")  # nothing, or an alert
        assert listener.metrics.failed_authentications == 1
    assert "authentication failed" in caplog.text


async def test_a_silent_client_is_disconnected() -> None:
    async with serving({}, security=tls(), login_s=0.05) as listener:
        client = await RawClient.connect(listener)
        assert await client.is_closed()
        assert listener.metrics.failed_authentications == 1


async def test_slow_handshakes_make_room_first() -> None:
    clock = [100.0]
    running = serving({3: Asked()}, security=tls(), monotonic=lambda: clock[0])
    async with running as listener, connected(listener, client_context()) as known:
        await known.ask(METADATA, 8)
        silent = await RawClient.connect(listener)
        await eventually(lambda: len(listener) == 2)
        clock[0] += LOGIN_USUAL_S + 1
        listener.quotas.close_least_active()
        assert await silent.is_closed()
        assert listener.metrics.evicted == 1
        await known.ask(METADATA, 8)


async def test_a_channel_can_be_evicted_before_it_has_a_transport() -> None:
    async with serving({}, security=tls()) as listener:
        client = await RawClient.connect(listener)
        await eventually(lambda: bool(listener._channels))
        listener.quotas.close_least_active()
        listener.quotas.close_least_active()
        assert await client.is_closed()
        await eventually(lambda: len(listener) == 0)


async def test_a_probe_of_the_port_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({}, security=tls()) as listener:
        probe = await RawClient.connect(listener)
        await probe.close()
        await eventually(lambda: listener.metrics.accepted == 1 and len(listener) == 0)
        assert listener.metrics.failed_authentications == 0
        breaking = await RawClient.connect(listener)
        breaking.writer.write(hello()[:20])
        await breaking.writer.drain()
        await breaking.close()
        await eventually(lambda: listener.metrics.failed_authentications == 1)
    (record,) = caplog.records
    assert record.message == "authentication failed"
    assert "may not trust the certificate" in record.__dict__["reason"]


async def test_a_client_that_sends_too_much_in_its_handshake_is_disconnected() -> None:
    """A handshake record that claims more follows, again and again."""
    async with serving({}, security=tls()) as listener:
        client = await RawClient.connect(listener)
        client.writer.write((b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(16379)) * (HANDSHAKE_BYTES_MAX >> 13))
        with suppress(OSError):
            await client.reader.read()
        await eventually(lambda: len(listener) == 0)


async def test_a_stop_ends_handshakes() -> None:
    async with serving({}, security=tls()) as listener:
        client = await RawClient.connect(listener)
        await eventually(lambda: len(listener) == 1)
        await listener.close(1)
        assert await client.is_closed()
        assert len(listener) == 0


def hello() -> bytes:
    """Return the first flight of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def mutations(random: Random, of: bytes) -> Iterator[bytes]:
    """Yield the same bytes cut off, with changed bytes, with a piece repeated; and bytes that are all random."""
    for _ in range(15):
        yield of[: random.randrange(len(of))]
        changed = bytearray(of)
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(of))] = random.randrange(256)
        yield bytes(changed)
        start = random.randrange(len(of))
        yield of[:start] + of[start : start + random.randrange(100)] + of[start:]
        yield random.randbytes(random.randrange(200))


async def test_bytes_that_are_no_handshake_end_the_connection_and_nothing_else() -> None:
    async with serving({3: Asked()}, security=tls("requested")) as listener:
        for each in mutations(Random(1), hello()):
            client = await RawClient.connect(listener)
            client.writer.write(each)
            if client.writer.can_write_eof():
                client.writer.write_eof()
            await client.reader.read()
            await client.close()
        await eventually(lambda: len(listener) == 0)
        async with connected(listener, client_context()) as known:
            await known.ask(METADATA, 8)


class ManualTls:
    """A client whose TLS records the test handles itself."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None = None
    ) -> None:
        self.reader, self.writer = reader, writer
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = context or client_context()
        self.tls = own.wrap_bio(self._incoming, self.outgoing, server_hostname="localhost")

    async def until(self, step: Callable[[], Any], *, piece: int = 65536, holds_last: bool = False) -> Any:
        """Repeat ``step`` until it needs nothing more of the broker; send in pieces of this size.

        With ``holds_last``, what the last step has to send stays in ``outgoing``.
        """
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._send(piece)
                self._incoming.write(await self.reader.read(65536))
            else:
                if not holds_last:
                    await self._send(piece)
                return done

    async def _send(self, piece: int) -> None:
        data = self.outgoing.read()
        for start in range(0, len(data), piece):
            self.writer.write(data[start : start + piece])
            await self.writer.drain()


@asynccontextmanager
async def by_hand(listener: Listener, context: ssl.SSLContext | None = None) -> AsyncIterator[ManualTls]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    yield ManualTls(reader, writer, context)
    writer.close()


async def test_bytes_after_the_handshake_that_are_no_records_end_the_connection() -> None:
    async with serving({3: Asked()}, security=tls()) as listener:
        for each in list(mutations(Random(2), hello()))[:20]:
            async with by_hand(listener) as client:
                await client.until(client.tls.do_handshake)
                client.writer.write(each)
                client.writer.write_eof()
                with suppress(OSError):
                    while await client.reader.read(65536):
                        pass
        await eventually(lambda: len(listener) == 0)
        async with connected(listener, client_context()) as known:
            await known.ask(METADATA, 8)


async def test_a_handshake_can_arrive_byte_by_byte() -> None:
    async with serving({3: Asked()}, security=tls()) as listener, by_hand(listener) as client:
        await client.until(client.tls.do_handshake, piece=1)
        client.tls.write(b"".join(request_frame(METADATA, 8, 7, None)))
        received = await client.until(lambda: client.tls.read(65536), piece=1)
        assert received[4:8] == b"\x00\x00\x00\x07"


def test_a_lost_channel_is_final() -> None:
    assert TlsState.LOST not in {state for state, _ in _STEPS}
