"""The immutable snapshot that the checks examine. No I/O.

A part that is not known is None or empty, and ``missing`` contains the reason. Times are timezone-aware datetimes,
sizes are in bytes, and durations in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from parley.broker.metadata.terms import NO_TERM, Term
from parley.protocol.topic_partition import TopicPartition

OF_STORE: Final = "coordination store: "
"""The start of a broker's problem if its coordination store does not respond."""


class Part(Enum):
    """A source of facts that checks need."""

    METADATA = "metadata"
    BROKERS = "the brokers' responses"
    CONFIGS = "configurations"
    LOG_DIRS = "log directories"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    MOVES = "reassignments"
    METRICS = "metrics"
    CERTIFICATES = "certificates"
    STORE = "coordination store"
    FILE = "properties file"
    MACHINE = "this machine"


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that was not examined, and why. ``has_failed`` is False if the subject does not have the part, or
    the part was left out on purpose."""

    part: Part
    reason: str
    has_failed: bool = True


# --- A cluster ---


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """The size of a replica on a broker in bytes, and its lag in records."""

    size: int
    lag: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A log directory as its broker describes it. ``total`` and ``free`` are None if unknown."""

    path: str
    error: str = ""
    total: int | None = None
    free: int | None = None
    replicas: Mapping[TopicPartition, ReplicaSize] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a broker: by name, the samples as labels and value. ``clock_ahead_s`` is how many seconds the
    broker's clock is ahead of this machine's, or None if unknown."""

    address: str
    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
    problems: Sequence[str] = ()
    """The problems that ``/healthz`` reports."""
    clock_ahead_s: float | None = None

    @property
    def store_outage(self) -> str:
        """The problem that the broker has with the coordination store, or an empty string."""
        return next((each.removeprefix(OF_STORE) for each in self.problems if each.startswith(OF_STORE)), "")

    def of(self, name: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """Return the samples with this name."""
        return self.samples.get(name, ())

    def sum(self, name: str) -> float:
        """Return the sum of the samples with this name."""
        return sum(value for _, value in self.of(name))


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as the cluster describes it, with its own responses."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False
    error: str = ""
    """Why the broker did not respond; empty if it did."""
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finalized: Mapping[str, int] = field(default_factory=dict)
    apis: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None
    own_settings: Sequence[str] = ()
    """The keys that were set at run time for this broker alone."""
    directories: Sequence[Directory] | None = None
    metrics: Metrics | None = None
    host_label: str | None = None
    """The label of the host on which it runs. Without a label (None), it counts as a host by itself."""

    @property
    def address(self) -> str:
        """The advertised address, as the client sees it."""
        return f"{self.host}:{self.port}"

    @property
    def responds(self) -> bool:
        """True if the broker runs and responded to this client."""
        return not self.is_fenced and not self.error


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and its replicas, the preferred leader first. ``leader`` is -1 if there is no leader."""

    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name as Kafka's tools print it, such as ``topic-0``."""
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True)
class GroupSample:
    """The state of a group at a moment. ``lags`` has the lag in records of each partition that has a committed offset
    and a leader."""

    state: str
    members: int
    committed: Mapping[TopicPartition, int]
    lags: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Group:
    """A group that may have a problem, sampled twice. ``last`` is None if the group no longer existed at the second
    sample."""

    name: str
    first: GroupSample
    last: GroupSample | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A hanging transaction: it is open in a partition, and no coordinator will ever end it."""

    topic: str
    partition: int
    producer_id: int
    start_offset: int
    last_write: datetime


@dataclass(frozen=True, slots=True)
class Move:
    """A reassignment, sampled twice. ``copied`` contains, by broker, the sizes of each adding replica at the two
    samples.

    ``whole`` is the size of the leader's replica, or None if unknown. An adding replica's own lag is useless, because
    its high watermark lags, too.
    """

    topic: str
    partition: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    copied: Mapping[int, tuple[ReplicaSize, ReplicaSize]]
    whole: int | None = None

    @property
    def name(self) -> str:
        """The name of the partition."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Store:
    """What is known about a coordination store. ``kind_of_error`` is the name of the exception's class.

    ``members`` are the addresses of each broker that has a session. ``cluster_id`` is None if no cluster uses the
    store.
    """

    url: str
    error: str = ""
    kind_of_error: str = ""
    identity: str = ""
    cluster_id: str | None = None
    state: str = ""
    controller: int | None = None
    members: Mapping[int, Sequence[str]] = field(default_factory=dict)
    open_s: float = 0.0
    read_s: float = 0.0
    """The median time of a read, in seconds."""
    clock_ahead_s: float | None = None
    """How many seconds the clock of the store's server is ahead of this machine's clock, or None if the store does not
    report its time."""
    registered: Mapping[int, int] = field(default_factory=dict)
    """How many log directories each registered broker had when it last joined."""
    terms: Sequence[Term] = ()
    """The latest terms of controllers recorded in the store."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """The number of keys of each kind."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The state of a cluster at a moment."""

    now: datetime
    bootstrap: Sequence[tuple[str, int]]
    cluster_id: str | None
    controller: int
    """The id of the controller, or -1."""
    is_parley: bool
    brokers: Sequence[Broker]
    partitions: Sequence[Partition]
    interval_s: float = 0.0
    """The time between the two samples of groups and reassignments, in seconds."""
    min_isr: Mapping[str, int] = field(default_factory=dict)
    """``min.insync.replicas`` of each topic with replicas out of sync."""
    groups: Sequence[Group] | None = None
    hanging: Sequence[OpenTransaction] | None = None
    moves: Sequence[Move] | None = None
    certificates: Mapping[str, datetime] = field(default_factory=dict)
    """The expiry time of the certificate that clients receive, by address."""
    store: Store | None = None
    missing: Sequence[Missing] = ()

    @property
    def without_store(self) -> Sequence[Broker]:
        """The brokers that report that the coordination store does not respond."""
        return [each for each in self.brokers if each.metrics is not None and each.metrics.store_outage]

    def broker(self, id_: int) -> Broker | None:
        """Return the broker with this id, or None if the cluster does not know it."""
        return next((each for each in self.brokers if each.id == id_), None)

    def runs(self, id_: int) -> bool:
        """Return True if this broker is running according to the cluster."""
        broker = self.broker(id_)
        return broker is not None and not broker.is_fenced

    @property
    def running(self) -> Sequence[Broker]:
        """The running brokers, whether or not they responded to this client."""
        return [each for each in self.brokers if not each.is_fenced]


# --- A broker's properties file, on its machine ---


@dataclass(frozen=True, slots=True)
class Process:
    """A process on this machine. Its command line is truncated to a hundred characters."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener in the file, or ``metrics.listener``. ``key`` is the setting that contains its address.

    ``error`` says why the address cannot be bound, or is empty. ``holder`` is the process that uses it, if this user
    may see the process.
    """

    key: str
    name: str
    host: str
    port: int
    error: str = ""
    is_taken: bool = False
    holder: Process | None = None


@dataclass(frozen=True, slots=True)
class Advertised:
    """An advertised address, and the addresses to which its name resolves on this machine. ``error`` is set if there
    are none."""

    name: str
    host: str
    port: int
    resolved: Sequence[str] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Folder:
    """A log directory on this machine. ``error`` says why it cannot be used, or is empty."""

    path: str
    exists: bool = True
    error: str = ""
    total: int = 0
    free: int = 0
    inodes: int = 0
    inodes_free: int = 0
    cluster_id: str | None = None
    broker_id: int | None = None
    store_identity: str | None = None
    malformed: str = ""
    holder: Process | None = None
    """The process that holds the directory's lock."""
    was_closed_cleanly: bool = False
    has_logs: bool = False
    strays: Sequence[str] = ()
    """The names of folders with logs that belong to no topic of the cluster."""
    seen: Term = NO_TERM
    """The newest metadata that the broker has seen, as recorded in the directory."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The first damage of a segment, or a missing segment. ``is_tail`` is True if nothing follows the damage, as after
    a crash."""

    path: str
    position: int
    reason: str
    is_tail: bool
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a listener: when it expires, or why it cannot be read."""

    listener: str
    expires: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A broker's properties file, and the state of the machine on which the command runs."""

    now: datetime
    path: str
    problems: Sequence[tuple[str, str]] = ()
    """The settings that prevent the broker from starting: the key, and what is wrong."""
    unknown: Sequence[tuple[str, str]] = ()
    """The unknown settings, each with the key that was probably meant, or an empty string."""
    ignored: Sequence[tuple[str, str]] = ()
    """The settings that are deprecated or have no effect, and why."""
    broker_id: int | None = None
    listeners: Sequence[Listener] = ()
    advertised: Sequence[Advertised] = ()
    folders: Sequence[Folder] = ()
    damage: Sequence[Damage] = ()
    certificates: Sequence[Certificate] = ()
    running: Process | None = None
    """The broker's own process, if it runs."""
    descriptors: int | None = None
    partitions: int = 0
    store: Store | None = None
    missing: Sequence[Missing] = ()
