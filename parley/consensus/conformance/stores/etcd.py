"""The conformance harness for etcd, with any server."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from parley.consensus.conformance.stores.proxied import LossyTap, NextWrite, Proxied, ProxiedHarness
from parley.consensus.etcd import EtcdBackend
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.address import DEFAULT_PREFIX, Address, parse, read_secrets
from parley.consensus.etcd.connection import Connection
from parley.consensus.etcd.grpc_methods import TXN

_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_DATA, _HEADERS = 0, 1


class _EtcdTap(LossyTap):
    def __init__(self, write: NextWrite) -> None:
        super().__init__(write)
        self._sent = _Frames(_PREFACE)
        self._answered = _Frames(0)
        self._lost_stream: int | None = None

    def to_server(self, data: bytes) -> bytes | None:
        for kind, stream, body in self._sent.feed(data):
            if self.write.lose is not None and kind == _DATA and _is_write(body):
                if not self.write.take():
                    return None
                self._lost_stream = stream
        return data

    def to_client(self, data: bytes) -> bytes | None:
        for kind, stream, _ in self._answered.feed(data):
            if kind == _HEADERS and stream == self._lost_stream:
                return None
        return data


class _ProxiedEtcd(Proxied, EtcdBackend):
    """A client that goes through the proxies of the harness."""


class EtcdHarness(ProxiedHarness):
    """A store below a new prefix of a running etcd."""

    proxied = _ProxiedEtcd
    tap = _EtcdTap

    @property
    def backend(self) -> str:
        return "parley.consensus.etcd:EtcdBackend"

    @property
    def address(self) -> Address:
        """The address of the check's store."""
        return parse(self.url, {})

    def path_for(self, path: str, name: str) -> str:
        return f"{path or DEFAULT_PREFIX}-conformance/{name}"

    def endpoints(self) -> Iterable[str]:
        return self.address.endpoints

    async def delete(self) -> None:
        address = self.address
        connection = Connection(
            address, read_secrets(address), random.Random(0), on_up=lambda: None, on_down=lambda: None
        )
        start, end = address.prefix.encode() + b"/", address.prefix.encode() + b"0"
        delete = pb.DeleteRangeRequest(key=start, range_end=end)
        try:
            request = pb.TxnRequest(success=[pb.RequestOp(request_delete_range=delete)])
            await connection.call(TXN, request, writes=False)
        finally:
            await connection.close()


class _Frames:
    """Splits one direction of a connection into HTTP/2 frames."""

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the type, stream and payload of each frame that these bytes complete."""
        self._rest += data
        if self._skip:
            skipped, self._rest = min(self._skip, len(self._rest)), self._rest[self._skip :]
            self._skip -= skipped
        while len(self._rest) >= 9 and len(self._rest) >= (end := 9 + int.from_bytes(self._rest[:3], "big")):
            frame, self._rest = self._rest[:end], self._rest[end:]
            yield frame[3], int.from_bytes(frame[5:9], "big") & 0x7FFFFFFF, frame[9:]


def _is_write(payload: bytes) -> bool:
    """Return True if the payload of a DATA frame is a whole transaction that writes."""
    try:
        request = pb.TxnRequest.FromString(payload[5:])
    except DecodeError:
        return False
    return any(op.WhichOneof("request") in ("request_put", "request_delete_range") for op in request.success)
