"""The calls of etcd's gRPC API that the backend makes."""

from __future__ import annotations

from typing import Generic, TypeVar

from google.protobuf.message import Message

from parley.consensus.etcd import etcd_pb2 as pb
from parley.light_dataclasses import dataclass

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """A gRPC call: its path, and the types of its request and its response."""

    path: str
    request: type[RequestT]
    response: type[ResponseT]


TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)
