"""kcat with Debian's librdkafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from tests.system.running import BrokerProcess

TIMESTAMP = 1_700_000_000_000


def kcat(broker: BrokerProcess, *words: str, stdin: str = "") -> str:
    patient = ("-m", "60")  # with metadata; it gives up after 5 s by itself
    command = ["kcat", "-b", broker.bootstrap_servers, *patient, *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_produce_and_consume(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        kcat(broker, "-P", "-t", topic, "-p", "1", "-K:", "-H", "h=1", "-z", codec, stdin=f"k:{codec}\n")
    found = kcat(broker, "-C", "-t", topic, "-p", "1", "-e", "-q", "-f", "%o %k %s %h\n")
    assert found.splitlines() == [
        f"{offset} k {codec} h=1" for offset, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd"))
    ]
    assert kcat(broker, "-C", "-t", topic, "-p", "1", "-e", "-q", "-o", "-1", "-f", "%s").strip() == "zstd"


def test_metadata(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    found = json.loads(kcat(broker, "-L", "-J", "-t", topic))
    assert [each["name"] for each in found["brokers"]] == [broker.bootstrap_servers]
    (described,) = found["topics"]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert f'topic "{topic}" with 3 partitions' in kcat(broker, "-L")


def test_offsets_by_time(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    kcat(broker, "-P", "-t", topic, stdin="a\nb\nc\n")
    assert kcat(broker, "-Q", "-t", f"{topic}:0:-2").split()[-1] == "0"
    assert kcat(broker, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "3"
    assert kcat(broker, "-Q", "-t", f"{topic}:0:{TIMESTAMP}").split()[-1] == "0"


def test_a_group(broker: BrokerProcess, new_topic: Callable[..., str], new_name: Callable[..., str]) -> None:
    topic, group = new_topic(partitions=2), new_name("g")
    kcat(broker, "-P", "-t", topic, stdin="".join(f"{number}\n" for number in range(100)))
    words = ("-G", group, "-q", "-X", "auto.offset.reset=earliest", topic)
    first = kcat(broker, "-c", "60", *words)
    rest = kcat(broker, "-c", "40", *words)
    assert sorted(map(int, (first + rest).split())) == list(range(100))


def test_the_oldest_versions_librdkafka_speaks(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    for version in ("0.9.0", "0.10.0", "0.10.2", "0.11.0", "1.0.0"):
        old = ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")
        codec = ("-z", "gzip" if version != "0.9.0" else "snappy")
        kcat(broker, "-P", "-t", topic, "-k", "k", *codec, *old, stdin=f"{version}\n")
        read = kcat(broker, "-C", "-t", topic, "-e", "-q", "-o", "beginning", *old)
        assert read.splitlines()[-1] == version
