"""Class archives (AppCDS), with which Kafka and Spark start with about half of the CPU time, ZooKeeper with two thirds.

``python -m tests.support.java_archives`` creates those of Kafka and ZooKeeper that are missing, once per machine, in 16
seconds of CPU time. With the word ``spark`` it creates Spark's, too: that takes 22 seconds and saves 5 at each start,
and ``make test`` starts Spark only twice. Java ignores an archive of other jars. Everything also works without
archives.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "java-archives"
SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:cds=off,cds+dynamic=off")
"""Options of a JVM that runs for seconds: thorough compilation pays off only after hours."""

_SPARK = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = session.config("spark.driver.extraJavaOptions", {options!r}).getOrCreate()
session.range(10).selectExpr("sum(id)").collect()
java = session.sparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
"""


def small_jvm(jars: Path) -> list[str]:
    """Return the options of a small JVM whose class path begins with these jars, with their archive if it exists."""
    return [*SMALL, *_use(_archive_of_folder(jars))]


def small_zookeeper() -> list[str]:
    """Return the options of a small JVM for ZooKeeper, with its archive if it exists."""
    return [*SMALL, *_use(_zookeeper_archive())]


def _use(archive: Path) -> list[str]:
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def small_spark() -> str:
    """Return the options of a small JVM for Spark, in one string. Spark need not be installed."""
    jars = _spark_jars()
    return " ".join(SMALL if jars is None else small_jvm(jars))


def _spark_jars() -> Path | None:
    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent / "jars"


def _archive_of_folder(jars: Path) -> Path:
    return _archive(jars.parent.name, sorted(jars.glob("*.jar")))


@functools.cache
def _zookeeper_archive() -> Path:
    from parley.tools.store_servers import zookeeper_class_path

    return _archive("zookeeper", [jar for word in zookeeper_class_path().split(":") if (jar := Path(word)).is_file()])


def _archive(name: str, jars: Iterable[Path]) -> Path:
    """Return the path of the archive for these jars. It depends on them and on the version of Java."""
    digest = hashlib.sha256(os.path.realpath(shutil.which("java") or "").encode())
    for jar in jars:
        digest.update(f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}\n".encode())
    return FOLDER / f"{name}-{digest.hexdigest()[:16]}.jsa"


def _make(archive: Path, run: Callable[[str], None]) -> None:
    """Create the archive, if it is missing, by running a program that exits immediately."""
    if archive.exists():
        return
    print(f"Making an archive of the classes of {archive.stem.rpartition('-')[0]}.", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(".made")
    run(f"-XX:ArchiveClassesAtExit={made}")
    if made.exists():
        made.rename(archive)


def _run_kafka_4(option: str) -> None:
    from tests.support.kafka import Kafka4

    with tempfile.TemporaryDirectory() as folder:
        Kafka4(Path(folder), java_option=option).stop()


def _run_kafka_3(option: str) -> None:
    from tests.support.kafka import kafka_39_zk

    with tempfile.TemporaryDirectory() as folder, kafka_39_zk(Path(folder), java_option=option) as kafka:
        kafka.stop()


def _run_zookeeper(option: str) -> None:
    from kazoo.client import KazooClient

    from tests.support.stores.zookeeper import zookeeper_servers

    with zookeeper_servers(java=[option]) as servers:
        client = KazooClient(servers.hosts)
        client.start()
        client.create("/a", b"", ephemeral=True)
        client.stop()
        servers.end()


def _run_spark(option: str) -> None:
    program = _SPARK.format(options=" ".join([*SMALL, option]))
    subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=True)


def main() -> None:
    from tests.support.kafka import KAFKA_3, KAFKA_4

    _make(_archive_of_folder(ROOT / ".cache" / f"kafka-{KAFKA_4}" / "libs"), _run_kafka_4)
    _make(_archive_of_folder(ROOT / ".cache" / f"kafka-{KAFKA_3}" / "libs"), _run_kafka_3)
    _make(_zookeeper_archive(), _run_zookeeper)
    if "spark" in sys.argv[1:] and (jars := _spark_jars()) is not None:
        _make(_archive_of_folder(jars), _run_spark)


if __name__ == "__main__":
    main()
