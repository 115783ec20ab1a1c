"""``python -m bench.creation``: the cost of creating, listing and keeping partitions without records, compared with
Apache Kafka.

A client on a plain socket sends CreateTopics requests that are encoded beforehand. The time is measured from the
request to the last byte of the response, so the client library does not count. After a warm-up with small topics, 1,000
partitions are created in three shapes, several times each: one topic of 1,000, 20 topics of 50, 1,000 topics of one.
Then topics of 1,000 are created until there are ``--partitions``. At that number the program measures a Metadata
request for all topics, the memory and the number of descriptors. ``--cluster`` uses three brokers and three replicas.
``bench.partitions`` measures restarts.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.clusters import Measured
from bench.figures import Figures, report
from bench.kinds import kinds_of
from bench.replication import BROKERS, ReplicatedCluster
from bench.turns import in_turns, turns_parser
from parley.protocol.connection import ClientConnection
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest
from parley.protocol.schema import Request, Response

PER_REQUEST = 1000
SHAPES = ((1, 1000), (20, 50), (1000, 1))
"""Topics per request, and partitions per topic."""
WARM_UPS = 10
TIMES = 5
QUIET_S = 2.0
"""How long to wait for background work after the response, in seconds. The CPU time of that work counts."""
FRAME_BYTES_MAX = 256 * 1024 * 1024
CREATE_VERSION, METADATA_VERSION, DELETE_VERSION = 7, 12, 5


class Client:
    """A connection with one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=600)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection("bench", FRAME_BYTES_MAX)

    def ask(self, request: Request, version: int) -> tuple[Response, float]:
        """Send a request. Returns the response, and the milliseconds from the request to the response's last byte.
        Raises SystemExit if the broker closes the connection."""
        _, pieces = self._connection.send(request, version)
        frame = b"".join(pieces)
        began = time.perf_counter()
        self._socket.sendall(frame)
        size = self._read(4)
        body = self._read(int.from_bytes(size))
        elapsed_ms = (time.perf_counter() - began) * 1000
        return self._decoded(size + body), elapsed_ms

    def _decoded(self, frame: bytes) -> Response:
        done, found = 0, []
        while done < len(frame):
            room = self._connection.get_buffer(len(frame) - done)
            count = min(len(room), len(frame) - done)
            room[:count] = frame[done : done + count]
            done += count
            found += [response for _, response in self._connection.buffer_updated(count)]
        return found[0]

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise SystemExit("the broker has closed the connection")
            done += count
        return bytes(data)


def new_topics(prefix: str, topics: int, partitions: int, replicas: int) -> CreateTopicsRequest:
    """Return a request for topics named ``prefix-<number>``."""
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=f"{prefix}-{number}",
                num_partitions=partitions,
                replication_factor=replicas,
                assignments=[],
                configs=[],
            )
            for number in range(topics)
        ]
    )


class Subject:
    """The broker or the three brokers to measure."""

    def __init__(self, measured: Measured | ReplicatedCluster, replicas: int, figures: Figures) -> None:
        self.measured = measured
        self.members = measured.members if isinstance(measured, ReplicatedCluster) else [measured]
        self._replicas = replicas
        self._figures = figures
        self.client = Client(measured.bootstrap)

    def note(self, label: str, value: float) -> None:
        """Add a figure of the subject under this label."""
        self._figures[label, self.measured.name].append(value)

    def create(self, prefix: str, topics: int, partitions: int) -> float:
        """Create topics with one request. Returns the milliseconds until the response. Raises SystemExit if a topic is
        rejected."""
        response, elapsed_ms = self.client.ask(new_topics(prefix, topics, partitions, self._replicas), CREATE_VERSION)
        assert isinstance(response, CreateTopicsResponse)
        refused = next((topic for topic in response.topics if topic.error_code), None)
        if refused is not None:
            raise SystemExit(f"{refused.name}: error {refused.error_code} {refused.error_message or ''}")
        return elapsed_ms

    def delete(self, prefix: str, topics: int) -> None:
        """Delete the topics that ``create`` created."""
        names = [f"{prefix}-{number}" for number in range(topics)]
        self.client.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=60_000), DELETE_VERSION)

    def memory_mb(self) -> float:
        """Return the resident memory of all brokers, in MB."""
        return sum(member.resident_mb() for member in self.members)

    def open_files(self) -> int:
        """Return the number of open file descriptors of all brokers."""
        return sum(len(os.listdir(f"/proc/{member.process.pid}/fd")) for member in self.members if member.process)


def measure_thousands(subject: Subject) -> None:
    """Measure the creation of 1,000 partitions in each of ``SHAPES``, ``TIMES`` times each."""
    for number in range(WARM_UPS):
        subject.create(f"warm-up-{number}", 1, 50)
        subject.delete(f"warm-up-{number}", 1)
    for topics, partitions in SHAPES:
        label = f"{topics:,} x {partitions:,} partitions"
        for number in range(TIMES):
            prefix = f"shape-{topics}-{number}"
            cpu = subject.measured.cpu_seconds()
            elapsed_ms = subject.create(prefix, topics, partitions)
            time.sleep(QUIET_S)
            cpu_ms = (subject.measured.cpu_seconds() - cpu) * 1000
            subject.delete(prefix, topics)
            time.sleep(QUIET_S)
            if number:  # the first one is a warm-up
                subject.note(f"create {label}, ms", elapsed_ms)
                subject.note(f"create {label}, broker CPU ms", cpu_ms)


def measure_many(subject: Subject, partitions: int) -> None:
    """Create topics of 1,000 partitions up to the given number, then list them and measure memory and descriptors."""
    time.sleep(QUIET_S)
    memory, files, cpu = subject.memory_mb(), subject.open_files(), subject.measured.cpu_seconds()
    times = [subject.create(f"topic-{number}", 1, PER_REQUEST) for number in range(partitions // PER_REQUEST)]
    label = f"{partitions:,} partitions"
    subject.note(f"create {label}, s", sum(times) / 1000)
    subject.note(f"create {label}: the last 1,000, ms", times[-1])
    time.sleep(QUIET_S)
    subject.note(f"create {label}, broker CPU s", subject.measured.cpu_seconds() - cpu)
    subject.note(f"keep {label}: bytes of memory each", (subject.memory_mb() - memory) * 1e6 / partitions)
    subject.note(f"keep {label}: descriptors", subject.open_files() - files)
    listed = [subject.client.ask(MetadataRequest(topics=None), METADATA_VERSION)[1] for _ in range(TIMES)]
    subject.note(f"list {label}: first, ms", listed[0])
    subject.note(f"list {label}: again, ms", sorted(listed[1:])[len(listed) // 2])


def main() -> None:
    parser = turns_parser("bench.creation", __doc__, rounds=1)
    parser.add_argument("--partitions", type=int, default=10_000, help="number of partitions in all; 0 for none")
    parser.add_argument("--cluster", action="store_true", help="three brokers and three replicas")
    given = parser.parse_args()

    def measure(measured: Measured | ReplicatedCluster, figures: Figures) -> None:
        subject = Subject(measured, BROKERS if given.cluster else 1, figures)
        measure_thousands(subject)
        if given.partitions:
            measure_many(subject, given.partitions)

    kinds: Sequence[Callable[[Path], Measured | ReplicatedCluster]] = kinds_of(given.cluster, given.alone)
    report(in_turns(kinds, given.rounds, measure))


if __name__ == "__main__":
    main()
