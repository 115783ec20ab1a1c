"""GetTelemetrySubscriptions and PushTelemetry: clients send their metrics to the broker (KIP-714)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, i8, i16, i32
from parley.protocol.uuids import UUID


class GetTelemetrySubscriptionsRequest(Request, key=71, versions="0", flexible="0+"):
    """Request the metrics that the client should push."""

    client_instance_id: UUID  # all zero: the broker assigns one


class GetTelemetrySubscriptionsResponse(Response, key=71, versions="0", flexible="0+"):
    """The metrics to push, and their interval and format."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    client_instance_id: UUID
    subscription_id: i32  # sent with each push; changes with the subscription
    accepted_compression_types: list[i8]  # numbered as in record batches, in order of preference
    push_interval_ms: i32  # also the pause before the next GetTelemetrySubscriptions request
    telemetry_max_bytes: i32  # of one push, compressed
    delta_temporality: bool  # True: the change since the last push; False: totals
    requested_metrics: list[str]  # prefixes of metric names; empty: none; a single empty string: all


class PushTelemetryRequest(Request, key=72, versions="0", flexible="0+"):
    """Send metrics in the OTLP MetricsData format, version 1."""

    client_instance_id: UUID
    subscription_id: i32
    terminating: bool  # True: the last push of this client
    compression_type: i8  # as in record batches
    metrics: bytes


class PushTelemetryResponse(Response, key=72, versions="0", flexible="0+"):
    """The outcome of the push."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
