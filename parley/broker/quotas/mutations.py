"""The quota for topic changes: the partitions that a request creates or deletes (KIP-599)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from parley.broker.network.request_context import RequestContext
from parley.broker.quotas.rates import TokenBucket, milliseconds
from parley.broker.quotas.usage import Usage
from parley.protocol.errors import ErrorCode, KafkaError


class MutationQuota:
    """The quota for the topic changes of one request, in partitions created or deleted."""

    def __init__(
        self,
        usage: Usage[TokenBucket] | None,
        limit: float,
        *,
        is_strict: bool,
        monotonic: Callable[[], float],
    ) -> None:
        """``limit`` is in partitions per second. If ``usage`` is None, there is no quota. If ``is_strict``, changes
        beyond the quota are rejected; otherwise the client is throttled after them."""
        self._usage = usage
        self._limit = limit
        self._is_strict = is_strict
        self._monotonic = monotonic
        self._charged: dict[str, KafkaError | None] = {}
        self._wait_s = 0.0
        self._waits_since_s = 0.0

    def charge(self, topic: str, partitions: int) -> None:
        """Count a change to a topic. If the controller decides on a request several times, only the first decision
        counts.

        Raises KafkaError (THROTTLING_QUOTA_EXCEEDED) if the quota is already used up and the client knows this error.
        """
        if self._usage is None:
            return
        if topic not in self._charged:
            self._charged[topic] = self._charge(self._usage, partitions)
        if (refusal := self._charged[topic]) is not None:
            raise refusal

    def _charge(self, usage: Usage[TokenBucket], partitions: int) -> KafkaError | None:
        now_s, bucket = self._monotonic(), usage.measure
        if self._is_strict and (wait_s := bucket.wait_s(self._limit, now_s)) > 0:
            self._wait_s, self._waits_since_s = wait_s, now_s
            return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        usage.used += partitions
        bucket.record(partitions, self._limit, now_s)
        if not self._is_strict and (wait_s := bucket.wait_s(self._limit, now_s)) > 0:
            self._wait_s, self._waits_since_s = wait_s, now_s
        return None

    def throttle_ms(self) -> int:
        """Return the throttle time of the client in milliseconds; 0 if the client need not wait. Call it once, when the
        response is ready."""
        if self._usage is None or not self._wait_s:
            return 0
        left_s = self._wait_s - (self._monotonic() - self._waits_since_s)
        if left_s <= 0:
            return 0
        self._usage.throttled(left_s)
        return milliseconds(left_s)


QuotaOf = Callable[[RequestContext, int], MutationQuota]
"""Returns the quota for the changes of a request, given the first version for which the quota is strict."""

NEVER_STRICT: Final = 1 << 15
"""For requests whose quota is not strict in any version: the changes are made, and the client is throttled afterwards.
The value is higher than any version."""

UNLIMITED: Final = MutationQuota(None, 0.0, is_strict=False, monotonic=lambda: 0.0)
"""The quota object for clients without a quota."""
