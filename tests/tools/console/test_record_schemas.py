"""Records decoded with schemas from files, from a registry in the test's process, and from a failing registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from starlette.requests import Request

from parley import Broker
from parley.tools.console.answers import ApiRequest
from parley.tools.console.cluster_view import ClusterView
from parley.tools.console.messages_api import RecordWindow
from parley.tools.console.record_schemas import _PENDING_MAX, RecordSchemas, SchemaSettings
from parley.tools.console.schema_settings import schema_settings
from parley.tools.console.settings import ConsoleSettings
from tests.pipeline.registry.running import running
from tests.support.certificates import Authority
from tests.tools.console.conftest import Browser, browsing

pytestmark = pytest.mark.slow

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":"string"}]}'
PAYMENT = 'syntax = "proto3"; import "money.proto"; message Payment { int64 id = 1; Money sum = 2; }'
MONEY = 'syntax = "proto3"; message Money { int64 cents = 1; }'


@pytest.fixture(scope="module")
def registry(stored_broker: tuple[Broker, str]) -> Iterator[str]:
    with running(stored_broker[0].bootstrap_servers, "schemas-of-console") as url:
        yield url


@pytest.fixture
def client(registry: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry})


@asynccontextmanager
async def decoding(broker: Broker, url: str | None, **more: Any) -> AsyncIterator[Browser]:
    """A browser at a console with this registry."""
    schemas = schema_settings(url, more.get("properties", {}), more.get("values", ()), more.get("keys", ()))
    async with browsing(ConsoleSettings(broker.bootstrap_servers, schemas=schemas)) as browser:
        yield browser


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def order(number: int) -> bytes:
    return bytes([number * 2]) + b"\6abc"


async def produced(broker: Broker, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    """Produce records to partition 0 of a new topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0


async def read(browser: Browser, topic: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await browser.get(f"topics/{topic}/messages", **{"from": "earliest"}, **query))[
        "records"
    ]
    return found


async def test_all_languages_are_decoded_and_filtered(
    stored_broker: tuple[Broker, str], registry: str, client: SchemaRegistryClient
) -> None:
    avro = client.register_schema("d-avro", Schema(ORDER, "AVRO"))
    client.register_schema("money.proto", Schema(MONEY, "PROTOBUF"))
    proto = client.register_schema(
        "d-proto", Schema(PAYMENT, "PROTOBUF", [SchemaReference("money.proto", "money.proto", 1)])
    )
    text = client.register_schema("d-json", Schema('{"type":"object"}', "JSON"))
    await produced(
        stored_broker[0],
        "decoded",
        (framed(avro, order(1)), framed(avro, order(2))),
        (b"k", framed(proto, b"\0\x08\x05\x12\x02\x08\x63")),
        (b"k", framed(text, b'{"id": 6}')),
        (b"k", b'{"id": 7}'),
    )
    async with decoding(stored_broker[0], registry) as browser:
        found = await read(browser, "decoded")
        assert [json.loads(one["value"]["text"]) for one in found] == [
            {"id": 2, "note": "abc"}, {"id": 5, "sum": {"cents": 99}}, {"id": 6}, {"id": 7},
        ]  # fmt: skip
        assert json.loads(found[0]["key"]["text"]) == {"id": 1, "note": "abc"}
        assert [one["value"].get("schema") for one in found] == [
            f"Avro, schema {avro}", f"Protobuf, schema {proto}", f"JSON Schema, schema {text}", None,
        ]  # fmt: skip
        assert [one["offset"] for one in await read(browser, "decoded", filter="value.id > 5")] == [2, 3]
        assert [one["offset"] for one in await read(browser, "decoded", filter="value.sum.cents == 99")] == [1]
        assert [one["offset"] for one in await read(browser, "decoded", filter="key.id == 1")] == [0]


async def test_the_tail_is_decoded(
    stored_broker: tuple[Broker, str], registry: str, client: SchemaRegistryClient
) -> None:
    avro = client.register_schema("t-avro", Schema(ORDER, "AVRO"))
    await produced(stored_broker[0], "decoded-tail", (None, b"before"))
    view = ClusterView(ConsoleSettings(stored_broker[0].bootstrap_servers))
    window = RecordWindow(schema_settings(registry, {}, (), ()))
    query = {
        "type": "http",
        "query_string": b"filter=value.id==3",
        "headers": [],
        "path_params": {"name": "decoded-tail"},
    }
    events = window.tail(view, ApiRequest(Request(query).scope))
    assert (await anext(events))["records"] == []
    await produced(stored_broker[0], "decoded-tail", *((None, framed(avro, order(number))) for number in (2, 3)))
    async for event in events:
        if event["records"]:
            assert [one["value"]["text"] for one in event["records"]] == ['{"id": 3, "note": "abc"}']
            break
    await events.aclose()  # type: ignore[attr-defined]
    await window.close()
    await view.close()


async def test_undecodable_values_are_shown_as_bytes_with_the_reason(
    stored_broker: tuple[Broker, str], registry: str, client: SchemaRegistryClient
) -> None:
    avro = client.register_schema("p-avro", Schema(ORDER, "AVRO"))
    await produced(
        stored_broker[0],
        "damaged",
        (None, framed(1_000_000, b"x")),
        (None, framed(avro, b"\xff")),
        (None, framed(avro, order(1) + b"more")),
        (None, b"\0"),
    )
    async with decoding(stored_broker[0], registry) as browser:
        values = [one["value"] for one in await read(browser, "damaged")]
    assert [one["kind"] for one in values] == ["binary"] * 4
    assert values[0]["problem"] == "The schema registry has no schema 1000000."
    assert values[1]["problem"].startswith(f"The bytes do not fit Avro, schema {avro}: ")
    assert values[2]["problem"].endswith("4 bytes are left over.")
    assert "problem" not in values[3]


async def test_a_registry_that_is_away_is_named_without_its_password(stored_broker: tuple[Broker, str]) -> None:
    await produced(stored_broker[0], "no-registry", (None, framed(1, b"x")), (None, framed(2, b"y")))
    async with decoding(stored_broker[0], "http://ann:secret@127.0.0.1:1") as browser:
        problems = [one["value"]["problem"] for one in await read(browser, "no-registry")]
    assert all(one.startswith("No schema registry responds: http://127.0.0.1:1: ") for one in problems)
    assert "secret" not in "".join(problems)


@asynccontextmanager
async def hanging_registry(released: asyncio.Event, asked: asyncio.Event) -> AsyncIterator[str]:
    """A registry that sets ``asked`` at each connection, and closes it without a response when it is released."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await released.wait()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            released.set()


async def test_a_registry_that_hangs_holds_up_no_other_request(
    stored_broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.tools.console.record_schemas.WAIT_S", 600.0)
    await produced(stored_broker[0], "hanging", (None, framed(1, b"x")), (None, b"text"))
    released, asked = asyncio.Event(), asyncio.Event()
    async with hanging_registry(released, asked) as url, decoding(stored_broker[0], url) as browser:
        reading = asyncio.create_task(read(browser, "hanging"))
        await asked.wait()
        assert (await browser.get("overview"))["brokers"]
        assert not reading.done()
        released.set()
        values = [one["value"] for one in await reading]
    assert values[0]["problem"].startswith("No schema registry responds")
    assert values[1]["text"] == "text"


async def test_a_registry_is_not_waited_for_again(
    stored_broker: tuple[Broker, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.tools.console.record_schemas.WAIT_S", 0.2)
    await produced(stored_broker[0], "late", (None, framed(2, b"x")))
    async with hanging_registry(asyncio.Event(), asyncio.Event()) as url, decoding(stored_broker[0], url) as browser:
        for _ in range(2):
            (found,) = await read(browser, "late")
            assert found["value"]["problem"].startswith("The schema registry has not responded for 0.2 s")


async def test_look_ups_and_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.tools.console.record_schemas.WAIT_S", 0.5)
    schemas = RecordSchemas(schema_settings("http://127.0.0.1:1", {}, (), ()) or SchemaSettings())
    values = [(None, framed(number, b"x")) for number in range(10_000)]
    await schemas.look_up("t", values)
    assert len(schemas._known) <= _PENDING_MAX
    problems = {one.problem for _, value in values if (one := schemas.decode("t", value, is_key=False))}
    assert all("respond" in one for one in problems), problems
    await schemas.close()


async def test_schemas_of_files(stored_broker: tuple[Broker, str], tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(ORDER)
    (tmp_path / "money.proto").write_text(MONEY)
    await produced(stored_broker[0], "of-files", (b"\x08\x05", order(4)), (b"\xff", b"\xff"))
    files: Mapping[str, Any] = {
        "values": [f"of-files={tmp_path / 'order.avsc'}"],
        "keys": [f"of-files={tmp_path / 'money.proto'}"],
    }
    async with decoding(stored_broker[0], None, **files) as browser:
        good, bad = await read(browser, "of-files")
    assert (json.loads(good["key"]["text"]), json.loads(good["value"]["text"])["id"]) == ({"cents": 5}, 4)
    assert good["value"]["schema"] == "Avro, order.avsc"
    assert bad["key"]["problem"] == "The bytes do not fit Protobuf, money.proto: it is not a message of type Money."


async def test_tls_and_a_login_at_the_registry(stored_broker: tuple[Broker, str], tmp_path: Path) -> None:
    authority = Authority()
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "users.properties").write_text("ada=secret\n")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'SchemaRegistry {{ PropertyFileLoginModule required file="{tmp_path / "users.properties"}"; }};')
    settings = {
        "listeners": "https://127.0.0.1:0",
        "ssl_keystore_location": str(authority.issue("registry", "127.0.0.1").write_pem(tmp_path / "registry.pem")),
        "authentication_method": "BASIC",
        "java_security_auth_login_config": str(jaas),
    }
    broker = stored_broker[0]
    with running(broker.bootstrap_servers, "schemas-of-console-secured", **settings) as url:
        login = {"url": url, "ssl.ca.location": str(tmp_path / "ca.pem"), "basic.auth.user.info": "ada:secret"}
        number = SchemaRegistryClient(login).register_schema("s-avro", Schema(ORDER, "AVRO"))
        await produced(broker, "secured-registry", (None, framed(number, order(5))))
        properties = {
            "security.protocol": "PLAINTEXT",
            "schema.registry.url": url,
            "schema.registry.ssl.truststore.location": str(tmp_path / "ca.pem"),
            "schema.registry.ssl.truststore.type": "PEM",
            "schema.registry.basic.auth.credentials.source": "USER_INFO",
            "schema.registry.basic.auth.user.info": "ada:secret",
        }
        async with decoding(broker, None, properties=properties) as browser:
            assert json.loads((await read(browser, "secured-registry"))[0]["value"]["text"])["id"] == 5
        wrong = {**properties, "schema.registry.basic.auth.user.info": "ada:wrong"}
        async with decoding(broker, None, properties=wrong) as browser:
            problem = (await read(browser, "secured-registry"))[0]["value"]["problem"]
            assert "401" in problem
            assert "wrong" not in problem


@pytest.mark.parametrize(
    ("url", "properties", "values", "reason"),
    [
        (None, {"schema.registry.basic.auth.user.info": "a:b"}, [], "'schema.registry.url' is missing"),
        ("http://a", {"schema.registry.strange": "1"}, [], "'schema.registry.strange' is unknown"),
        ("http://a", {"schema.registry.ssl.truststore.location": "x.jks"}, [], "must be a PEM file"),
        (None, {}, ["orders"], "must be TOPIC=FILE"),
        (None, {}, ["orders=a.txt"], "must end in one of: .avsc"),
        (None, {}, ["orders=missing.avsc"], "No such file"),
    ],
)
def test_settings_that_cannot_be_used(
    url: str | None, properties: dict[str, str], values: list[str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        schema_settings(url, properties, values, [])
