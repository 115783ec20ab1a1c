"""Metrics of the coordination store as seen by this broker: calls, errors, session, outages."""

from __future__ import annotations

from parley.broker.metrics.instruments import Histogram, Instruments, counter, gauge, seconds_histogram

_SESSION = "kafka.server:type=SessionExpireListener,name={}"


class StoreMetrics(Instruments, title="Coordination store", labels=("store",)):
    """The store that the cluster uses, as this broker sees it. The label is the scheme of its URL,
    for example `local`."""

    responds: int = gauge("parley_store_responds", "1 if the store responds, 0 during an outage.")
    in_charge_seconds: float = gauge(
        "parley_store_in_charge_seconds",
        "How long this broker has used the store: since its start, or since the last move.",
    )
    outage_seconds: float = gauge("parley_store_outage_seconds", "Duration of the current outage; 0 if there is none.")
    since_contact_seconds: float = gauge(
        "parley_store_since_contact_seconds",
        "Time since the store last confirmed anything: a call, a renewal of the session, or an event of a watch.",
    )
    calls_in_progress: int = gauge("parley_store_calls_in_progress", "Calls without a response yet.")
    outages: int = counter("parley_store_outages", "Outages since this broker started.")
    watch_restarts: int = counter(
        "parley_store_watch_restarts",
        "Watches that had to read all keys below their prefix again, after a reconnection or a gap.",
    )


class StoreCallMetrics(Instruments, title="Calls of the coordination store", labels=("operation",)):
    """The calls of one operation of the store's interface: open, open_session, get, list, put, delete, txn."""

    duration: Histogram = seconds_histogram(
        "parley_store_call_duration_seconds",
        "Time until the store's response, or until the call failed.",
        "kafka.server:type=ZooKeeperClientMetrics,name=ZooKeeperRequestLatencyMs",
    )


class StoreErrorMetrics(Instruments, title="Errors of the coordination store", labels=("operation", "kind")):
    """The calls that failed, by kind of error. Unavailable, MaybeApplied and Cancelled are faults of the store or of
    the network. AlreadyExists, NotFound, Conflict and Fenced are regular results: another client was faster."""

    errors: int = counter("parley_store_errors", "Calls that failed with this error.")


class StoreSessionMetrics(Instruments, title="Session with the coordination store"):
    """The session that makes this broker a member of the cluster."""

    connected: int = gauge(
        "parley_store_session_connected",
        "1 if the session is renewed in time, 0 if it is suspended or lost.",
        _SESSION.format("SessionState"),
    )
    age_seconds: float = gauge("parley_store_session_age_seconds", "Time since the session was opened; 0 without one.")
    ttl_seconds: float = gauge(
        "parley_store_session_ttl_seconds", "The time without a renewal after which the store ends the session."
    )
    opened: int = counter(
        "parley_store_sessions_opened",
        "Sessions opened since this broker started.",
        _SESSION.format("ZooKeeperSyncConnectsPerSec"),
    )
    interruptions: int = counter(
        "parley_store_session_interruptions",
        "The number of times that the session was not renewed in time, or its connection broke.",
        _SESSION.format("ZooKeeperDisconnectsPerSec"),
    )
    reconnections: int = counter(
        "parley_store_session_reconnections", "The number of times that an interrupted session was renewed again."
    )
    expirations: int = counter(
        "parley_store_session_expirations",
        "Sessions that were lost, rather than closed by this broker.",
        _SESSION.format("ZooKeeperExpiresPerSec"),
    )
