"""The registry as clients see it: ``confluent_kafka.schema_registry``, with its serializers, and plain HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from parley.pipeline.schemas import model, protobuf
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.registry.running import running
from tests.support.http import HTTP

pytestmark = pytest.mark.slow

ORDER = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
WIDER = ORDER.replace("}]}", '},{"name":"note","type":["null","string"],"default":null}]}')
BROKEN = ORDER.replace('"long"', '"string"')
CONTEXT = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture(scope="module")
def url(kafka_broker: KafkaBroker) -> Iterator[str]:
    with running(kafka_broker.bootstrap_servers, "schemas-of-clients") as url:
        yield url


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


@pytest.fixture
def subject() -> str:
    return f"s-{uuid.uuid4().hex[:8]}"


def code_of(call: Any, *arguments: Any, **named: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*arguments, **named)
    return caught.value.http_status_code, caught.value.error_code


def test_schemas_have_one_id_and_versions_count_up(client: SchemaRegistryClient, subject: str) -> None:
    first = client.register_schema(subject, Schema(ORDER, "AVRO"))
    spaced = ORDER.replace(",", ", ").replace('"name":"Order","namespace":"shop"', '"name": "shop.Order"')
    assert client.register_schema(subject, Schema(spaced, "AVRO")) == first
    assert client.register_schema(f"{subject}/other é", Schema(ORDER, "AVRO")) == first
    second = client.register_schema(subject, Schema(WIDER, "AVRO"))
    assert second > first
    assert client.get_versions(subject) == [1, 2]
    assert client.get_latest_version(subject).schema_id == second
    assert SchemaRegistryClient.get_schema(client, first).schema_str == ORDER
    assert client.lookup_schema(subject, Schema(ORDER, "AVRO")).version == 1
    assert f"{subject}/other é" in client.get_subjects()
    assert code_of(client.lookup_schema, subject, Schema('"int"', "AVRO")) == (404, 40403)
    assert code_of(client.get_version, "not there", 1) == (404, 40401)
    assert code_of(client.get_version, subject, 7) == (404, 40402)
    assert code_of(client.get_schema, 100_000) == (404, 40403)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type":"record"}'),
        ("AVRO", "no JSON"),
        ("JSON", '{"type":"nonsense"}'),
        ("JSON", '{"$ref":"http://elsewhere/x"}'),
        ("PROTOBUF", 'syntax = "proto3"; message M { strange a = 1; }'),
        ("PROTOBUF", 'syntax = "proto3"; import "other.proto"; message M { }'),
    ],
)
def test_an_invalid_schema_is_refused(client: SchemaRegistryClient, subject: str, kind: str, text: str) -> None:
    assert code_of(client.register_schema, subject, Schema(text, kind)) == (422, 42201)
    assert subject not in client.get_subjects()


def test_the_level_decides_which_schema_may_follow(client: SchemaRegistryClient, subject: str) -> None:
    client.register_schema(subject, Schema(ORDER, "AVRO"))
    assert code_of(client.register_schema, subject, Schema(BROKEN, "AVRO")) == (409, 409)
    assert not client.test_compatibility(subject, Schema(BROKEN, "AVRO"))
    assert client.test_compatibility(subject, Schema(WIDER, "AVRO"))
    assert code_of(client.get_compatibility, subject) == (404, 40408)
    assert code_of(client.set_compatibility, subject, "strange") == (422, 42203)
    client.set_compatibility(subject, "none")
    assert client.get_compatibility(subject) == "NONE"
    assert client.test_compatibility(subject, Schema(BROKEN, "AVRO"))
    client.register_schema(subject, Schema(BROKEN, "AVRO"))
    client.set_compatibility(subject, "BACKWARD_TRANSITIVE")
    assert client.test_compatibility(subject, Schema(BROKEN, "AVRO"))  # which is the latest
    assert not client.test_compatibility_all_versions(subject, Schema(BROKEN, "AVRO"))
    client.delete_config(subject)
    assert code_of(client.get_compatibility, subject) == (404, 40408)


def test_deletion_is_soft_first(client: SchemaRegistryClient, url: str, subject: str) -> None:
    number = client.register_schema(subject, Schema(ORDER, "AVRO"))
    client.register_schema(subject, Schema(WIDER, "AVRO"))
    path = f"{url}/subjects/{subject}"
    assert HTTP.delete(f"{path}/versions/1?permanent=true").json()["error_code"] == 40407
    assert HTTP.delete(f"{path}/versions/1").json() == 1
    assert HTTP.delete(f"{path}/versions/1").json()["error_code"] == 40406
    assert HTTP.get(f"{path}/versions?deleted=true").json() == [1, 2]
    assert HTTP.get(f"{url}/schemas/ids/{number}").json()["schema"] == ORDER
    assert HTTP.delete(f"{path}?permanent=true").json()["error_code"] == 40405
    assert HTTP.delete(path).json() == [2]
    assert HTTP.delete(path).json()["error_code"] == 40404
    assert subject not in HTTP.get(f"{url}/subjects").json()
    assert subject in HTTP.get(f"{url}/subjects?deletedOnly=true").json()
    assert SchemaRegistryClient({"url": url}).register_schema(subject, Schema(ORDER, "AVRO")) == number
    assert HTTP.get(f"{path}/versions").json() == [3]
    assert HTTP.delete(path).json() == [3]
    assert HTTP.delete(f"{path}?permanent=true").json() == [1, 2, 3]
    assert HTTP.get(f"{path}/versions?deleted=true").json()["error_code"] == 40401


def test_modes(client: SchemaRegistryClient, url: str, subject: str) -> None:
    number = client.register_schema(subject, Schema(ORDER, "AVRO"))
    assert code_of(client.get_mode, subject) == (404, 40409)
    client.update_mode(subject, "READONLY")
    assert code_of(client.register_schema, subject, Schema(WIDER, "AVRO")) == (422, 42205)
    assert client.lookup_schema(subject, Schema(ORDER, "AVRO")).schema_id == number
    client.delete_mode(subject)
    assert code_of(client.update_mode, subject, "IMPORT") == (422, 42205)
    copied = f"{subject}-copied"
    client.update_mode(copied, "IMPORT")
    body = {"schema": WIDER, "id": 90_000, "version": 7}
    assert HTTP.post(f"{url}/subjects/{copied}/versions", json=body).json()["id"] == 90_000
    assert client.get_versions(copied) == [7]
    assert HTTP.post(f"{url}/subjects/{subject}/versions", json=body).json()["error_code"] == 42205


def test_invalid_requests_are_refused_before_the_schema_is_parsed(url: str, subject: str) -> None:
    path = f"{url}/subjects/{subject}/versions"
    assert HTTP.post(path, content=b"{").status_code == 400
    assert HTTP.post(path, content=b" " * (5 << 20)).status_code == 413
    assert HTTP.post(path, json=[]).status_code == 422
    assert HTTP.post(path, json={"schema": '"int"', "ruleSet": {"domainRules": []}}).json()["error_code"] == 42210
    assert HTTP.post(path, json={"schema": f'"{"x" * 950_000}"'}).json()["error_code"] == 42209
    assert HTTP.get(f"{path}/0").json()["error_code"] == 42202
    assert HTTP.get(f"{url}/subjects/%3A.ctx%3As/versions").json()["error_code"] == 42208
    assert HTTP.get(f"{url}/nothing").status_code == 404
    assert httpx.patch(f"{url}/config").status_code == 405
    assert HTTP.get(f"{url}/schemas/types").json() == ["JSON", "PROTOBUF", "AVRO"]


def test_avro_serializers(client: SchemaRegistryClient, subject: str) -> None:
    context = SerializationContext(subject, MessageField.VALUE)
    client.register_schema(f"{subject}-order", Schema(ORDER, "AVRO"))
    outer = (
        '{"type":"record","name":"Basket","fields":[{"name":"orders","type":{"type":"array","items":"shop.Order"}}]}'
    )
    named = Schema(outer, "AVRO", [SchemaReference("shop.Order", f"{subject}-order", 1)])
    value = {"orders": [{"id": 1}, {"id": 2}]}
    data = AvroSerializer(client, named)(value, context)
    assert AvroDeserializer(client)(data, context) == value
    referring = client._rest_client.get(f"subjects/{subject}-order/versions/1/referencedby")
    assert referring == [client.get_latest_version(f"{subject}-value").schema_id]
    assert code_of(client.delete_subject, f"{subject}-order") == (422, 42206)


def test_json_serializers(client: SchemaRegistryClient, subject: str) -> None:
    context = SerializationContext(subject, MessageField.VALUE)
    text = '{"title":"Item","type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    data = JSONSerializer(text, client)({"n": 5}, context)
    assert JSONDeserializer(text)(data, context) == {"n": 5}
    narrowed = text.replace('"integer"', '"string"')
    assert code_of(client.register_schema, f"{subject}-value", Schema(narrowed, "JSON")) == (409, 409)


def test_protobuf_serializers(client: SchemaRegistryClient, url: str, subject: str) -> None:
    context = SerializationContext(subject, MessageField.VALUE)
    text = (
        'syntax = "proto3"; package p; import "google/protobuf/timestamp.proto";'
        "message Event { string name = 1; repeated int64 numbers = 2; google.protobuf.Timestamp at = 3; }"
    )
    schema = model.Schema(model.SchemaType.PROTOBUF, text)
    files = protobuf.files_of(schema, lambda reference: pytest.fail(f"{reference}"))
    kind = GetMessageClass(protobuf.pool_of(files).FindMessageTypeByName("p.Event"))
    event = kind(name="é", numbers=[1, -2])
    data = ProtobufSerializer(kind, client, {"use.deprecated.format": False})(event, context)
    assert ProtobufDeserializer(kind, {"use.deprecated.format": False})(data, context) == event
    stored = HTTP.get(f"{url}/subjects/{subject}-value/versions/1").json()
    assert "message Event {" in stored["schema"]
    assert client.lookup_schema(f"{subject}-value", Schema(text, "PROTOBUF")).version == 1
    coded = HTTP.get(f"{url}/schemas/ids/{stored['id']}?format=serialized").json()["schema"]
    assert client.lookup_schema(f"{subject}-value", Schema(coded, "PROTOBUF")).version == 1


def test_instances_write_by_turns(kafka_broker: KafkaBroker, url: str, subject: str) -> None:
    def record(name: str) -> Schema:
        return Schema(f'{{"type":"record","name":"{name}","fields":[]}}', "AVRO")

    with running(kafka_broker.bootstrap_servers, "schemas-of-clients") as other:
        clients = [SchemaRegistryClient({"url": one}) for one in (url, other)]
        for one in clients:
            one.set_compatibility(subject, "NONE")
        names = [(which, number) for number in range(6) for which in (0, 1)]
        with ThreadPoolExecutor(4) as pool:
            ids = list(pool.map(lambda one: clients[one[0]].register_schema(subject, record(f"R{one[1]}")), names))
        assert ids[::2] == ids[1::2], "both instances gave a schema the same id"
        assert len(set(ids)) == 6
        for address in (url, other):
            assert HTTP.get(f"{address}/subjects/{subject}/versions").json() == [1, 2, 3, 4, 5, 6]
