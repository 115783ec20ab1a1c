"""A log directory: its owner, its lock and its contents."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.protocol.uuids import UUID
from parley.storage.clean_shutdown import (
    CLEAN_SHUTDOWN_FILE,
    CleanShutdown,
    common_epoch,
    read_marker,
    remove_marker,
    write_marker,
)
from parley.storage.log_directory import (
    Contents,
    DirectoryInUse,
    LogDirectory,
    Mark,
    is_in_use,
    parse_partition_name,
    partition_name,
    set_aside_name,
)
from parley.storage.meta_properties import (
    DirectoryIdentity,
    InconsistentBrokerId,
    InconsistentClusterId,
    MalformedIdentity,
    parse_properties,
)
from parley.storage.partition_metadata import (
    PartitionMetadata,
    decode_id,
    encode_id,
    read_partition_metadata,
    write_partition_metadata,
)
from tests.support.flipped_bits import each_bit_flipped

topics = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))


def opened(path: Path) -> LogDirectory:
    directory = LogDirectory(path)
    directory.open("cluster", 1, Random(1))
    return directory


# Whose it is


def test_a_new_directory_becomes_ours(tmp_path: Path) -> None:
    opened(tmp_path / "new" / "logs").close()
    path = tmp_path / "new/logs/meta.properties"
    text = path.read_text()
    assert text.startswith("version=0\nbroker.id=1\ncluster.id=cluster\ndirectory.id=")
    opened(tmp_path / "new" / "logs").close()
    assert path.read_text() == text


def test_a_directory_keeps_its_id_and_an_emptied_one_gets_another(tmp_path: Path) -> None:
    random = Random(1)
    first = LogDirectory(tmp_path)
    first.open("cluster", 1, random)
    first.close()
    again = LogDirectory(tmp_path)
    again.open("cluster", 1, random)
    again.close()
    assert (first.is_new, again.is_new) == (True, False)
    assert first.id == again.id is not None
    (tmp_path / "meta.properties").unlink()
    emptied = LogDirectory(tmp_path)
    emptied.open("cluster", 1, random)
    emptied.close()
    assert emptied.is_new
    assert emptied.id not in (None, first.id)


def test_kafkas_directory_id_is_kept(tmp_path: Path) -> None:
    identity = "node.id=1\ndirectory.id=Ynlx7-YETRmvDWQvWBzJ2A\nversion=1\ncluster.id=cluster\n"
    (tmp_path / "meta.properties").write_text(identity)
    directory = opened(tmp_path)
    assert directory.id == decode_id("Ynlx7-YETRmvDWQvWBzJ2A")
    assert not directory.is_new
    kept = DirectoryIdentity("cluster", 1, 1, "Ynlx7-YETRmvDWQvWBzJ2A")
    assert DirectoryIdentity.read(tmp_path) == kept, "with a checksum from the first start on"


def test_a_malformed_directory_id_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=cluster\ndirectory.id=x5_C\n")
    with pytest.raises(MalformedIdentity, match=r"directory\.id in .*meta\.properties is malformed.* remove that line"):
        opened(tmp_path)


def test_another_cluster_or_broker_is_refused_with_advice(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(InconsistentClusterId, match=r"belongs to cluster cluster.* coordination\.url"):
        LogDirectory(tmp_path).open("other", 1, Random(1))
    with pytest.raises(InconsistentBrokerId, match=r"belongs to broker 1, but this is broker 2.* broker\.id"):
        LogDirectory(tmp_path).open("cluster", 2, Random(1))
    opened(tmp_path).close()


def test_a_flipped_bit_alters_no_id_of_a_directory(tmp_path: Path) -> None:
    identity = DirectoryIdentity("NrHtHHIETh6Wm-5ICp566A", 1003, directory_id="8gmD-U3gQFaVziCS-ObZcQ")
    identity.write(tmp_path)
    path = tmp_path / "meta.properties"
    for altered in each_bit_flipped(path.read_bytes()):
        path.write_bytes(altered)
        with suppress(MalformedIdentity):
            found = DirectoryIdentity.read(tmp_path)
            assert found is not None
            assert replace(found, has_checksum=True) == identity, altered


def test_an_altered_identity_stops_the_start_with_advice(tmp_path: Path) -> None:
    opened(tmp_path).close()
    path = tmp_path / "meta.properties"
    path.write_text(path.read_text().replace("broker.id=1", "broker.id=3"))
    with pytest.raises(
        MalformedIdentity, match=r"meta\.properties was altered: its checksum is wrong.* remove its last"
    ):
        opened(tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InconsistentBrokerId, match="belongs to broker 3"):
        opened(tmp_path)


def test_kafka_reads_an_identity_with_a_checksum(tmp_path: Path) -> None:
    """The checksum is in a comment, and no value ends with a blank."""
    DirectoryIdentity("cluster", 1).write(tmp_path)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines[:-1] == ["version=0", "broker.id=1", "cluster.id=cluster"]
    assert lines[-1].startswith("#")


def test_kafkas_identities_are_read(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("#\n#Sat Nov 21 10:00:00 UTC 2026\ncluster.id=7Z-xQ_1hTsKQpIcsWGqVpw\nversion=0\nbroker.id=3\n")
    assert DirectoryIdentity.read(tmp_path) == DirectoryIdentity("7Z-xQ_1hTsKQpIcsWGqVpw", 3, has_checksum=False)
    path.write_text("node.id=4\ndirectory.id=x5_C\nversion=1\ncluster.id=abc\n")
    assert DirectoryIdentity.read(tmp_path) == DirectoryIdentity("abc", 4, 1, "x5_C", has_checksum=False)


def test_an_old_directory_without_a_cluster_joins_ours(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\n")
    directory = opened(tmp_path)
    assert directory.id is not None
    assert DirectoryIdentity.read(tmp_path) == DirectoryIdentity("cluster", 1, directory_id=encode_id(directory.id))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version=2\nbroker.id=1\n",
        "version=0\n",
        "version=1\nbroker.id=1\n",
        "version=0\nbroker.id=x\n",
        "version=1\nnode.id=1\n",
        "version=0\nbroker.id=-1\n",
        "\x00\x01",
    ],
)
def test_a_malformed_identity_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(MalformedIdentity, match=r"meta\.properties is malformed"):
        LogDirectory(tmp_path).open("cluster", 1, Random(1))


@given(st.binary(max_size=200) | st.text("version=01.brokeidcluster\n\\u# :", max_size=80).map(str.encode))
def test_any_bytes_of_an_identity_are_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / "meta.properties").write_bytes(data)
    (directory / "partition.metadata").write_bytes(data)
    for read in (DirectoryIdentity.read, read_partition_metadata):
        with suppress(MalformedIdentity):
            read(directory)


@given(st.text(min_size=1).filter(lambda text: text.isprintable() or "\n" in text))
def test_any_cluster_id_survives(tmp_path_factory: pytest.TempPathFactory, cluster_id: str) -> None:
    identity = DirectoryIdentity(cluster_id, 5, 1, "dir")
    identity.write(tmp_path_factory.getbasetemp())
    assert DirectoryIdentity.read(tmp_path_factory.getbasetemp()) == identity


def test_java_properties_are_understood() -> None:
    text = "! a\n # b\n\na=1\r\n b : 2 \nc 3\rd\\=e=f\\tg\nh=\\u0041\nempty=\nalone\n"
    assert parse_properties(text) == {
        "a": "1",
        "b": "2 ",
        "c": "3",
        "d=e": "f\tg",
        "h": "A",
        "empty": "",
        "alone": "",
    }


# partition.metadata


def test_the_topic_id_is_kept_in_kafkas_format(tmp_path: Path) -> None:
    topic_id = UUID("12345678-9abc-def0-1234-56789abcdef0")
    assert read_partition_metadata(tmp_path) is None
    write_partition_metadata(tmp_path, topic_id, 5)
    lines = [line.rstrip() for line in (tmp_path / "partition.metadata").read_text().splitlines()]
    assert lines == ["version: 0", "topic_id: EjRWeJq83vASNFZ4mrze8A", "partition: 5"]
    assert read_partition_metadata(tmp_path) == PartitionMetadata(topic_id, 5)
    (tmp_path / "partition.metadata").write_text("\n".join(lines))
    found = read_partition_metadata(tmp_path)
    assert found == PartitionMetadata(topic_id, 5, has_checksum=False), "as older versions write it"
    (tmp_path / "partition.metadata").write_text("\n".join(lines[:2]))
    found = read_partition_metadata(tmp_path)
    assert found == PartitionMetadata(topic_id, None, has_checksum=False), "as Apache Kafka writes it"


def test_a_flipped_bit_alters_neither_the_topic_id_nor_the_partition(tmp_path: Path) -> None:
    topic_id = UUID("12345678-9abc-def0-1234-56789abcdef0")
    write_partition_metadata(tmp_path, topic_id, 12)
    path = tmp_path / "partition.metadata"
    for altered in each_bit_flipped(path.read_bytes()):
        path.write_bytes(altered)
        with suppress(MalformedIdentity):
            found = read_partition_metadata(tmp_path)
            assert found is not None
            assert (found.topic_id, found.partition) == (topic_id, 12), altered


@pytest.mark.parametrize("text", ["", "version: 1\ntopic_id: EjRWeJq83vASNFZ4mrze8A", "version: 0\ntopic_id: short"])
def test_a_malformed_topic_id_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(MalformedIdentity, match=r"partition\.metadata"):
        read_partition_metadata(tmp_path)


@given(st.uuids())
def test_ids_as_text(value: UUID) -> None:
    assert decode_id(encode_id(value)) == value
    assert len(encode_id(value)) == 22


# Who uses it now


def test_a_second_broker_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(DirectoryInUse, match=str(tmp_path)):
        opened(tmp_path)
    with pytest.raises(DirectoryInUse):
        opened(tmp_path)
    assert is_in_use(tmp_path)
    first.close()
    first.close()
    assert not is_in_use(tmp_path)
    assert not is_in_use(tmp_path / "missing")
    opened(tmp_path).close()


def _hold(path: Path, held: Event, release: Event) -> None:
    opened(path)
    held.set()
    release.wait()


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    held, release = spawn.Event(), spawn.Event()
    holder = spawn.Process(target=_hold, args=(tmp_path, held, release))
    holder.start()
    assert held.wait(30)
    with pytest.raises(DirectoryInUse, match="in use by another broker"):
        opened(tmp_path)
    assert is_in_use(tmp_path)
    holder.kill()
    holder.join()
    opened(tmp_path).close()


def test_a_posix_lock_as_the_jvm_takes_it_is_respected_both_ways(tmp_path: Path) -> None:
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kafka:
        assert kafka.stdout is not None
        assert kafka.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUse):
            opened(tmp_path)
        assert is_in_use(tmp_path)
        kafka.communicate()
    ours = opened(tmp_path)
    refused = subprocess.run(command, input=b"", capture_output=True, check=False)
    assert b"BlockingIOError" in refused.stderr
    ours.close()


# What lies in it


@given(topics, st.integers(0, 2**31 - 1))
def test_partition_names_are_parsed(topic: str, partition: int) -> None:
    assert parse_partition_name(partition_name(topic, partition)) == (topic, partition)


@pytest.mark.parametrize(
    "name",
    ["", "topic", "-0", "topic-", "topic-x", "topic-01", "topic-2147483648", "..-0", "a b-0", "tøpic-0", "t-0\n"],
)
def test_other_names_are_not_partitions(name: str) -> None:
    assert parse_partition_name(name) is None


@given(topics, st.integers(0, 2**31 - 1), st.integers())
def test_deleted_names_fit_and_are_recognized(topic: str, partition: int, seed: int) -> None:
    name = set_aside_name(partition_name(topic, partition), Random(seed), Mark.DELETE)
    assert len(name) <= 255
    assert f"-{partition}." in name
    assert name.endswith("-delete")
    assert parse_partition_name(name) is None


@given(topics, st.integers(0, 2**31 - 1), st.integers())
def test_the_files_of_a_deleted_partition_are_found_by_its_name(topic: str, partition: int, seed: int) -> None:
    aside = Path(set_aside_name(partition_name(topic, partition), Random(seed), Mark.DELETE))
    contents = Contents({}, [aside], {})
    assert contents.has_deleted((topic, partition))
    assert not contents.has_deleted((topic, partition + 1))
    assert contents.has_deleted((f"{topic}bar", partition)) == (len(aside.name) == 255), "only if the name is shortened"


def test_contents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unique = "0123456789abcdef0123456789abcdef"
    names = ["a-0", "a-10", "b.c_d-e-3", f"a-1.{unique}-delete", f"b.c-2.{unique}-future", f"a-3.{unique}-stray"]
    for name in [*names, "lost+found", "my.stuff-delete", "__cluster_metadata-0", "coordination"]:
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").touch()
    with caplog.at_level(logging.INFO):
        contents = LogDirectory(tmp_path).contents()
    assert contents.partitions == {
        ("a", 0): tmp_path / "a-0",
        ("a", 10): tmp_path / "a-10",
        ("b.c_d-e", 3): tmp_path / "b.c_d-e-3",
    }
    assert contents.deleted == [tmp_path / f"a-1.{unique}-delete"]
    assert contents.copies == {("b.c", 2): tmp_path / f"b.c-2.{unique}-future"}
    left_alone = {Path(vars(line)["path"]).name for line in caplog.records if line.message.startswith("ignoring a ")}
    assert left_alone == {
        f"a-3.{unique}-stray",
        "lost+found",
        "my.stuff-delete",
        "__cluster_metadata-0",
    }


def test_a_deleted_partition_is_set_aside_and_removed(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    path = directory.create("topic-0", UUID(int=7), 0)
    assert read_partition_metadata(path) == PartitionMetadata(UUID(int=7), 0)
    (path / "00000000000000000000.log").write_bytes(b"data")
    assert directory.create("topic-0", None, 0) == path
    aside = directory.set_aside(path, Random(1), Mark.DELETE)
    assert directory.contents().partitions == {}
    assert directory.contents().deleted == [aside]
    directory.remove(aside)
    directory.remove(aside)
    assert directory.contents().deleted == []


def test_a_clean_shutdown_counts_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    assert not read_marker(directory.path)
    write_marker(directory.path, 7)
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).read_text() == '{"version":0,"brokerEpoch":7}'
    assert read_marker(directory.path) == CleanShutdown(7)
    remove_marker(directory.path)
    assert not read_marker(directory.path)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"[]", b"{}", b'{"brokerEpoch":"1"}', b'{"brokerEpoch":-1}']
)
def test_a_marker_without_an_epoch_still_marks_a_clean_shutdown(tmp_path: Path, data: bytes) -> None:
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(data)
    assert read_marker(tmp_path) == CleanShutdown(-1)


@pytest.mark.parametrize(
    ("epochs", "common"), [([], -1), ([3], 3), ([3, 3], 3), ([3, 4], -1), ([3, None], -1), ([None], -1)]
)
def test_a_shutdown_is_clean_if_all_directories_have_the_same_epoch(epochs: list[int | None], common: int) -> None:
    assert common_epoch([None if epoch is None else CleanShutdown(epoch) for epoch in epochs]) == common


def test_a_directory_fails_once(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    first, second = OSError(5, "Input/output error"), OSError(28, "No space left on device")
    assert directory.online
    assert directory.fail(first)
    assert not directory.fail(second)
    assert not directory.online
    assert directory.error is first


def test_the_lock_does_not_outlive_a_failed_start(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(InconsistentClusterId):
        LogDirectory(tmp_path).open("other", 1, Random(1))
    assert os.path.exists(tmp_path / ".lock")
    opened(tmp_path).close()


def test_a_directory_with_a_partitions_name_but_no_log_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, files in {
        "empty-0": (),
        "new-0": ("partition.metadata",),
        "old-0": ("00000000000000000000.log", "00000000000000000000.index"),
        "broker-1": ("meta.properties", ".lock"),
        "backup-2": ("notes.txt",),
        "both-3": ("00000000000000000000.log", "meta.properties"),
    }.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    assert sorted(LogDirectory(tmp_path).contents().partitions) == [("empty", 0), ("new", 0), ("old", 0)]
    left_alone = {vars(line)["path"] for line in caplog.records if line.message.startswith("ignoring a ")}
    assert left_alone == {str(tmp_path / name) for name in ("broker-1", "backup-2", "both-3")}
