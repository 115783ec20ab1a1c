"""Enforcement of client quotas: what each request uses, and how long its client is then throttled.

Rules of this module (docs/quotas.md has more):

* A request is counted when its response is ready. A client that exceeds a quota gets the response immediately, with the
  throttle time in it, and its connection is not read for that time (KIP-219). If several quotas are exceeded, the
  longest time applies.
* The records of a fetch are counted before they are read. If they exceed the quota, the fetch returns no records and
  they are not counted.
* Request time is the time for which a handler occupies the event loop: 100 percent is one whole core.
* Requests of brokers and of logins are exempt. Without an authorizer, any client can claim to be a broker, so only
  requests that clients never send are exempt, and only on the listeners of brokers.
* If there are no quotas, ``is_active`` is False and no quota is looked up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from copy import copy
from operator import attrgetter
from typing import Any, Final, NamedTuple

from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metadata.changes import Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.metrics.catalogue.clients import ClientQuotaMetrics
from parley.broker.network.peers import is_broker
from parley.broker.network.request_context import MaybeResponse, RequestContext
from parley.broker.quotas.callback import ClientQuotaCallback
from parley.broker.quotas.entities import QuotaKey, StoredQuotas
from parley.broker.quotas.mutations import UNLIMITED, MutationQuota
from parley.broker.quotas.precedence import ClientQuotas, Limit
from parley.broker.quotas.rates import SampledRate, TokenBucket, Windows, milliseconds
from parley.broker.quotas.usage import Usage, UsageTable
from parley.broker.security.authorization import Authorization
from parley.broker.security.sasl.login import LoginState
from parley.protocol.messages import APIS
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from parley.protocol.messages.transactions import AddPartitionsToTxnRequest

_log = logging.getLogger(__name__)

EXPORTED_MAX: Final = 1000
"""The maximum number of entries of each kind of quota in the metrics: the most recently used ones."""
PERCENT: Final = 100.0
_PRODUCE = ProduceRequest.API_KEY
_OF_BROKERS: Final = frozenset(
    key
    for key, api in APIS.items()
    if api.name
    in (
        "AlterPartition",
        "AssignReplicasToDirs",
        "ControlledShutdown",
        "DeleteShareGroupState",
        "Envelope",
        "FetchMetadata",
        "GetReplicaLogInfo",
        "HandOverLeadership",
        "InitializeShareGroupState",
        "ListOffsets",
        "OffsetForLeaderEpoch",
        "ReadShareGroupState",
        "ReadShareGroupStateSummary",
        "ReportOfflineReplicas",
        "StoreDelegationToken",
        "WriteShareGroupState",
        "WriteTxnMarkers",
    )
)
"""The requests that only brokers send, except for the fetches of followers. None of them changes anything on behalf of
a client."""
_BATCHED_SINCE: Final = 4
"""The first version of AddPartitionsToTxn that brokers use."""
_EXEMPT = frozenset({SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY})
_ANY_BYTES = 2**31 - 1

Rates = UsageTable[SampledRate]


class Charge(NamedTuple):
    """The throttle time that a client's usage causes, in seconds, and the quota entry that is responsible."""

    throttle_s: float
    blamed: Usage[SampledRate] | None
    begun_s: float | None = None
    """The time when throttling started, in monotonic seconds; None if it starts with the response."""

    def rest(self, now_s: float) -> Charge:
        """Return the charge with the throttle time that remains at ``now_s``."""
        if self.begun_s is None:
            return self
        return self._replace(throttle_s=max(0.0, self.begun_s + self.throttle_s - now_s))


NO_CHARGE: Final = Charge(0.0, None)
"""The charge of a client without a quota."""


class QuotaEnforcement:
    """The quotas of one broker, and its clients' usage."""

    def __init__(
        self,
        authorization: Authorization,
        *,
        windows: Windows,
        controller_windows: Windows,
        monotonic: Callable[[], float],
        callback: ClientQuotaCallback | None = None,
    ) -> None:
        """``windows`` are the windows for bytes and request time, ``controller_windows`` those for topic changes.
        ``callback``, if given, determines the quotas instead of the stored quotas."""
        self.is_active = callback is not None
        """False if no client has a quota."""
        self.exempt_seconds = 0.0
        """The time of exempt requests, and of requests without a response, while quotas existed."""
        self._authorization = authorization
        self._windows = windows
        self._monotonic = monotonic
        self._callback = callback
        self._stored: StoredQuotas = {}
        self.quotas = ClientQuotas({})
        """The stored quotas."""
        self._produced = Rates(lambda: SampledRate(windows))
        self._fetched = Rates(lambda: SampledRate(windows))
        self._request_time = Rates(lambda: SampledRate(windows))
        self._mutations = UsageTable(lambda: TokenBucket(controller_windows))
        self._failures = FailureLog(_log)

    # --- The quotas ---

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Apply the quotas of a new metadata image, and pass the image to the callback, if there is one. An error of
        the callback is logged."""
        has_changed = image.client_quotas is not self._stored
        if has_changed:
            self._stored = image.client_quotas
            self.quotas = ClientQuotas(self._stored)
            self.is_active = self._callback is not None or self.quotas.limits_clients
        if self._callback is None:
            return
        try:
            self._callback.cluster_changed(image)
            if has_changed:
                self._callback.quotas_changed(self._stored)
        except Exception as error:
            self._failures.report("the quota callback failed", error, self._monotonic())

    def _limit(self, key: QuotaKey, context: RequestContext) -> Limit | None:
        """Return a client's quota; None if there is none, or if the callback raises or returns an invalid one."""
        principal, client_id = context.principal, context.client_id or ""
        if self._callback is None:
            return self.quotas.limit(key, principal.name, client_id)
        try:
            return _checked(self._callback.limit(key, principal, client_id))
        except Exception as error:
            self._failures.report("the quota callback failed", error, context.received_at, quota=str(key))
            return None

    def _is_exempt(self, context: RequestContext) -> bool:
        login = context.client.login
        if context.api_key in _EXEMPT or (login is not None and login.state is not LoginState.COMPLETE):
            return True
        if not (is_broker(context.client_id) and self._authorization.is_broker(context.session)):
            return False
        return self._authorization.is_enforced or _is_of_brokers(context)

    # --- Requests ---

    def charge(self, context: RequestContext, response: MaybeResponse, now_s: float) -> tuple[MaybeResponse, float]:
        """Count a completed request. Returns the response, and the number of seconds to throttle the client.

        The returned response contains the throttle time. A handler may already have set one, because a fetch withheld
        records or the controller rejected topic changes.
        """
        if self._is_exempt(context):
            self.exempt_seconds += context.busy_s
            return response, 0.0
        earlier: Charge | None = context.charge
        produced = self._count_produced(context, now_s) if earlier is None else earlier.rest(now_s)
        worst = max(produced, self._count_time(context, response, now_s), key=attrgetter("throttle_s"))
        set_ms: int = getattr(response, "throttle_time_ms", 0)
        if set_ms and set_ms >= worst.throttle_s * 1000:
            return response, set_ms / 1000
        if worst.begun_s is None:
            _note_throttle(worst)
        return _with_throttle(response, worst.throttle_s)

    def received(self, context: RequestContext, now_s: float) -> float:
        """Count a request whose response is not ready yet, although its client may already send the next request.
        Returns the number of seconds for which to throttle the client. Only the bytes of produce requests are counted
        here; ``charge`` counts the rest."""
        if context.api_key != _PRODUCE or self._is_exempt(context):
            return 0.0
        throttle_s, blamed = self._count_produced(context, now_s)[:2]
        charge = context.charge = Charge(throttle_s, blamed, now_s)
        _note_throttle(charge)
        return throttle_s

    def _count_produced(self, context: RequestContext, now_s: float) -> Charge:
        if context.api_key != _PRODUCE:
            return NO_CHARGE
        return self._count(self._produced, QuotaKey.PRODUCER_BYTE_RATE, context, context.size_bytes, now_s)

    def _count_time(self, context: RequestContext, response: MaybeResponse, now_s: float) -> Charge:
        """Count a request's time. Its throttle is at most one window, and zero if there is no response."""
        if response is None:
            self.exempt_seconds += context.busy_s
            return NO_CHARGE
        charge = self._count(self._request_time, QuotaKey.REQUEST_PERCENTAGE, context, context.busy_s * PERCENT, now_s)
        return Charge(min(charge.throttle_s, self._windows.seconds), charge.blamed)

    def _count(self, rates: Rates, key: QuotaKey, context: RequestContext, amount: float, now_s: float) -> Charge:
        """Record that a client has used ``amount`` of a quota. Returns the resulting throttle."""
        limit = self._limit(key, context)
        if limit is None:
            return NO_CHARGE
        usage = rates.of(limit, now_s)
        usage.used += amount
        usage.measure.record(amount, now_s)
        return Charge(usage.measure.wait_s(limit.rate, now_s), usage)

    # --- Fetches ---

    def fetch_bytes_max(self, context: RequestContext) -> int:
        """Return the maximum number of bytes that a fetch should return.

        This is what is left of the client's quota, so that a large fetch need not wait until it fits completely. It is
        at least what the quota allows in a quarter of a window, because fetching single batches would take too many
        requests. It is never 0: a fetch of no bytes would get its response immediately, and the client would fetch
        again without a pause.
        """
        limit = None if self._is_exempt(context) else self._limit(QuotaKey.CONSUMER_BYTE_RATE, context)
        if limit is None:
            return _ANY_BYTES
        now_s = self._monotonic()
        left = self._fetched.of(limit, now_s).measure.left(limit.rate, now_s)
        return int(min(_ANY_BYTES, max(1, left, limit.rate * self._windows.seconds / 4)))

    def throttle_fetch_ms(self, context: RequestContext, size: int, *, has_more: bool = False) -> int:
        """Count ``size`` bytes of records that a fetch would return, unless they exceed a quota: then the fetch must
        wait.

        ``has_more`` means that ``size`` excludes records that must still be read from the disk. These wait only if the
        client already exceeds its quota; otherwise ``record_fetch`` counts them later.

        Returns the time to wait in milliseconds; 0 if the fetch may return the records. A single batch can be larger
        than the quota ever allows at once. The fetch may return such a batch if no earlier records count, and the
        client is throttled afterwards.
        """
        if not (size or has_more) or self._is_exempt(context):
            return 0
        now_s = self._monotonic()
        time = self._time_used(context, now_s)
        limit = self._limit(QuotaKey.CONSUMER_BYTE_RATE, context)
        usage = None if limit is None else self._fetched.of(limit, now_s)
        was_unused = usage is not None and usage.measure.is_unused(now_s)
        fetched = self._count(self._fetched, QuotaKey.CONSUMER_BYTE_RATE, context, size, now_s)
        if was_unused and time.throttle_s <= 0:
            context.charge = fetched
            return 0
        worst = max(time, fetched, key=attrgetter("throttle_s"))
        throttle_ms = milliseconds(min(worst.throttle_s, self._windows.total_s))
        if throttle_ms == 0 or worst.blamed is None:
            return 0
        if usage is not None:
            usage.used -= size
            usage.measure.record(-size, now_s)
        worst.blamed.throttled(throttle_ms / 1000)
        return throttle_ms

    def _time_used(self, context: RequestContext, now_s: float) -> Charge:
        """Return the throttle that results from the time of the client's earlier requests."""
        limit = self._limit(QuotaKey.REQUEST_PERCENTAGE, context)
        if limit is None:
            return NO_CHARGE
        usage = self._request_time.of(limit, now_s)
        return Charge(min(usage.measure.wait_s(limit.rate, now_s), self._windows.seconds), usage)

    def record_fetch(self, context: RequestContext, size: int) -> None:
        """Count ``size`` bytes of records that a fetch returns whether or not they exceed the quota. If they do, the
        client is throttled afterwards."""
        if size and not self._is_exempt(context):
            now_s = self._monotonic()
            context.charge = self._count(self._fetched, QuotaKey.CONSUMER_BYTE_RATE, context, size, now_s)

    def time_step(self, context: RequestContext, step: Callable[[], None]) -> None:
        """Run a step of a waiting fetch and count its time, because it runs outside the handler's call."""
        began_s = self._monotonic()
        try:
            step()
        finally:
            context.spent(self._monotonic() - began_s)

    # --- Changes to topics ---

    def mutations(self, context: RequestContext, strict_since: int) -> MutationQuota:
        """Return the quota for the topic changes of one request (KIP-599).

        A request in a version before ``strict_since`` comes from a client that does not know THROTTLING_QUOTA_EXCEEDED.
        Its changes are made, and the client is throttled afterwards.
        """
        limit = None
        if self.is_active and not self._is_exempt(context):
            limit = self._limit(QuotaKey.CONTROLLER_MUTATION_RATE, context)
        if limit is None:
            return UNLIMITED
        usage = self._mutations.of(limit, self._monotonic())
        return MutationQuota(
            usage, limit.rate, is_strict=context.api_version >= strict_since, monotonic=self._monotonic
        )

    # --- Metrics ---

    def metrics(self) -> Iterator[tuple[tuple[str, str, str], ClientQuotaMetrics]]:
        """Yield the metrics of the ``EXPORTED_MAX`` most recently used entries of each quota, labeled with the quota,
        the user and the client id."""
        now_s = self._monotonic()
        for name, rates in (("produce", self._produced), ("fetch", self._fetched), ("request", self._request_time)):
            rates.forget_unused(now_s)
            for shared_by, usage in rates.latest(EXPORTED_MAX):
                yield (name, *shared_by), _metrics_of(usage, usage.measure.per_second(now_s))
        self._mutations.forget_unused(now_s)
        for shared_by, changed in self._mutations.latest(EXPORTED_MAX):
            tokens = changed.measure.tokens(changed.limit, now_s)
            yield ("controller_mutation", *shared_by), _metrics_of(changed, tokens)


def _is_of_brokers(context: RequestContext) -> bool:
    """Return True if only brokers send this request."""
    if context.api_key == AddPartitionsToTxnRequest.API_KEY:
        return context.api_version >= _BATCHED_SINCE
    return context.is_from_follower or context.api_key in _OF_BROKERS


def _note_throttle(charge: Charge) -> None:
    """Count a throttle in the metrics."""
    if charge.blamed is not None and charge.throttle_s > 0:
        charge.blamed.throttled(charge.throttle_s)


def _checked(limit: Limit | None) -> Limit | None:
    """Return the limit that a callback returned. Raises TypeError or ValueError if it is not a valid limit."""
    if limit is None:
        return None
    if not isinstance(limit, Limit):
        raise TypeError(f"limit() returned {limit!r} instead of a Limit or None")
    user, client_id = limit.shared_by
    if not (isinstance(limit.shared_by, tuple) and isinstance(user, str) and isinstance(client_id, str)):
        raise TypeError(f"limit() returned {limit!r}: shared_by must be a tuple of two strings")
    if not 0 <= limit.rate < math.inf:
        raise ValueError(f"limit() returned {limit!r}: the rate must be finite, and at least 0")
    return limit


def _with_throttle(response: MaybeResponse, throttle_s: float) -> tuple[MaybeResponse, float]:
    """Return a copy of the response with the throttle time set. The original may be shared with other requests."""
    throttle_ms = milliseconds(throttle_s)
    if throttle_ms == 0:
        return response, 0.0
    if response is not None and hasattr(response, "throttle_time_ms"):
        throttled: Any = copy(response)
        throttled.throttle_time_ms = throttle_ms
        response = throttled
    return response, throttle_ms / 1000


def _metrics_of(usage: Usage[Any], level: float) -> ClientQuotaMetrics:
    return ClientQuotaMetrics(
        limit=usage.limit,
        level=level,
        used=usage.used,
        throttles=usage.throttles,
        throttle_seconds=usage.throttle_seconds,
    )
