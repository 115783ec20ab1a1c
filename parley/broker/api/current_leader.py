"""Who leads a partition now: what produce and fetch answers tell a client that asked the wrong broker (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode

E = TypeVar("E")

MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""The errors that come with the current leader."""


def current_leader(image: MetadataImage, topic: str, index: int) -> tuple[int, int]:
    """The leader and leader epoch of a partition, (-1, -1) where none is known."""
    state = image.partition(topic, index)
    return (-1, -1) if state is None else (state.leader, state.leader_epoch)


def endpoints_of(image: MetadataImage, leaders: Iterable[int], listener: str, make: Callable[..., E]) -> list[E]:
    """Where the brokers among ``leaders`` are reached on the listener the client uses, as ``make`` writes it."""
    found = []
    for broker_id in sorted(set(leaders)):
        broker = image.brokers.get(broker_id)
        endpoint = broker.endpoint(listener) if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append(make(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack))
    return found
