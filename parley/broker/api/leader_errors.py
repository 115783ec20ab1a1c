"""Errors for clients of a broker that does not lead a partition, or may no longer lead it.

1. NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH name the current leader and its address (KIP-951).
2. A leader that may have been superseded without knowing withholds errors that only the current leader may return. It
   returns NOT_LEADER_OR_FOLLOWER instead, so that the client refreshes its metadata and asks the current leader. The
   reasons are in docs/architecture.md, "A leader that may have been superseded".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError

E = TypeVar("E")

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors whose responses contain the current leader."""

MayBeSuperseded: TypeAlias = Callable[[], bool]
"""Returns True if another broker may have become leader without this broker knowing."""


def never_superseded() -> bool:
    """Return False: the ``MayBeSuperseded`` of a broker without peers that could replace it."""
    return False


def withheld(error: KafkaError) -> KafkaError:
    """Return the error that a possibly superseded leader sends instead of ``error``: NOT_LEADER_OR_FOLLOWER, with
    ``error`` in its message."""
    return KafkaError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"This broker has lost contact with the controller and may no longer be the leader. If it still is: {error}",
    )


def current_leader(image: MetadataImage, topic: str, index: int) -> tuple[int, int]:
    """Return the leader (-1 if there is none) and the leader epoch of a partition; (-1, -1) if the partition is
    unknown."""
    state = image.partition(topic, index)
    return (-1, -1) if state is None else (state.leader, state.leader_epoch)


def endpoints_of(image: MetadataImage, leaders: Iterable[int], listener: str, make: Callable[..., E]) -> list[E]:
    """Return the addresses of ``leaders`` on the client's listener, each built by ``make``. Brokers that are unknown or
    do not have this listener are omitted."""
    found = []
    for broker_id in sorted(set(leaders)):
        broker = image.brokers.get(broker_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append(make(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return found
