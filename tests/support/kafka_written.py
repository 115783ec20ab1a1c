"""A log directory of Apache Kafka 3.9, and what its consumers read from it, written once per machine.

Kafka and librdkafka alone make it, in 10 seconds of CPU time: Parley's code has no part in it. It is written again when
the code that writes it changes, or librdkafka.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from tests.support import kafka, kafka_data
from tests.support.kafka import KAFKA_3, ROOT, kafka_39_zk
from tests.support.kafka_data import OVERRIDES, Consumed, consume, write_everything

_CONSUMED = "consumed.pickle"
Topics = dict[str, list[Consumed]]


@dataclass(frozen=True)
class Written:
    """A log directory that Kafka wrote, and the records that Kafka's consumers read from each topic in it."""

    log_dir: Path
    topics: Topics
    committed: Topics

    def copied(self, to: Path) -> Path:
        return _copied(self.log_dir, to / "logs")


def _copied(log_dir: Path, to: Path) -> Path:
    """Copy a log directory with the holes in its files: the indexes of a running broker have 240 MB of them."""
    subprocess.run(["cp", "-a", str(log_dir), str(to)], check=True)
    return to


def topics_in(log_dir: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in log_dir.glob("*-0"))


def everything_written() -> dict[str, Written]:
    """Return everything that one Kafka wrote: ``killed`` as a crash would have left it, ``stopped`` after a clean
    shutdown."""
    folder = ROOT / ".cache" / f"kafka-{KAFKA_3}-written-{_key()}"
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        _write(made)
        try:
            made.rename(folder)
        except OSError:  # another process has written it meanwhile
            shutil.rmtree(made)
    topics, committed = pickle.loads((folder / _CONSUMED).read_bytes())
    return {how: Written(folder / how, topics, committed) for how in ("killed", "stopped")}


def _key() -> str:
    """Return a digest of what decides about the files."""
    digest = hashlib.sha256(repr((confluent_kafka.version(), confluent_kafka.libversion())).encode())
    for source in (kafka.__file__, kafka_data.__file__, __file__):
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()[:16]


def _write(folder: Path) -> None:
    topics: Topics = {}
    committed: Topics = {}
    with tempfile.TemporaryDirectory() as directory, kafka_39_zk(Path(directory), OVERRIDES) as running:
        write_everything(running)
        consume(running, "codecs")  # the first consumer causes the creation of __consumer_offsets
        for topic in topics_in(running.log_dir):
            topics[topic] = consume(running, topic)
            committed[topic] = consume(running, topic, committed=True)
        with running.standing_still():
            _copied(running.log_dir, folder / "killed")
        running.stop()
        _copied(running.log_dir, folder / "stopped")
    (folder / _CONSUMED).write_bytes(pickle.dumps((topics, committed)))
