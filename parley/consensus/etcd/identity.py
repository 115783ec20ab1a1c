"""The identity of a store in etcd: one key below the prefix, and a probe of what the server supports and the user may
do."""

from __future__ import annotations

from collections.abc import Callable

from parley.consensus.errors import BadConfig, CoordinationError, Unsupported
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.connection import Connection
from parley.consensus.etcd.grpc_methods import TXN
from parley.consensus.etcd.key_layout import KeyLayout

_SERVER_TXN_OPS = 128


class EtcdIdentity:
    """Reads and writes the identity of a store in etcd (``parley.consensus.store_identity.IdentityStorage``)."""

    def __init__(self, connection: Connection, layout: KeyLayout, on_revision: Callable[[int], None]) -> None:
        self._connection = connection
        self._layout = layout
        self._on_revision = on_revision

    @property
    def place(self) -> str:
        return self._layout.place

    async def read_identity(self) -> str | None:
        """Return the identity, or None if there is none.

        The transaction is as large as the largest that the backend sends, and contains a delete, to find out early what
        is not permitted. Raises Unsupported if the server rejects transactions of that size, and BadConfig if there are
        keys below the prefix that do not belong to a store.
        """
        layout = self._layout
        start, end = layout.range("")
        probes = [
            pb.RequestOp(request_range=pb.RangeRequest(key=layout.identity)),
            pb.RequestOp(request_range=pb.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)),
            pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=layout.probe)),
        ]
        filler = pb.RequestOp(request_range=pb.RangeRequest(key=layout.identity, count_only=True))
        request = pb.TxnRequest(success=[*probes, *[filler] * (_SERVER_TXN_OPS - len(probes))])
        try:
            response = await self._connection.call(TXN, request, writes=False)
        except Unsupported:
            raise
        except CoordinationError as error:
            if "too many operations" in str(error):
                raise Unsupported(f"etcd's --max-txn-ops must be at least {_SERVER_TXN_OPS}") from error
            raise
        self._on_revision(response.header.revision)
        identities, others = (response.responses[n].response_range.kvs for n in (0, 1))
        if identities:
            return identities[0].value.decode("ascii", "replace")
        if others:
            raise BadConfig(f"there are keys, but no Parley store, at {self.place}; choose another prefix")
        return None

    async def initialize(self, identity: str) -> None:
        """Write the identity, unless another client has done so."""
        key = self._layout.identity
        request = pb.TxnRequest(
            compare=[pb.Compare(key=key, target=pb.Compare.VERSION, version=0)],
            success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=identity.encode("ascii")))],
        )
        await self._connection.call(TXN, request, writes=False)  # False, because the identity is read back in any case
