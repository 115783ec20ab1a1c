"""MigrateCoordination: moves a running Parley cluster from one coordination store to another.

It is not an API of Apache Kafka: its key lies far above Kafka's.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, i8, i16, i32

START, STATUS, ABORT = 0, 1, 2
"""The possible actions."""


class MigrateCoordinationRequest(Request, key=1001, versions="0", flexible="0+"):
    """Start a move, query the state of the latest move, or cancel the move in progress."""

    action: i8
    url: str | None = None  # of the store to move to; for START only


class MigrateCoordinationResponse(Response, key=1001, versions="0", flexible="0+"):
    """The state of the latest move.

    Errors: NOT_CONTROLLER, COORDINATOR_NOT_AVAILABLE (the store does not respond), INVALID_REQUEST (START: a bad
    address, or a move is already in progress; ABORT: no move is in progress).
    """

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    move: str = ""  # its id
    state: str = ""  # none, in progress, done, failed
    step: str = ""
    detail: str = ""  # for humans
    store: str = ""  # the address of the current store, as the controller knows it
