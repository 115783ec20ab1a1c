"""Loads a topic: rounds of ranges that are written in parallel and committed as a whole.

The caller chooses what runs the ranges: Spark tasks, or a plain loop. A round without a commit has no effect: the next
load begins at the end of the last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster, Connection, Isolation, TopicPartition
from parley.pipeline.load.columns import Layout
from parley.pipeline.load.delta import DeltaCommits, new_load_id
from parley.pipeline.load.files import Destination, Task, Written, write_range
from parley.pipeline.load.manifest import Manifests
from parley.pipeline.load.origin import check_origin, keep_origin
from parley.pipeline.load.ranges import missing, rounds
from parley.pipeline.load.spark_tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from parley.pipeline.tables.iceberg import IcebergPlace

PER_FILE: Final = 1_000_000
"""The default number of offsets in one file."""


class Commits(Protocol):
    """The commits of a load, which store what was loaded: ``Manifests``, ``DeltaCommits`` or ``IcebergCommits``."""

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition."""

    def begin(self, positions: Mapping[int, int]) -> None:
        """Take over the folder or table. Partitions that were never loaded begin at ``positions``. Raises
        LoadConflict.
        """

    def commit(self, files: Sequence[Written], positions: Mapping[int, int]) -> None:
        """Commit these files and the next offsets of their partitions, together. Raises LoadConflict."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of a load. ``per_file`` is the maximum number of offsets in one file.

    With ``accept_loss``, records that were deleted from the topic before they were loaded are left out. Otherwise they
    are an error.
    """

    connection: Connection
    topic: str
    uri: str
    format: str
    layout: Layout
    isolation: Isolation = Isolation.READ_COMMITTED
    per_file: int = PER_FILE
    accept_loss: bool = False
    iceberg: IcebergPlace | None = None
    """The table, for the format ``iceberg``. Then ``uri`` has no effect."""


@dataclass(slots=True)
class Loaded:
    """The progress of a load: how many of the ``wanted`` offsets are done, and what was written."""

    wanted: int
    offsets: int = 0
    records: int = 0
    files: int = 0
    size_bytes: int = 0


Run = Callable[[list[Task]], Iterable[list[Written]]]


def on_spark(session: SparkSession) -> Run:
    """Return a function that writes ranges in Spark's tasks. It raises ``spark_tasks.TaskFailed``."""
    return lambda tasks: run_tasks(session, write_range, tasks)


def load(
    settings: LoadSettings, run: Run, *, at_once: int = 4, on_progress: Callable[[Loaded], None] = lambda _: None
) -> Loaded:
    """Load the topic's records that are not in the folder yet. Returns the final progress.

    ``run`` writes the ranges (``on_spark``, or a loop that calls ``write_range``), ``at_once`` of them in each round.
    Calls ``on_progress`` once at the start and after every commit.

    Raises ``ranges.RecordsGone``, ``ranges.TopicRecreated``, ``manifest.LoadConflict``, ``columns.BadRecord``,
    KafkaError, OSError, and what ``run`` raises.
    """
    with Cluster(settings.connection) as cluster:
        places = [TopicPartition(settings.topic, one) for one in cluster.partitions([settings.topic])[settings.topic]]
        begins = cluster.offsets(dict.fromkeys(places, EARLIEST), settings.isolation)
        ends = cluster.offsets(dict.fromkeys(places, LATEST), settings.isolation)
        topic_id = cluster.topic_id(settings.topic)
        destination, commits = _commits(settings, [place.partition for place in places])
        ends |= _ends_of_uncommitted(cluster, commits.positions, ends)
    check_origin(destination, settings.topic, topic_id)
    first = {place.partition: offset for place, offset in begins.items()}
    last = {place.partition: offset for place, offset in ends.items()}
    wanted = missing(settings.topic, commits.positions, first, last, accept_loss=settings.accept_loss)
    done = Loaded(sum(one.length for one in wanted))
    on_progress(done)
    if wanted or first.keys() - commits.positions.keys():
        commits.begin(first)
        keep_origin(destination, settings.topic, topic_id)
    for some in rounds(wanted, settings.per_file, at_once):
        tasks = [Task(settings.connection, settings.isolation, one, settings.layout, destination) for one in some]
        files = [file for found in run(tasks) for file in found]
        commits.commit(files, {one.partition.partition: one.end for one in some})
        done.offsets += sum(one.length for one in some)
        done.records += sum(file.records for file in files)
        done.files += len(files)
        done.size_bytes += sum(file.size_bytes for file in files)
        on_progress(done)
    return done


def _ends_of_uncommitted(
    cluster: Cluster, positions: Mapping[int, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the positions of partitions that are already loaded beyond their last stable offset.

    An earlier load of uncommitted records has loaded them. Nothing follows until the open transaction ends.
    """
    beyond = {
        place: positions[place.partition] for place, end in ends.items() if positions.get(place.partition, 0) > end
    }
    log_ends = cluster.offsets(dict.fromkeys(beyond, LATEST)) if beyond else {}
    return {place: position for place, position in beyond.items() if position <= log_ends[place]}


def _commits(settings: LoadSettings, partitions: Sequence[int]) -> tuple[Destination, Commits]:
    load_id = new_load_id()
    if settings.iceberg is not None:
        from parley.pipeline.load.iceberg import IcebergCommits

        table = IcebergCommits(settings.iceberg, settings.topic, settings.layout, load_id)
        table.look_up(partitions)
        return Destination(table.folder, settings.format, load_id), table
    destination = Destination(settings.uri, settings.format, load_id)
    if settings.format == "delta":
        found = DeltaCommits(destination, settings.topic, settings.layout)
        found.look_up(partitions)
        return destination, found
    layout = settings.layout
    kept = {
        "format": settings.format,
        "columns": ", ".join(f"{one.name} {one.type}" for one in layout.columns),
        "partition_by": layout.partition_by or "nothing",
        "isolation": settings.isolation.name.lower(),
    }
    return destination, Manifests(destination, settings.topic, kept)
