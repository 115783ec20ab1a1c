"""etcd: peers are processes; faults are made by a proxy before each client.

Against a server that runs already, each check has a prefix of its own, which is deleted at the end. Its data cannot be
wiped nor the server restarted from here: the prefix is deleted and all connections are broken instead.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit, urlunsplit

from google.protobuf.message import DecodeError

from consensus.backend import Backend
from consensus.conformance.processes import ProcessHarness
from consensus.conformance.proxy import Proxy, Tap
from consensus.etcd import EtcdBackend
from consensus.etcd import etcd_pb2 as pb
from consensus.etcd.address import Address, parse, read_secrets
from consensus.etcd.calls import TXN
from consensus.etcd.connection import Connection

_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_DATA, _HEADERS = 0, 1


class EtcdHarness(ProcessHarness):
    """A store below a new prefix of an etcd that runs already.

    :param url: its address; not with TLS, which the proxies could not look into.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._base = url
        self._prefix = ""
        self._proxies: dict[Backend, list[_EtcdProxy]] = {}

    @property
    def url(self) -> str:
        return self._at(urlsplit(self._base).netloc)

    @property
    def backend(self) -> str:
        return "consensus.etcd:EtcdBackend"

    @property
    def address(self) -> Address:
        """Where the store of the check is."""
        return parse(self.url, {})

    async def start(self) -> None:
        await super().start()
        self._prefix = f"{parse(self._base, {}).prefix}-conformance/{secrets.token_hex(8)}"

    async def stop(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                await proxy.close()
        self._proxies.clear()
        await self._delete_everything()
        await super().stop()

    def client(self) -> Backend:
        endpoints = [endpoint.rpartition(":") for endpoint in self.address.endpoints]
        proxies = [_EtcdProxy(host.strip("[]"), int(port)) for host, _, port in endpoints]
        client = _ProxiedBackend.from_url(self._at(",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)))
        client.proxies = self._proxies[client] = proxies
        return client

    async def cut(self, client: Backend) -> None:
        for proxy in self._proxies[client]:
            proxy.cut()

    async def restore(self, client: Backend) -> None:
        for proxy in self._proxies[client]:
            proxy.restore()

    async def lose_answer(self, client: Backend, *, applied: bool) -> None:
        for proxy in self._proxies[client]:
            proxy.lose = applied

    async def wipe(self) -> None:
        await self._delete_everything()

    async def restart(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.break_all()

    def _at(self, hosts: str) -> str:
        return urlunsplit(("etcd", hosts, self._prefix, urlsplit(self._base).query, ""))

    async def _delete_everything(self) -> None:
        connection = Connection(
            self.address, read_secrets(self.address), random.Random(0), on_up=lambda: None, on_down=lambda: None
        )
        start, end = self._prefix.encode() + b"/", self._prefix.encode() + b"0"
        delete = pb.DeleteRangeRequest(key=start, range_end=end)
        try:
            request = pb.TxnRequest(success=[pb.RequestOp(request_delete_range=delete)])
            await connection.call(TXN, request, writes=False)
        finally:
            await connection.close()


class _ProxiedBackend(EtcdBackend):
    """A client that takes its proxies with it when it is closed."""

    proxies: Sequence[Proxy] = ()

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies:
            await proxy.close()


class _EtcdProxy(Proxy):
    """A proxy that knows a write when it sees one.

    :ivar lose: break the connection at the next write: True: after etcd answered it, False: before etcd got it.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, lambda: _EtcdTap(self))
        self.lose: bool | None = None


class _EtcdTap(Tap):
    def __init__(self, proxy: _EtcdProxy) -> None:
        self._proxy = proxy
        self._sent = _Frames(_PREFACE)
        self._answered = _Frames(0)
        self._lost_stream: int | None = None

    def to_server(self, data: bytes) -> bytes | None:
        for kind, stream, body in self._sent.feed(data):
            if self._proxy.lose is not None and kind == _DATA and _is_write(body):
                applied, self._proxy.lose = self._proxy.lose, None
                if not applied:
                    return None
                self._lost_stream = stream
        return data

    def to_client(self, data: bytes) -> bytes | None:
        for kind, stream, _ in self._answered.feed(data):
            if kind == _HEADERS and stream == self._lost_stream:
                return None
        return data


class _Frames:
    """Finds the frames of HTTP/2 in one direction of a connection."""

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The frames that are complete with these bytes: type, stream and payload."""
        self._rest += data
        if self._skip:
            skipped, self._rest = min(self._skip, len(self._rest)), self._rest[self._skip :]
            self._skip -= skipped
        while len(self._rest) >= 9 and len(self._rest) >= (end := 9 + int.from_bytes(self._rest[:3], "big")):
            frame, self._rest = self._rest[:end], self._rest[end:]
            yield frame[3], int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF, frame[9:]


def _is_write(payload: bytes) -> bool:
    """Whether a frame of DATA is a whole transaction that writes."""
    try:
        request = pb.TxnRequest.FromString(payload[5:])
    except DecodeError:
        return False
    return any(op.WhichOneof("request") in ("request_put", "request_delete_range") for op in request.success)
