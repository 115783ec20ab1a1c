"""A produce request that has appended its records, and waits until enough replicas have them."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.produce import ProduceResponse

_Outcome = ProduceResponse.PartitionProduceResponse

Waiting = dict[Partition, tuple[int, _Outcome]]
"""Partition -> the last appended offset, which all in-sync replicas must have, and the outcome to complete then."""


class DelayedProduce(Delayed[ProduceResponse]):
    """A response that is sent when the ISR of every partition has the appended records, or after the timeout. The
    remaining partitions then get REQUEST_TIMED_OUT."""

    def __init__(
        self, response: ProduceResponse, waiting: Waiting, name_leaders: Callable[[ProduceResponse], None]
    ) -> None:
        super().__init__()
        self._response = response
        self._waiting = waiting
        self._name_leaders = name_leaders

    def check_all(self) -> None:
        """Check every partition now. Call this once the purgatory watches the partitions: replicas may have caught up
        before."""
        for partition in tuple(self._waiting):
            self.on_change(partition, 0)

    def on_change(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, Partition)
        found = self._waiting.get(key)
        if found is not None:
            offset, outcome = found
            code = key.append_outcome(offset)
            if code is None:
                return False  # later requests wait for later offsets
            del self._waiting[key]
            _settle(outcome, code)
            if not self._waiting:
                self._respond()
        return True

    def expired(self) -> None:
        for _, outcome in self._waiting.values():
            _settle(outcome, ErrorCode.REQUEST_TIMED_OUT)
        self._respond()

    def _respond(self) -> None:
        self._name_leaders(self._response)
        self.complete(self._response)


def _settle(outcome: _Outcome, code: ErrorCode) -> None:
    if code != ErrorCode.NONE:
        outcome.error_code = code
        outcome.base_offset = -1
