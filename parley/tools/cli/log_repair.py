"""``parley log-repair``: show the committed records that replicas had to remove from their logs (``.cut`` files).

The files are only read, so a broker may use them at the same time. Kafka has no such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import OutputFormat
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.storage.cut_files import CutFile

app = App(
    "Show the committed records that replicas had to remove from their logs to agree with a leader that lacks them. "
    "A broker keeps them in .cut files beside the log; docs/storage.md says when.\n\n"
    "Print the records with `parley dump-log --print-data-log --files FILE`, and produce again the records that the "
    "topic lacks. Then remove the file.",
    examples=[
        ("parley log-repair --log-dirs parley-data", "list the .cut files in a log directory"),
        ("parley log-repair --log-dirs /disk1,/disk2 --topic orders", "the .cut files of one topic"),
    ],
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley log-repair``, as given on the command line."""

    log_dirs: Annotated[str, typer.Option("--log-dirs", help="The log directories of a broker, separated by commas.")]
    topic: Annotated[str, typer.Option("--topic", help="Only this topic.")] = ""
    output_format: OutputFormat = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The contents of one ``.cut`` file."""

    file: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    last_leader_epoch: int
    size_bytes: int

    @property
    def text(self) -> str:
        """One line that describes the file."""
        return (
            f"{self.topic}-{self.partition}: {plural(self.records, 'record')}, offsets {self.first_offset} to "
            f"{self.last_offset}, last leader epoch {self.last_leader_epoch}, {self.size_bytes} bytes in {self.file}"
        )

    @property
    def data(self) -> dict[str, object]:
        """The description as JSON data."""
        return {
            "file": self.file,
            "topic": self.topic,
            "partition": self.partition,
            "firstOffset": self.first_offset,
            "lastOffset": self.last_offset,
            "records": self.records,
            "lastLeaderEpoch": self.last_leader_epoch,
            "sizeBytes": self.size_bytes,
        }


@app.only_command_with(Options)
def log_repair(options: Options) -> None:
    directories = [Path(name.strip()) for name in options.log_dirs.split(",") if name.strip()]
    if not directories:
        raise CommandError("--log-dirs is empty. Name at least one log directory.")
    try:
        found = [cut for cut in _cuts(directories) if not options.topic or cut.topic == options.topic]
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}.") from error
    if options.output_format:
        print_data([cut.data for cut in found], options.output_format)
    elif found:
        for cut in found:
            print(cut.text)
    else:
        print("There are no .cut files: no replica here had to remove committed records.")


def _cuts(directories: Iterable[Path]) -> Iterator[Cut]:
    """Yield the contents of the cut files in these log directories, in order of directory and partition. Raises
    ``OSError`` if a file cannot be read."""
    from parley.storage.cut_files import cut_files
    from parley.storage.log_directory import parse_partition_name

    for directory in directories:
        for path in sorted(directory.iterdir()):
            partition = parse_partition_name(path.name)
            if partition is not None and path.is_dir():
                for file in cut_files(path):
                    yield _read(file, *partition)


def _read(file: CutFile, topic: str, partition: int) -> Cut:
    """Read the headers of the batches in a file, up to the first damaged batch."""
    from parley.protocol.errors import KafkaError
    from parley.protocol.records.batch_header import headers

    data = memoryview(file.path.read_bytes())
    count, last_offset, epoch = 0, file.first_offset - 1, -1
    try:
        for _, header in headers(data):
            count += header.record_count
            last_offset, epoch = header.last_offset, header.partition_leader_epoch
    except KafkaError:
        pass  # ``parley dump-log`` shows what is wrong
    return Cut(str(file.path), topic, partition, file.first_offset, last_offset, count, epoch, size_bytes=len(data))
