"""DescribeBackgroundWork: the background work of a broker: compaction, verification, healing, recovery of logs.

It is not an API of Apache Kafka: its key lies far above Kafka's. The console uses it.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64

COMPACTION, VERIFICATION, HEALING, RECOVERY = "compaction", "verification", "healing", "recovery"
"""The kinds of work. The unit of progress is bytes; for healing it is damaged ranges, for recovery logs."""


class DescribeBackgroundWorkRequest(Request, key=1006, versions="0", flexible="0+"):
    """Request the background work of the receiving broker. The controller also reports the recovery of brokers that are
    starting and do not serve clients yet."""


class DescribeBackgroundWorkResponse(Response, key=1006, versions="0", flexible="0+"):
    """The background work in progress: that of the receiving broker, and the recoveries that the controller reports."""

    class Work(Struct):
        """One piece of work, and its progress."""

        kind: str  # one of the kinds above
        broker_id: i32
        topic: str | None  # None if the work concerns more than one log
        partition_index: i32
        log_dir: str | None  # None if the work concerns all log directories
        done: i64
        total: i64
        elapsed_ms: i64  # from the start of the work to the time at which ``done`` was measured
        detail: str = ""  # for humans

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    works: list[Work] = field("0+", default=[])
