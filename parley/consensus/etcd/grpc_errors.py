"""Errors of gRPC and etcd: whether the failed request may have been applied, and which coordination error to raise."""

from __future__ import annotations

from enum import Enum

import grpc

from parley.consensus.errors import (
    CoordinationError,
    LimitExceeded,
    SessionLost,
    Unauthorized,
    Unsupported,
)
from parley.light_dataclasses import dataclass


class Compacted(Exception):
    """The requested revision is older than the oldest one that etcd keeps. Raised only within this package."""


class ResponseTooLarge(Exception):
    """The response is larger than this client accepts: request less. Raised only within this package."""


class Fate(Enum):
    """What is known about the outcome of a failed request."""

    NOT_APPLIED = "not applied"
    """The request was not applied and may be sent again."""
    UNKNOWN = "unknown"
    """A write may have been applied, or may still be applied later."""
    FINAL = "final"
    """The request was not applied, and repeating it does not help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request. ``error`` is the exception to raise if the fate is FINAL.

    ``retires_connection`` is True if another server, or another connection, may succeed.
    """

    fate: Fate
    text: str
    error: Exception | None = None
    retires_connection: bool = False


# Prefixes of the error details. Status codes are ignored: etcd's texts are the same in all versions, its codes are not.
_NOT_APPLIED = (
    "failed to connect to all addresses",  # from gRPC itself
    "empty address list",
    "etcdserver: no leader",  # refused by the member that got the request, because the request requires a leader
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
_RETIRING = ("etcdserver: no leader", "etcdserver: request timed out", "etcdserver: server stopped")


def classify(code: grpc.StatusCode, details: str) -> Failure:
    """Return the failure that corresponds to an error of gRPC or etcd."""
    text = f"etcd: {details or code.name}"
    retires = code in _BROKEN or details.startswith(_RETIRING)
    if details.startswith(_NOT_APPLIED):
        return Failure(Fate.NOT_APPLIED, text, retires_connection=retires)
    if details.startswith(_TOKEN):
        return Failure(Fate.NOT_APPLIED, text, retires_connection=True)  # a new connection gets a new token
    if error := _final_error(code, details, text):
        return Failure(Fate.FINAL, text, error)
    if "database space exceeded" in details:
        text += "; compact and defragment it, raise --quota-backend-bytes, then run `etcdctl alarm disarm`"
    return Failure(Fate.UNKNOWN, text, retires_connection=retires)


def _final_error(code: grpc.StatusCode, details: str, text: str) -> Exception | None:
    error: type[CoordinationError] | type[Compacted] | type[ResponseTooLarge]
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
        error = ResponseTooLarge  # from this client; the server's own message begins with "grpc:"
    elif any(words in lowered for words in ("larger than max", "request is too large", "too many operations")):
        error = LimitExceeded
        text += "; its --max-request-bytes and --max-txn-ops must not be below the defaults"
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        error = Unsupported
    else:
        return None
    return error(text)
