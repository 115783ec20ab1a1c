"""VerifyLogs: reads the logs of a broker again, and lists the damaged records in them.

It is not an API of Apache Kafka: its key lies far above Kafka's. ``parley log-dirs --verify`` uses it.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class VerifyLogsRequest(Request, key=1004, versions="0", flexible="0+"):
    """Ask the receiving broker to verify logs in the background, and to report its progress and the damage.

    The first request has ``since_ms`` -1. The client repeats the request with the ``since_ms`` of the response until no
    bytes are left to verify.
    """

    topics: list[str] | None  # None: all
    since_ms: i64 = -1  # verify what was last verified before this time, by the broker's clock; -1: now


class VerifyLogsResponse(Response, key=1004, versions="0", flexible="0+"):
    """The state of each log. A log of a failed directory is not listed."""

    class Topic(Struct):
        """The logs of one topic."""

        name: str
        partitions: list[VerifyLogsResponse.Partition]

    class Partition(Struct):
        """The log of a partition, and the damage in it."""

        partition_index: i32
        log_dir: str
        size_bytes: i64
        unverified_bytes: i64  # not verified since since_ms
        damage: list[VerifyLogsResponse.Damage]

    class Damage(Struct):
        """Records that are damaged or missing, from first_offset to last_offset."""

        first_offset: i64
        last_offset: i64
        reason: str
        has_no_copy: bool  # no other live replica has these records

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    since_ms: i64 = -1
    topics: list[Topic] = field("0+", default=[])
