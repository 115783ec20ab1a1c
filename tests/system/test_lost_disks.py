"""All brokers are killed, and the disk of one is emptied or damaged: no acknowledged record is lost.

The damaged broker starts first, and is alone for a while. Before eligible leader replicas (KIP-966) it was elected, and
the other replicas were truncated to match it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley.storage.boot_id import BOOT_FILE
from tests.system.clusters import IMPATIENT, POLL_S, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.running import BrokerDied, BrokerProcess
from tests.system.test_confluent_produce import read, send

pytestmark = pytest.mark.slow

TOPIC = "kept"
RECORDS = [b"%06d" % number + b"x" * 994 for number in range(3000)]
LOSS = "a leader was elected that may lack acknowledged records"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path, overrides={"replica.high.watermark.checkpoint.interval.ms": "200"})
    with cluster.running():
        cluster.create_topic(TOPIC, min_insync_replicas="2", segment_bytes="1048576")
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True}
        with Producer(settings) as producer:
            send(producer, TOPIC, RECORDS)
        cluster.wait_until_in_sync()
        yield cluster


def emptied(broker: BrokerProcess) -> None:
    shutil.rmtree(broker.data)


def flipped(broker: BrokerProcess) -> None:
    """Change eight bytes of the first segment."""
    path = segments(broker)[0]
    data = bytearray(path.read_bytes())
    data[5000:5008] = bytes(byte ^ 0xFF for byte in data[5000:5008])
    path.write_bytes(data)


def cut(broker: BrokerProcess) -> None:
    """Empty the active segment."""
    path = segments(broker)[-1]
    path.write_bytes(b"")


def beheaded(broker: BrokerProcess) -> None:
    """Delete all segments except the active one."""
    for segment in segments(broker)[:-1]:
        for path in segment.parent.glob(f"{segment.stem}.*"):
            path.unlink()


def removed(broker: BrokerProcess) -> None:
    shutil.rmtree(broker.data / f"{TOPIC}-0")


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data / f"{TOPIC}-0").glob("*.log"))


def everything_is_there(cluster: ClusterOfProcesses, first: int) -> None:
    """Start one broker before the others. Then every record must be there."""
    cluster.brokers[first].start()
    cluster.start_all()
    cluster.wait_until_in_sync()
    values = [message.value() for message in read(cluster.brokers[cluster.leader(TOPIC)], TOPIC)]
    assert values == RECORDS
    assert not any(LOSS in broker.log() for broker in cluster.brokers.values())


@pytest.mark.parametrize(
    "damage",
    [emptied, *(pytest.param(each, marks=pytest.mark.soak) for each in (None, cut, flipped, beheaded, removed))],
)
def test_all_are_killed_and_a_damaged_one_starts_first(
    cluster: ClusterOfProcesses, damage: Callable[[BrokerProcess], None] | None
) -> None:
    leader = cluster.leader(TOPIC)
    first = leader if damage in (emptied, beheaded) else leader % 3 + 1
    for broker in cluster.brokers.values():
        broker.kill()
    if damage is not None:
        damage(cluster.brokers[first])
    everything_is_there(cluster, first)


@pytest.mark.soak
def test_after_a_power_cut_of_all_machines_unsynced_records_may_be_missing(cluster: ClusterOfProcesses) -> None:
    """Nothing is missing here, but no broker can know: the machine seems to have restarted."""
    for broker in cluster.brokers.values():
        broker.kill()
        (broker.data / BOOT_FILE).write_text("another boot")
    everything_is_there(cluster, 1)
    assert any(
        "acknowledged records that had not been synced may be missing" in b.log() for b in cluster.brokers.values()
    )


def test_brokers_are_killed_one_after_the_other_and_the_last_one_is_emptied(cluster: ClusterOfProcesses) -> None:
    last = cluster.leader(TOPIC)
    for number in cluster.brokers:
        if number != last:
            cluster.brokers[number].kill()
            while number in cluster.metadata(TOPIC).topics[TOPIC].partitions[0].isrs:
                time.sleep(POLL_S)
    cluster.brokers[last].kill()
    emptied(cluster.brokers[last])
    everything_is_there(cluster, last)


@pytest.mark.soak
def test_a_broker_that_stopped_cleanly_lost_a_partition_since_and_starts_first(cluster: ClusterOfProcesses) -> None:
    """It is an eligible leader replica, and takes office as the controller that elects."""
    last = cluster.leader(TOPIC)
    first, second = (number for number in cluster.brokers if number != last)
    for number in (first, second):
        cluster.brokers[number].stop()
    cluster.brokers[last].kill()
    removed(cluster.brokers[second])
    everything_is_there(cluster, second)


@pytest.mark.soak
def test_directories_are_exchanged(tmp_path: Path, new_name: Callable[..., str]) -> None:
    """The two directories of a broker are swapped; then the disks of two brokers, whose ids the operator corrects.

    These two brokers may start before the third has a session again. Then they alone are in the ISR until the
    controller learns of their different directories. So the controller cannot rule out a loss and logs that. Nothing is
    lost.
    """
    cluster = ClusterOfProcesses(tmp_path)
    for broker in cluster.brokers.values():
        broker.overrides["log.dirs"] = f"{broker.data},{broker.data}-2"
    with (
        cluster.running(),
        watched(*cluster.brokers.values()),
        losing_nothing(cluster, new_name(), client=IMPATIENT) as running,
    ):
        running.wait_for_acknowledged(60)
        for number, end in ((1, BrokerProcess.stop), (2, BrokerProcess.kill)):
            broker = cluster.brokers[number]
            end(broker)
            exchange(broker.data, broker.data.with_name("data-2"))
            cluster.start_all()
            cluster.wait_until_in_sync()
            running.wait_for_acknowledged(60)
        for broker in cluster.brokers.values():
            broker.kill()
        one, other = cluster.brokers[1], cluster.brokers[2]
        for name in ("data", "data-2"):
            exchange(one.folder / name, other.folder / name)
        for broker in (one, other):
            with pytest.raises(BrokerDied, match="belongs to broker"):
                broker.start()
            for path in broker.folder.glob("data*/meta.properties"):
                own = f"broker.id={broker.overrides['broker.id']}"
                path.write_text(re.sub(r"broker\.id=\d", own, path.read_text()).partition("#")[0])
        cluster.start_all(order=(1, 2, 3))
        cluster.wait_until_in_sync()
        running.wait_for_acknowledged(60)


def exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_a_single_broker_serves_again_after_a_kill(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker()
    broker.start()
    send(Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all"}), TOPIC, RECORDS[:10])
    broker.kill()
    broker.start()
    assert [message.value() for message in read(broker, TOPIC)] == RECORDS[:10]
    assert LOSS not in broker.log()
