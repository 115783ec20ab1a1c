"""The calls of etcd's API by their names, and what an error says about the fate of what was asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import Message

from parley.consensus.errors import (
    CoordinationError,
    LimitExceeded,
    SessionLost,
    Unauthorized,
    Unsupported,
)
from parley.consensus.etcd import etcd_pb2 as pb

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A call: its path, what is sent and what is answered."""

    path: str
    request: type[Q]
    answer: type[A]


TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class Compacted(Exception):  # for watches and snapshots: never seen outside this package
    """What was asked for is older than what etcd still keeps."""


class AnswerTooLarge(Exception):  # likewise
    """The answer is more than this client takes at once: ask for less."""


class Fate(Enum):
    """What is known of a request that failed."""

    NOT_APPLIED = "not applied"
    """It may be sent again."""
    UNKNOWN = "unknown"
    """A write may have been applied, now or even later."""
    FINAL = "final"
    """Not applied, and sending it again does not help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed.

    :ivar error: what to raise where the fate is FINAL.
    :ivar distrust: whether another server, or another connection, may do better.
    """

    fate: Fate
    text: str
    error: Exception | None = None
    distrust: bool = False


# By the beginning of the details, whatever the code: etcd's texts are the same in all versions, its codes are not.
_NOT_APPLIED = (
    "failed to connect to all addresses",  # gRPC's own
    "empty address list",
    "etcdserver: no leader",  # refused by the member we asked, because we require one
    "etcdserver: too many requests",
)
_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_UNAUTHORIZED = (
    "etcdserver: permission denied",
    "etcdserver: user name is empty",
    "etcdserver: authentication failed",
    "etcdserver: user name not found",
)
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_DISTRUST = ("etcdserver: no leader", "etcdserver: request timed out", "etcdserver: server stopped")


def judge(code: grpc.StatusCode, details: str) -> Failure:
    """What an error of gRPC's or etcd's means."""
    text = f"etcd: {details or code.name}"
    distrust = code in _BROKEN or details.startswith(_DISTRUST)
    if details.startswith(_NOT_APPLIED):
        return Failure(Fate.NOT_APPLIED, text, distrust=distrust)
    if details.startswith(_TOKEN):
        return Failure(Fate.NOT_APPLIED, text, distrust=True)  # another connection begins with another token
    if error := _final(code, details, text):
        return Failure(Fate.FINAL, text, error)
    if "database space exceeded" in details:
        text += "; compact and defragment it, raise --quota-backend-bytes, then run `etcdctl alarm disarm`"
    return Failure(Fate.UNKNOWN, text, distrust=distrust)


def _final(code: grpc.StatusCode, details: str, text: str) -> Exception | None:
    error: type[CoordinationError] | type[Compacted] | type[AnswerTooLarge]
    lowered = details.lower()
    if details.startswith(_UNAUTHORIZED) or code in (
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    ):
        error = Unauthorized
    elif "requested lease not found" in lowered:
        error = SessionLost
    elif "required revision has been compacted" in lowered:
        error = Compacted
    elif "received message larger than max" in lowered and not lowered.startswith("grpc:"):
        error = AnswerTooLarge  # said by our side; the server's own begins with "grpc:"
    elif any(said in lowered for said in ("larger than max", "request is too large", "too many operations")):
        error = LimitExceeded
        text += "; its --max-request-bytes and --max-txn-ops must not be below the defaults"
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        error = Unsupported
    else:
        return None
    return error(text)
