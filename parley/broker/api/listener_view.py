"""The cluster as it looks to a client from the listener it came in by: who is alive, and can be reached from there."""

from __future__ import annotations

from collections.abc import Callable

from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode


class Vantage:
    """What one listener shows of an image."""

    def __init__(
        self,
        image: MetadataImage,
        listener: str,
        *,
        without_listener: ErrorCode = ErrorCode.LISTENER_NOT_FOUND,
        lacks_log: Callable[[str, int], bool] = lambda topic, index: False,
    ) -> None:
        """``without_listener`` is what is said of a leader that has no such listener (KIP-207).

        ``lacks_log(topic, index)`` says of a partition that is led from here whether its log is not there yet.
        """
        alive = image.live_brokers()
        self._alive = {broker.broker_id for broker in alive}
        self._within_reach = {broker.broker_id for broker in alive if broker.endpoint(listener) is not None}
        self._without_listener = without_listener
        self._lacks_log = lacks_log
        self._controller = image.controller_id

    @property
    def controller_id(self) -> int:
        """The controller; or while that cannot be reached any broker that can, since each hands on what is for it."""
        if self._controller in self._within_reach:
            return self._controller
        return min(self._within_reach, default=-1)

    def leader(self, topic: str, index: int, state: PartitionState) -> tuple[int, ErrorCode]:
        """The leader that a client can use; or -1, and why there is none."""
        if self._lacks_log(topic, index):
            return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
        if state.leader in self._within_reach:
            return state.leader, ErrorCode.NONE
        return NO_LEADER, self._without_listener if state.leader in self._alive else ErrorCode.LEADER_NOT_AVAILABLE

    def offline(self, state: PartitionState) -> list[int]:
        """The replicas that are down, or out of reach."""
        return [broker for broker in state.replicas if broker not in self._within_reach]
