"""The whole chain: a serializer of Confluent's client, the registry, Spark's typed columns, and back to a topic."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.registry.running import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "int", "default": 7}]}
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC)


def order(number: int, **more: Any) -> dict[str, Any]:
    price = Decimal(number) / 4
    return {"id": number, "price": price, "at": AT, "tags": ["a"], "counts": {"x": number}, "note": None, **more}


@pytest.fixture(scope="module")
def registry(kafka_broker: KafkaBroker) -> Iterator[str]:
    with running(kafka_broker.bootstrap_servers, "schemas-of-spark") as url:
        yield url


def produce(broker: KafkaBroker, url: str, topic: str, schema: Any, values: list[Any]) -> None:
    write = AvroSerializer(SchemaRegistryClient({"url": url}), json.dumps(schema))
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for value in values:
            producer.produce(topic, write(value, SerializationContext(topic, MessageField.VALUE)))


def consume(broker: KafkaBroker, url: str, topic: str, count: int) -> list[Any]:
    read = AvroDeserializer(SchemaRegistryClient({"url": url}))
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "typed", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, 60)
        return [read(one.value(), SerializationContext(topic, MessageField.VALUE)) for one in messages]
    finally:
        consumer.close()


def test_from_a_serializer_to_delta_and_back(
    kafka_broker: KafkaBroker, registry: str, spark: SparkSession, tmp_path: Path
) -> None:
    from deltalake import DeltaTable, write_deltalake

    source, target = kafka_broker.create_topic("typed-orders"), kafka_broker.create_topic("typed-copied")
    produce(kafka_broker, registry, source, ORDER, [order(1), order(2, note="é")])
    produce(kafka_broker, registry, source, NEWER, [order(3, more=9)])
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "valueFormat": "avro",
        "schema.registry.url": registry,
    }

    def read(**more: str) -> Any:
        return spark.read.format("parley").options(**options, subscribe=source, **more).load()

    rows = read().orderBy("offset").select("value.*")
    assert [row.more for row in rows.collect()] == [7, 7, 9], "older data is read into the newest schema"
    older = read(valueSchemaVersion="1").orderBy("offset").select("value.*")
    assert older.columns == [one["name"] for one in ORDER["fields"]]
    assert [row.price for row in older.collect()] == [Decimal("0.25"), Decimal("0.50"), Decimal("0.75")]

    def to_delta(batch: Any, _: int) -> None:
        write_deltalake(str(tmp_path / "orders"), batch.toArrow(), mode="append")

    stream = spark.readStream.format("parley").options(**options, subscribe=source, startingOffsets="earliest")
    query = stream.load().select("value.*").writeStream.foreachBatch(to_delta).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    stored = sorted(DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().to_pylist(), key=lambda one: one["id"])
    assert [(one["id"], one["price"], one["at"], one["note"], one["more"]) for one in stored] == [
        (1, Decimal("0.25"), AT, None, 7),
        (2, Decimal("0.50"), AT, "é", 7),
        (3, Decimal("0.75"), AT, None, 9),
    ]
    writing = read().select("value").write.format("parley").options(**options, topic=target)
    writing.mode("append").save()
    copied = sorted(consume(kafka_broker, registry, target, 3), key=lambda one: one["id"])
    assert copied == [order(1, more=7), order(2, note="é", more=7), order(3, more=9)]

    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}) as producer:
        producer.produce(source, b"no schema")
        producer.produce(source, None)
    assert [row.value is None for row in read(mode="PERMISSIVE").orderBy("offset").collect()] == [False] * 3 + [
        True
    ] * 2
    expected = r"typed-orders-\d at offset \d+ cannot be read: the value does not begin with a schema id"
    with pytest.raises(Exception, match=expected):
        read().collect()


@pytest.mark.parametrize("language", ["json-schema", "protobuf"])
def test_other_languages_there_and_back(
    kafka_broker: KafkaBroker, registry: str, spark: SparkSession, language: str
) -> None:
    topic = kafka_broker.create_topic(f"typed-{language}")
    options = {
        "kafka.bootstrap.servers": kafka_broker.bootstrap_servers,
        "valueFormat": language,
        "schema.registry.url": registry,
    }
    made = spark.sql(
        "SELECT named_struct('a', 1L, 'b', 'é', 'c', array(1.5D, -0.25D), 'd', named_struct('e', true), 'f',"
        " map('k', 2L), 'g', cast(NULL AS STRING)) AS value"
    )
    made.write.format("parley").options(**options, topic=topic).mode("append").save()
    found = spark.read.format("parley").options(**options, subscribe=topic).load().select("value")
    assert found.collect() == made.collect()
    kind = {"json-schema": "JSON", "protobuf": "PROTOBUF"}[language]
    assert SchemaRegistryClient({"url": registry}).get_latest_version(f"{topic}-value").schema.schema_type == kind


def test_a_registry_that_does_not_know_the_subject(
    kafka_broker: KafkaBroker, registry: str, spark: SparkSession
) -> None:
    reading = spark.read.format("parley").option("kafka.bootstrap.servers", kafka_broker.bootstrap_servers)
    typed = reading.options(**{"valueFormat": "avro", "schema.registry.url": registry})
    with pytest.raises(Exception, match="Subject 'absent-value' not found"):
        typed.option("subscribe", "absent").load()
    SchemaRegistryClient({"url": registry}).register_schema("both-value", Schema('"string"', "AVRO"))
    with pytest.raises(Exception, match="set 'valueSubject' to the subject"):
        typed.option("subscribe", "a,b").load()
