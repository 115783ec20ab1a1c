"""ControlledShutdown: a broker that is about to stop asks the controller to move its leaders."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class ControlledShutdownRequest(Request, key=7, versions="1-3", flexible="3+"):
    """Ask the controller to move leaders away from a broker. Version 0, of Kafka 0.8, had a different header.

    Versions:
        2: broker_epoch, so that a late request does not stop a broker that has started again (KIP-380).
        3: flexible encoding (KIP-482).
    """

    broker_id: i32
    broker_epoch: i64 = field("2+", default=-1, ignorable=True)  # -1: unknown


class ControlledShutdownResponse(Response, key=7, versions="1-3", flexible="3+"):
    """The partitions that will have no leader when the broker stops.

    Versions:
        2: same layout; STALE_BROKER_EPOCH may occur (KIP-380).
        3: flexible encoding (KIP-482).
    """

    class RemainingPartition(Struct):
        """A partition that no other broker can lead."""

        topic_name: str
        partition_index: i32

    error_code: i16 = 0
    remaining_partitions: list[RemainingPartition]
