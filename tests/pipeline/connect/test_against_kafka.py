"""Kafka Connect's own classes as the reference: our converters and transforms treat a record as Kafka's do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from parley.pipeline.connect.converters.json_converter import JsonConverter
from parley.pipeline.connect.data import NO_VALUE, STRING
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.records import Header, SourceRecord
from parley.pipeline.connect.text_values import parse, to_text
from parley.pipeline.connect.transforms import Predicate, Transform
from tests.system import peers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "orders-eu"
TIMESTAMP = 1_700_000_123_456
PACKAGE = "org.apache.kafka.connect.transforms."


def field(called: str, kind: str, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": called, **more}


def structure(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": False, **more}


ADDRESS = structure(field("city", "string"), field("zip", "int32", True), name="address")
SCHEMA = structure(
    field("id", "int64"),
    field("name", "string", True),
    field("small", "int8"),
    field("price", "double"),
    field("ratio", "float", True),
    field("done", "boolean"),
    field("raw", "bytes", True),
    field("with_default", "string", True, default="usual"),
    field("cost", "bytes", name="org.apache.kafka.connect.data.Decimal", version=1, parameters={"scale": "2"}),
    field("day", "int32", name="org.apache.kafka.connect.data.Date", version=1),
    field("hour", "int32", name="org.apache.kafka.connect.data.Time", version=1),
    field("moment", "int64", name="org.apache.kafka.connect.data.Timestamp", version=1),
    field("text_moment", "string"),
    field("tags", "array", items={"type": "string", "optional": False}),
    field("counts", "map", keys={"type": "string", "optional": False}, values={"type": "int32", "optional": False}),
    {**ADDRESS, "field": "address"},
    {**ADDRESS, "optional": True, "field": "second"},
    name="order",
    version=3,
    doc="an order",
)
PAYLOAD = {
    "id": 1234567890123,
    "name": None,
    "small": 7,
    "price": 12.75,
    "ratio": 0.5,
    "done": True,
    "raw": "AAEC",
    "with_default": None,
    "cost": "BNI=",
    "day": 19000,
    "hour": 3_600_000,
    "moment": TIMESTAMP,
    "text_moment": "2023-11-14 22:15:23.456",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "address": {"city": "Ulm", "zip": None},
    "second": None,
}
TYPED = {"schema": SCHEMA, "payload": PAYLOAD}
PLAIN = {
    "schema": None,
    "payload": {"id": 5, "name": "n", "price": 1.5, "done": False, "nested": {"a": {"b": 1}, "l": [1, 2]}, "none": None,
                "text": "17", "a.b": "dotted"},
}  # fmt: skip
TEXT = {"schema": {"type": "string", "optional": False}, "payload": "2023-11-14"}
WITHOUT_MAP = {
    "schema": SCHEMA | {"fields": [one for one in SCHEMA["fields"] if one["field"] != "counts"]},
    "payload": {name: value for name, value in PAYLOAD.items() if name != "counts"},
}
NULL: dict[str, Any] = {"schema": None, "payload": None}
NOTHING = {"schema": SCHEMA | {"optional": True}, "payload": None}

CASES: list[tuple[str, dict[str, str], list[dict[str, Any]]]] = [
    ("InsertField$Value", {"topic.field": "t", "partition.field": "p!", "timestamp.field": "ts?", "static.field": "s",
                           "static.value": "v"}, [TYPED, PLAIN, NOTHING]),
    ("InsertField$Value", {"static.field": "s!", "static.value": "v", "replace.null.with.default": "false"}, [TYPED]),
    ("InsertField$Key", {"topic.field": "t"}, [TYPED]),
    ("InsertField$Value", {"offset.field": "o"}, [TYPED]),
    ("InsertField$Value", {}, [TYPED]),
    ("ReplaceField$Value", {"exclude": "raw,tags", "renames": "id:key,name:title"}, [TYPED, PLAIN, NOTHING]),
    ("ReplaceField$Value", {"include": "id,name,with_default"}, [TYPED, PLAIN]),
    ("ReplaceField$Value", {"renames": "id"}, [TYPED]),
    ("MaskField$Value", {"fields": "id,price,done,day,hour,moment,tags,counts,text_moment"}, [TYPED]),
    ("MaskField$Value", {"fields": "id,name,price,done,none"}, [PLAIN]),
    ("MaskField$Value", {"fields": "text_moment", "replacement": "***"}, [TYPED]),
    ("MaskField$Value", {"fields": "id", "replacement": "12"}, [TYPED, PLAIN]),
    ("MaskField$Value", {"fields": "tags", "replacement": "12"}, [TYPED]),
    ("ValueToKey", {"fields": "id,name"}, [TYPED, PLAIN]),
    ("ValueToKey", {"fields": "absent"}, [TYPED, PLAIN]),
    ("HoistField$Value", {"field": "whole"}, [TYPED, PLAIN, TEXT]),
    ("ExtractField$Value", {"field": "text_moment"}, [TYPED]),
    ("ExtractField$Value", {"field": "with_default"}, [TYPED]),
    ("ExtractField$Value", {"field": "with_default", "replace.null.with.default": "false"}, [TYPED]),
    ("ExtractField$Value", {"field": "absent"}, [TYPED, PLAIN]),
    ("ExtractField$Value", {"field": "address.city", "field.syntax.version": "V2"}, [TYPED]),
    ("ExtractField$Value", {"field": "nested.a", "field.syntax.version": "V2"}, [PLAIN]),
    ("ExtractField$Value", {"field": "`a.b`", "field.syntax.version": "V2"}, [PLAIN]),
    ("SetSchemaMetadata$Value", {"schema.name": "other", "schema.version": "9"}, [TYPED, PLAIN, NOTHING]),
    ("Flatten$Value", {}, [WITHOUT_MAP, PLAIN, NOTHING]),
    ("Flatten$Value", {"delimiter": "_"}, [WITHOUT_MAP, PLAIN]),
    ("Cast$Value", {"spec": "id:string,small:int32,price:int16,ratio:float64,done:int8,with_default:string"}, [TYPED]),
    ("Cast$Value", {"spec": "id:int8,price:boolean,done:string,day:int64,moment:int64,hour:string"}, [TYPED]),
    ("Cast$Value", {"spec": "raw:string,day:string,moment:string,cost:string"}, [TYPED]),
    ("Cast$Value", {"spec": "id:string,price:float32,done:int64,text:int32,none:string"}, [PLAIN]),
    ("Cast$Value", {"spec": "text:int8"}, [{"schema": None, "payload": {"text": "300"}}]),
    ("Cast$Value", {"spec": "name:int32"}, [PLAIN]),
    ("Cast$Value", {"spec": "id:date"}, [TYPED]),
    ("Cast$Value", {"spec": "string"}, [TEXT]),
    ("TimestampConverter$Value", {"field": "moment", "target.type": "string", "format": "yyyy-MM-dd'T'HH:mm:ss.SSSX"},
     [TYPED]),
    ("TimestampConverter$Value", {"field": "moment", "target.type": "unix", "unix.precision": "seconds"}, [TYPED]),
    ("TimestampConverter$Value", {"field": "id", "target.type": "Timestamp", "unix.precision": "microseconds"},
     [TYPED]),
    ("TimestampConverter$Value", {"field": "moment", "target.type": "Date"}, [TYPED]),
    ("TimestampConverter$Value", {"field": "moment", "target.type": "Time"}, [TYPED]),
    ("TimestampConverter$Value", {"field": "text_moment", "target.type": "Timestamp", "format":
                                  "yyyy-MM-dd HH:mm:ss.SSS"}, [TYPED]),
    ("TimestampConverter$Value", {"field": "id", "target.type": "string", "format": "EEE, d MMM yyyy h:mm a"}, [PLAIN]),
    ("TimestampConverter$Value", {"target.type": "unix", "format": "yyyy-MM-dd"}, [TEXT]),
    ("TimestampConverter$Value", {"target.type": "unix", "format": "yyyy/MM/dd"}, [TEXT]),
    ("TimestampConverter$Value", {"target.type": "string"}, [TEXT]),
    ("HeaderFrom$Value", {"fields": "id,name", "headers": "h1,h2", "operation": "move"}, [TYPED, PLAIN]),
    ("HeaderFrom$Value", {"fields": "with_default", "headers": "h", "operation": "copy"}, [TYPED]),
    ("HeaderFrom$Value", {"fields": "a,b", "headers": "h", "operation": "copy"}, [TYPED]),
    ("InsertHeader", {"header": "added", "value.literal": "17"}, [PLAIN]),
    ("InsertHeader", {"header": "added", "value.literal": "some text"}, [PLAIN]),
    ("DropHeaders", {"headers": "first"}, [PLAIN]),
    ("RegexRouter", {"regex": "(.*)-(.*)", "replacement": "$2_$1"}, [PLAIN]),
    ("RegexRouter", {"regex": "(?<head>or)ders", "replacement": "x"}, [PLAIN]),
    ("RegexRouter", {"regex": "(?<head>[a-z]+)-.*", "replacement": "${head}.\\$x"}, [PLAIN]),
    ("TimestampRouter", {"topic.format": "${topic}/${timestamp}", "timestamp.format": "yyyy-MM-dd HH"}, [PLAIN]),
    ("Filter", {}, [PLAIN]),
]  # fmt: skip


class Kafka:
    """Kafka's classes in a separate JVM."""

    def __init__(self, java: Any) -> None:
        self.java = java
        self.jvm = java.jvm
        self.converter = self.jvm.org.apache.kafka.connect.json.JsonConverter()
        self.converter.configure(self.map({}), False)

    def map(self, entries: dict[str, str]) -> Any:
        made = self.jvm.java.util.HashMap()
        for key, value in entries.items():
            made.put(key, value)
        return made

    def connect(self, envelope: dict[str, Any]) -> Any:
        return self.converter.toConnectData("t", json.dumps(envelope).encode())

    def json(self, schema: Any, value: Any) -> Any:
        found = self.converter.fromConnectData("t", schema, value)
        return None if found is None else json.loads(bytes(found))

    def record(self, envelope: dict[str, Any]) -> Any:
        value = self.connect(envelope)
        headers = self.jvm.org.apache.kafka.connect.header.ConnectHeaders()
        headers.addString("first", "one")
        empty = self.map({})
        key = value if "schema" in envelope and envelope["payload"] is not None else None
        return self.jvm.org.apache.kafka.connect.source.SourceRecord(
            empty, empty, TOPIC, 4, key and key.schema(), key and key.value(), value.schema(), value.value(), TIMESTAMP,
            headers,
        )  # fmt: skip

    def apply(self, name: str, config: dict[str, str], envelope: dict[str, Any]) -> Any:
        """Return the result: topic, key, value and headers; the text "refused" for an error."""
        from py4j.protocol import Py4JJavaError

        simple, _, side = (PACKAGE + name).partition("$")
        try:
            loader = self.jvm.java.lang.Class.forName(simple + ("$" + side if side else ""))
            transform = loader.getDeclaredConstructor(self.java.new_array(self.jvm.java.lang.Class, 0)).newInstance(
                self.java.new_array(self.jvm.java.lang.Object, 0)
            )
            transform.configure(self.map(config))
            done = transform.apply(self.record(envelope))
            return None if done is None else self.parts(done)
        except Py4JJavaError:
            return "refused"

    def parts(self, done: Any) -> Any:
        """Return the topic, key, value and headers of a record."""
        headers, each = [], done.headers().iterator()
        while each.hasNext():
            one = each.next()
            headers.append((one.key(), one.schema() and one.schema().type().getName(), one.value()))
        return (
            done.topic(),
            self.json(done.keySchema(), done.key()),
            self.json(done.valueSchema(), done.value()),
            headers,
        )


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    from py4j.java_gateway import (
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    libraries = peers.CACHE / "kafka-4.3.1" / "libs"
    port = launch_gateway(classpath=f"{libraries}/*", javaopts=["-Xmx192m"], die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield Kafka(gateway)
    gateway.shutdown()


def converter() -> JsonConverter:
    made = JsonConverter()
    made.configure({}, False)
    return made


def written(schema: Any, value: Any) -> Any:
    found = converter().from_connect("t", schema, value)
    return None if found is None else json.loads(found)


def applied(name: str, config: dict[str, str], envelope: dict[str, Any]) -> Any:
    """Return the same as `Kafka.apply`, with our classes."""
    value = converter().to_connect("t", json.dumps(envelope).encode())
    key = value if envelope["payload"] is not None else NO_VALUE
    record = SourceRecord(
        topic=TOPIC,
        kafka_partition=4,
        key_schema=key.schema,
        key=key.value,
        value_schema=value.schema,
        value=value.value,
        timestamp=TIMESTAMP,
        headers=(Header("first", "one", STRING),),
    )
    try:
        transform: Transform = Plugins().make(PACKAGE + name, Transform)  # type: ignore[type-abstract]
        transform.configure(config)
        done = transform.apply(record)
        if done is None:
            return None
        headers = [(one.key, one.schema and one.schema.type.value, one.value) for one in done.headers]
        return done.topic, written(done.key_schema, done.key), written(done.value_schema, done.value), headers
    except ConnectError:
        return "refused"


def test_transforms_do_to_a_record_what_kafkas_do(kafka: Kafka) -> None:
    different = []
    for name, config, envelopes in CASES:
        for envelope in (*envelopes, NOTHING, NULL):
            theirs, ours = kafka.apply(name, config, envelope), applied(name, config, envelope)
            if ours != theirs:
                different.append({"transform": name, "config": config, "theirs": theirs, "ours": ours})
    assert different == []


INT32 = {"type": "int32", "optional": False}
JSON: list[str] = [
    json.dumps(TYPED),
    json.dumps(PLAIN),
    json.dumps(NOTHING),
    json.dumps({"schema": {"type": "array", "items": INT32, "optional": True}, "payload": [1, 2]}),
    json.dumps({"schema": {"type": "map", "keys": INT32, "values": INT32}, "payload": [[1, 2], [3, 4]]}),
    json.dumps({"schema": structure(field("a", "float")), "payload": {"a": 3}}),
    json.dumps({"schema": {"type": "double"}, "payload": 1e300}),
    json.dumps({"schema": INT32, "payload": None}),
    json.dumps({"schema": INT32 | {"default": 7}, "payload": None}),
    json.dumps({"schema": INT32 | {"name": "n", "version": 2, "doc": "d", "parameters": {"p": "q"}}, "payload": 1}),
    json.dumps({"schema": {"type": "unknown"}, "payload": 1}),
    json.dumps({"schema": {"optional": True}, "payload": 1}),
    json.dumps({"schema": {"type": "struct"}, "payload": {}}),
    json.dumps({"schema": structure(field("a", "int32")), "payload": {}}),
    json.dumps({"schema": structure(field("a", "int32", True)), "payload": {}}),
    json.dumps({"schema": structure(field("a", "int32", True)), "payload": {"a": 1, "unknown": 2}}),
    json.dumps({"payload": 1}),
    json.dumps({"schema": None, "payload": 1, "more": 2}),
    json.dumps({"schema": None, "payload": None}),
    json.dumps([1, 2]),
    '"text"',
    "{",
    "",
]


def test_json_is_read_and_written_as_kafka_does(kafka: Kafka) -> None:
    from py4j.protocol import Py4JJavaError

    different = []
    for text in JSON:
        try:
            read = kafka.converter.toConnectData("t", text.encode())
            again = kafka.converter.fromConnectData("t", read.schema(), read.value())
            theirs = None if again is None else json.loads(bytes(again))
        except Py4JJavaError:
            theirs = "refused"
        try:
            found = converter().to_connect("t", text.encode())
            ours = written(found.schema, found.value)
        except ConnectError:
            ours = "refused"
        if ours != theirs:
            different.append({"text": text, "theirs": theirs, "ours": ours})
    assert different == []


TEXTS = [
    "null", "true", "false", "0", "127", "128", "-129", "70000", "3000000000", "99999999999999999999", "text", "", " ",
    "2020-01-31", "12:34:56.789Z", "2020-01-31T12:34:56.789Z", "[1, 2]", '["a", "b"]',
    '{"a": 1}', "1a", "-", "+5", "[1", '"quoted"', "1.5.2", "0x10",
]  # fmt: skip


def test_headers_are_read_as_kafka_reads_them(kafka: Kafka) -> None:
    different = []
    for text in TEXTS:
        read = kafka.jvm.org.apache.kafka.connect.data.Values.parseString(text)
        schema = read and read.schema()
        theirs = None if schema is None else (schema.type().getName(), schema.name())
        found = parse(text)
        ours = None if found.schema is None else (found.schema.type.value, found.schema.name)
        if ours != theirs:
            different.append((text, theirs, ours))
    assert different == []


def test_values_are_written_as_text_as_kafka_writes_them(kafka: Kafka) -> None:
    for text in ("text", "17", "true", "[1,2]", '["a","b"]', '{"a":1}', "2020-01-31", "2020-01-31T12:34:56.789Z"):
        values = kafka.jvm.org.apache.kafka.connect.data.Values
        read = values.parseString(text)
        if not isinstance(read.value(), str | int | bool):
            assert values.convertToString(read.schema(), read.value()) == to_text(parse(text).value)


def test_predicates(kafka: Kafka) -> None:
    for name, config in (
        ("HasHeaderKey", {"name": "first"}),
        ("HasHeaderKey", {"name": "second"}),
        ("TopicNameMatches", {"pattern": "orders"}),
        ("TopicNameMatches", {"pattern": "orders-(eu|us)"}),
        ("RecordIsTombstone", {}),
    ):
        theirs = getattr(kafka.jvm.org.apache.kafka.connect.transforms.predicates, name)()
        theirs.configure(kafka.map(config))
        ours: Predicate = Plugins().make(f"{PACKAGE}predicates.{name}", Predicate)  # type: ignore[type-abstract]
        ours.configure(config)
        record = SourceRecord(topic=TOPIC, value="v", headers=(Header("first", "one"),))
        assert ours.test(record) is theirs.test(kafka.record(TYPED)), name
