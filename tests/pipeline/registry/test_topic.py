"""The topic of schemas: Confluent's format, kills, and the remains of aborted transactions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from parley.pipeline.registry.state import State
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.registry.running import running
from tests.support.http import HTTP, HTTP_TIMEOUT_S

pytestmark = pytest.mark.slow

CONFLUENTS = [
    (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
     b'{"subject":"a","version":1,"id":3,"md5":"Zm9v","schema":"\\"string\\"","deleted":false}'),
    (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"FULL"}'),
    (b'{"keytype":"NOOP","magic":0}', None),
    (b'{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}', b"{}"),
    (b"no JSON", b"{}"),
    (b'{"keytype":"SCHEMA","subject":"b","version":2,"magic":1}',
     b'{"subject":"b","version":2,"id":9,"schemaType":"JSON","schema":"{\\"type\\": \\"string\\"}","deleted":false}'),
    (b'{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', b'{"subject":"a","version":1}'),
]  # fmt: skip


def test_records_of_confluents_registry_are_read() -> None:
    state = State()
    for key, value in CONFLUENTS:
        state.apply(key, value)
    assert [(one.subject, one.version) for one in state.with_id(3)] == [("a", 1)]
    assert state.versions("a") == []
    assert state.versions("a", deleted=True)[0].record(deleted=True)[1] == (
        b'{"subject":"a","version":1,"id":3,"md5":"Zm9v","schema":"\\"string\\"","deleted":true}'
    )
    assert (state.id_max, state.configs) == (9, {None: {"compatibilityLevel": "FULL"}})
    state.apply(CONFLUENTS[0][0], None)
    assert (state.subjects(), state.with_id(3)) == (["b"], [])


def last_values(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """Return the last value of each key, including those of aborted transactions."""
    settings = {"group.id": "x", "isolation.level": "read_uncommitted", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: dict[bytes, bytes | None] = {}
        while (message := consumer.poll(30)) is not None and not message.error():
            found[message.key() or b""] = message.value()
        assert message is not None
        return found
    finally:
        consumer.close()


def test_records_of_aborted_transactions_are_written_over(kafka_broker: KafkaBroker) -> None:
    topic = "schemas-with-aborted"
    key, ghost = b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', b'{"subject":"a","version":1,"id":77}'
    new = key.replace(b'"a"', b'"b"')
    with running(kafka_broker.bootstrap_servers, topic) as url:
        for subject in ("a", "deleted"):
            HTTP.post(f"{url}/subjects/{subject}/versions", json={"schema": '"int"'}).raise_for_status()
        HTTP.delete(f"{url}/subjects/deleted").raise_for_status()
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": f"schema-registry-{topic}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, ghost, key)
    producer.produce(topic, ghost, new)
    producer.produce(topic, None, key.replace(b'"a"', b'"deleted"'))
    producer.flush(30)  # now it is killed: the next writer aborts its transaction
    with running(kafka_broker.bootstrap_servers, topic) as url:
        assert HTTP.get(f"{url}/subjects").json() == ["a"]
        assert HTTP.get(f"{url}/subjects?deleted=true").json() == ["a", "deleted"]
        made = HTTP.post(f"{url}/subjects/c/versions", json={"schema": '"long"'}).json()
        assert made["id"] == 2
    uncommitted = last_values(kafka_broker.bootstrap_servers, topic)
    assert uncommitted[new] is None
    assert json.loads(uncommitted[key] or b"")["id"] == 1
    assert json.loads(uncommitted[key.replace(b'"a"', b'"deleted"')] or b"")["deleted"] is True


@contextmanager
def process(bootstrap: str, topic: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "parley", "registry", "--bootstrap-server", bootstrap]
    command += ["--listeners", "http://127.0.0.1:0", "--override", f"kafkastore.topic={topic}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running, running.stdout.readline().rpartition(" ")[2].strip()
        finally:
            running.kill()


def test_confirmed_schemas_survive_a_kill(kafka_broker: KafkaBroker) -> None:
    topic, confirmed = "schemas-with-kills", {}
    with (
        process(kafka_broker.bootstrap_servers, topic) as (server, url),
        httpx.Client(base_url=url, timeout=HTTP_TIMEOUT_S) as client,
    ):
        for number in range(5):
            schema = {"schema": f'{{"type":"record","name":"s{number}","fields":[]}}'}
            confirmed[number] = client.post(f"/subjects/s{number}/versions", json=schema).json()["id"]
        server.send_signal(signal.SIGKILL)
        server.wait()
    with running(kafka_broker.bootstrap_servers, topic) as url:
        found = {number: HTTP.get(f"{url}/subjects/s{number}/versions/1").json()["id"] for number in confirmed}
    assert found == confirmed == {number: number + 1 for number in range(5)}
