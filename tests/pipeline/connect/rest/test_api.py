"""The REST API of a standalone worker, as users call it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from parley import Broker
from parley.pipeline.connect.rest.endpoints import ADMIN, AMONG_WORKERS, CONNECT
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.requests import BodyRequest
from parley.pipeline.service.server import Listener, RestServer, parse_listeners
from parley.tools.cli.docs import OPENAPI_FILE, openapi_file
from tests.pipeline.connect.workers import RunningWorker, file_sink, file_source, lines, standalone_worker, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def worker(connect_broker: Broker, tmp_path: Path) -> AsyncIterator[RunningWorker]:
    async with standalone_worker(connect_broker.bootstrap_servers, tmp_path) as worker:
        yield worker


async def test_who_serves_which_cluster(worker: RunningWorker) -> None:
    found = await worker.get("/")
    assert set(found) == {"version", "commit", "kafka_cluster_id"}
    assert found["kafka_cluster_id"]
    assert await worker.get("/health") == {
        "status": "healthy",
        "message": "Worker has completed startup and is ready to handle requests.",
    }


async def test_life_of_a_source(worker: RunningWorker, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    config = file_source(path, "api-source")
    made = await worker.ask("POST", "/connectors", {"name": "src", "config": {**config, "tasks.max": 1}})
    assert made.status_code == 201
    assert made.headers["location"] == f"{worker.url}connectors/src"
    shown: dict[str, Any] = {"name": "src", "config": {**config, "name": "src"}, "tasks": [], "type": "source"}
    assert made.json() == shown

    await worker.reaches("src", "RUNNING", "RUNNING")
    shown["tasks"] = [{"connector": "src", "task": 0}]
    assert await worker.get("/connectors/src") == shown
    assert await worker.get("/connectors/src/") == shown
    assert await worker.get("/connectors/src/config") == shown["config"]
    assert await worker.get("/connectors") == ["src"]
    worker_id = worker.url.removeprefix("http://").rstrip("/")
    running = {"state": "RUNNING", "worker_id": worker_id, "version": "1.0"}
    status: dict[str, Any] = {"name": "src", "connector": running, "tasks": [{"id": 0, **running}], "type": "source"}
    assert await worker.get("/connectors/src/status") == status
    assert await worker.get("/connectors/src/tasks/0/status") == status["tasks"][0]
    assert await worker.get("/connectors?expand=info&expand=status") == {"src": {"info": shown, "status": status}}
    assert await worker.get("/connectors?expand=info") == {"src": {"info": shown}}
    assert await worker.get("/connectors?expand=more") == {"src": {}}
    [task] = await worker.get("/connectors/src/tasks")
    assert task["id"] == {"connector": "src", "task": 0}
    assert task["config"]["file"] == str(path)

    offsets = {"offsets": [{"partition": {"filename": str(path)}, "offset": {"position": 6}}]}
    await until(lambda: worker.get("/connectors/src/offsets"), lambda found: found == offsets)
    topics = {"src": {"topics": ["api-source"]}}
    await until(lambda: worker.get("/connectors/src/topics"), lambda found: found == topics)
    assert (await worker.ask("PUT", "/connectors/src/topics/reset")).status_code == 202
    assert await worker.get("/connectors/src/topics") == {"src": {"topics": []}}

    assert (await worker.ask("DELETE", "/connectors/src")).status_code == 204
    assert await worker.get("/connectors") == []
    assert (await worker.ask("GET", "/connectors/src/status")).status_code == 404


async def test_a_connector_is_paused_stopped_and_goes_on(worker: RunningWorker, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\n")
    await worker.ask("PUT", "/connectors/src/config", file_source(path, "api-paused"))
    await worker.reaches("src", "RUNNING", "RUNNING")
    assert (await worker.ask("PUT", "/connectors/src/pause")).status_code == 202
    await worker.reaches("src", "PAUSED", "PAUSED")
    assert (await worker.ask("PUT", "/connectors/src/resume")).status_code == 202
    await worker.reaches("src", "RUNNING", "RUNNING")
    assert (await worker.ask("PUT", "/connectors/src/stop")).status_code == 204
    await worker.reaches("src", "STOPPED")
    assert await worker.get("/connectors/src/tasks") == []
    await worker.ask("PUT", "/connectors/src/resume")
    await worker.reaches("src", "RUNNING", "RUNNING")


@pytest.mark.parametrize(("initial", "states"), [("STOPPED", ["STOPPED"]), ("paused", ["PAUSED"])])
async def test_a_connector_begins_as_wanted(
    worker: RunningWorker, tmp_path: Path, initial: str, states: list[str]
) -> None:
    wanted = {"name": "src", "config": file_source(tmp_path / "in", "api-initial"), "initial_state": initial}
    assert (await worker.ask("POST", "/connectors", wanted)).status_code == 201
    await worker.reaches("src", *states)
    assert await worker.get("/connectors/src/tasks") == []


PLACE = {"kafka_topic": "t", "kafka_partition": 0}
NO_OFFSETS: list[tuple[Any, Any, str]] = [
    ({}, None, "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'"),
    ({**PLACE, "kafka_topic": None}, None, "Kafka topic names must be valid strings and may not be null"),
    ({**PLACE, "kafka_partition": None}, None, "Kafka partitions must be valid numbers and may not be null"),
    (
        {**PLACE, "kafka_partition": "a"},
        None,
        "Failed to parse the following Kafka partition value in the provided offsets: 'a'. Partition values for sink "
        "connectors need to be integers.",
    ),
    (
        PLACE,
        {"kafka_offset": 1.5},
        "Failed to parse the following Kafka offset value in the provided offsets: '1.5'. Offset values for sink "
        "connectors need to be integers.",
    ),
    (PLACE, {"offset": 1}, "The offset for a sink connector should either be null or contain the key 'kafka_offset'"),
    (
        PLACE,
        {"kafka_offset": 2**63},
        f"Kafka offsets must be integers from 0 to {2**63 - 1}, not {2**63}",
    ),
]


async def test_offsets_of_a_stopped_source_are_set(worker: RunningWorker, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a\nb\nc\n")
    await worker.ask("PUT", "/connectors/src/config", file_source(source, "api-offsets"))
    await worker.ask("PUT", "/connectors/snk/config", file_sink(target, "api-offsets"))
    assert await lines(target, 3) == ["a", "b", "c"]
    there = {"filename": str(source)}
    back = {"offsets": [{"partition": there, "offset": {"position": 2}}]}
    refused = await worker.ask("PATCH", "/connectors/src/offsets", back)
    assert refused.status_code == 400
    assert "must be in the STOPPED state" in refused.json()["message"]
    await worker.ask("PUT", "/connectors/snk/stop")
    await worker.reaches("snk", "STOPPED")
    for partition, offset, message in NO_OFFSETS:
        wanted = {"offsets": [{"partition": partition, "offset": offset}]}
        refused = await worker.ask("PATCH", "/connectors/snk/offsets", wanted)
        assert (refused.status_code, refused.json()["message"]) == (400, message)
    await worker.ask("PUT", "/connectors/snk/resume")
    await worker.ask("PUT", "/connectors/src/stop")
    await worker.reaches("src", "STOPPED")
    altered = await worker.ask("PATCH", "/connectors/src/offsets", back)
    assert altered.json() == {"message": "The offsets for this connector have been altered successfully"}
    assert await worker.get("/connectors/src/offsets") == back
    await worker.ask("PUT", "/connectors/src/resume")
    assert await lines(target, 5) == ["a", "b", "c", "b", "c"]
    await worker.ask("PUT", "/connectors/src/stop")
    await worker.reaches("src", "STOPPED")
    reset = await worker.ask("DELETE", "/connectors/src/offsets")
    assert reset.json() == {"message": "The offsets for this connector have been reset successfully"}
    assert await worker.get("/connectors/src/offsets") == {"offsets": []}


async def test_a_configuration_is_changed_by_parts(worker: RunningWorker, tmp_path: Path) -> None:
    config = {**file_sink(tmp_path / "out", "api-patched", tasks_max="2"), "name": "snk"}
    assert (await worker.ask("PUT", "/connectors/snk/config", config)).status_code == 201
    await worker.reaches("snk", "RUNNING", "RUNNING", "RUNNING")
    changed = await worker.ask("PATCH", "/connectors/snk/config", {"tasks.max": 1, "more": "than this"})
    assert changed.status_code == 200
    assert changed.json()["config"] == {**config, "tasks.max": "1", "more": "than this"}
    await worker.reaches("snk", "RUNNING", "RUNNING")
    taken = await worker.ask("PATCH", "/connectors/snk/config", {"more": None})
    assert taken.json()["config"] == {**config, "tasks.max": "1"}
    assert (await worker.ask("PUT", "/connectors/snk/config", config)).status_code == 200


async def test_failed_tasks_can_be_restarted(worker: RunningWorker, tmp_path: Path) -> None:
    folder = tmp_path / "not yet"
    (tmp_path / "in.txt").write_text("a\n")
    await worker.ask("PUT", "/connectors/src/config", file_source(tmp_path / "in.txt", "api-failed"))
    await worker.ask("PUT", "/connectors/snk/config", file_sink(folder / "out.txt", "api-failed"))
    await worker.reaches("snk", "RUNNING", "FAILED")
    [failed] = (await worker.get("/connectors/snk/status"))["tasks"]
    assert str(folder) in failed["trace"]
    await worker.reaches("src", "RUNNING", "RUNNING")  # a failure of one does not stop another
    folder.mkdir()
    only_failed = await worker.ask("POST", "/connectors/snk/restart?includeTasks=true&onlyFailed=true")
    assert only_failed.status_code == 202
    shown = only_failed.json()
    assert (shown["connector"]["state"], shown["tasks"][0]["state"]) == ("RUNNING", "RESTARTING")
    await worker.reaches("snk", "RUNNING", "RUNNING")
    assert await lines(folder / "out.txt", 1) == ["a"]
    assert (await worker.ask("POST", "/connectors/snk/restart")).status_code == 204
    assert (await worker.ask("POST", "/connectors/snk/tasks/0/restart")).status_code == 204
    await worker.reaches("snk", "RUNNING", "RUNNING")


CONFIG = {"connector.class": "FileStreamSource", "topic": "t", "file": "/none"}


REFUSED: list[tuple[str, str, str | None, int, str]] = [
    ("GET", "/nope", None, 404, "HTTP 404 Not Found"),
    ("GET", "/connectors/none", None, 404, "Connector none not found"),
    ("GET", "/connectors/none/config", None, 404, "Connector none not found"),
    ("GET", "/connectors/none/status", None, 404, "No status found for connector none"),
    ("GET", "/connectors/none/tasks", None, 404, "Connector none not found"),
    ("GET", "/connectors/none/tasks/0/status", None, 404, "No status found for task none-0"),
    ("GET", "/connectors/none/tasks/abc/status", None, 404, "HTTP 404 Not Found"),
    ("GET", "/connectors/none/tasks/-1/status", None, 404, "No status found for task none--1"),
    ("GET", "/connectors//config", None, 400, "Ambiguous URI empty segment"),
    ("PUT", "/connectors/none/fence", None, 404, "Connector none not found"),
    ("GET", "/connectors/none/fence", None, 405, "HTTP 405 Method Not Allowed"),
    ("POST", "/connectors", '{"name": "\\ud800", "config": {}}', 400, "is not JSON"),
    ("POST", "/connectors", json.dumps({"name": "a\nb", "config": CONFIG}), 400, "ASCII chars: 10"),
    ("PATCH", "/connectors/x/offsets", '{"offsets": [{"partition": {}}], "x": 1}', 400, 'Unrecognized field "x"'),
    ("PATCH", "/connectors/x/offsets", '{"offsets": [{"partition": {}, "y": 1}]}', 400, 'Unrecognized field "y"'),
    ("GET", "/connectors/none/offsets", None, 404, "Connector none not found"),
    ("PUT", "/connectors/none/pause", None, 404, "Unknown connector none"),
    ("PUT", "/connectors/none/resume", None, 404, "Unknown connector none"),
    ("PUT", "/connectors/none/stop", None, 404, "Unknown connector none"),
    ("POST", "/connectors/none/restart", None, 404, "Unknown connector: none"),
    ("POST", "/connectors/none/restart?includeTasks=true", None, 404, "Unknown connector: none"),
    ("POST", "/connectors/none/tasks/0/restart", None, 404, "Unknown connector: none"),
    ("DELETE", "/connectors/none", None, 404, "Connector none not found"),
    ("DELETE", "/connectors/none/offsets", None, 404, "Connector none not found"),
    ("PATCH", "/connectors/none/config", "{}", 404, "Connector none not found"),
    ("POST", "/connectors/none/tasks", "[]", 404, "Connector none not found"),
    ("GET", "/connector-plugins/Nope/config", None, 404, "Unknown plugin Nope."),
    ("GET", "/admin/loggers/nope.nope", None, 404, "Logger nope.nope not found."),
    ("PUT", "/admin/loggers/root", '{"level": "LOUD"}', 404, "invalid log level 'LOUD'."),
    ("PUT", "/admin/loggers/root", "{}", 400, "Desired 'level' parameter was not specified in request."),
    ("PUT", "/connectors", None, 405, "HTTP 405 Method Not Allowed"),
    ("GET", "/connectors/none/pause", None, 405, "HTTP 405 Method Not Allowed"),
    ("PATCH", "/connectors/none", None, 405, "HTTP 405 Method Not Allowed"),
    ("GET", "/connectors/a%2Fb", None, 400, "Ambiguous URI path separator"),
    ("POST", "/connectors", "{bad", 400, "is not JSON"),
    ("POST", "/connectors", "", 400, "no body"),
    ("POST", "/connectors", "[]", 400, "should be a valid dictionary"),
    ("POST", "/connectors", "null", 400, "should be a valid dictionary"),
    ("POST", "/connectors", '"x"', 400, "should be a valid dictionary"),
    ("POST", "/connectors", "[" * 100_000, 400, "is not JSON"),
    ("POST", "/connectors", '{"name": "x"}', 400, "config: Field required"),
    ("POST", "/connectors", '{"name": [1], "config": {}}', 400, "name: Input should be a valid string"),
    ("POST", "/connectors", '{"name": "x", "config": {}}', 400, "{name=x} contains no connector type"),
    ("POST", "/connectors", '{"name": "x", "config": {"a": [1]}}', 400, "config.a: Input should be a valid string"),
    ("POST", "/connectors", '{"name": "x", "config": {}, "foo": 1}', 400, 'Unrecognized field "foo"'),
    ("POST", "/connectors", '{"name": "x", "config": {"connector.class": "Nope"}}', 400, "Nope"),
    (
        "POST",
        "/connectors",
        json.dumps({"name": "x", "config": {**CONFIG, "name": "y"}}),
        400,
        "Connector name configuration (y) doesn't match connector name in the URL (x)",
    ),
    (
        "POST",
        "/connectors",
        json.dumps({"name": "x", "config": {**CONFIG, "tasks.max": 0}}),
        400,
        "contains the following 1 error(s):\nInvalid value 0 for configuration tasks.max: Value must be at least 1",
    ),
    ("POST", "/connectors", json.dumps({"name": "x", "config": CONFIG, "initial_state": "z"}), 400, "RUNNING"),
    ("PUT", "/connectors/x/config", "[]", 400, "Input should be a valid dictionary"),
    ("PUT", "/connectors/x/config", '{"a": NaN}', 400, "is not JSON"),
    ("PATCH", "/connectors/x/offsets", "{}", 400, "Partitions / offsets need to be provided"),
    ("PATCH", "/connectors/x/offsets", '{"offsets": [{"offset": {}}]}', 400, "Partition objects cannot be null"),
    ("PUT", "/connector-plugins/FileStreamSource/config/validate", "{}", 400, "contains no connector type"),
    (
        "PUT",
        "/connector-plugins/FileStreamSource/config/validate",
        '{"connector.class": "FileStreamSink"}',
        400,
        "Included connector type FileStreamSink does not match request type FileStreamSource",
    ),
]


async def test_requests_that_are_refused(worker: RunningWorker) -> None:
    for method, path, body, status, message in REFUSED:
        headers = {} if body is None else {"content-type": "application/json"}
        answer = await worker.client.request(method, path, content=body, headers=headers)
        said = answer.json()
        assert (answer.status_code, said["error_code"]) == (status, status), (method, path, body, said)
        assert message in said["message"], (method, path, body, said)
        assert answer.headers["content-type"] == "application/json"
    assert await worker.get("/connectors") == []


async def test_bodies_of_another_kind_or_too_large_are_refused(worker: RunningWorker) -> None:
    body = json.dumps({"name": "x", "config": CONFIG})
    for headers in ({}, {"content-type": "text/plain"}):
        answer = await worker.client.post("/connectors", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (415, 415)
    large = json.dumps({"name": "x" * BodyRequest.bytes_max, "config": CONFIG})
    answer = await worker.client.post("/connectors", content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert (await worker.client.get("/connectors", headers={"accept": "text/html"})).status_code == 406
    unread = await worker.client.put("/connectors/x/pause", content="{}", headers={"content-type": "text/plain"})
    assert unread.status_code == 415
    assert (await worker.ask("PUT", "/connectors/x/pause", {})).status_code == 404
    options = await worker.client.options("/connectors")
    assert options.headers["allow"] == "GET, POST, HEAD, OPTIONS"
    assert (await worker.client.head("/connectors")).content == b""


async def test_a_connector_of_the_same_name_is_refused(worker: RunningWorker, tmp_path: Path) -> None:
    wanted = {"name": "src", "config": file_source(tmp_path / "in", "api-same")}
    assert (await worker.ask("POST", "/connectors", wanted)).status_code == 201
    again = await worker.ask("POST", "/connectors", wanted)
    assert (again.status_code, again.json()["message"]) == (409, "Connector src already exists")


async def test_plugins_and_their_keys(worker: RunningWorker) -> None:
    connectors = await worker.get("/connector-plugins")
    kafka = "org.apache.kafka.connect"
    assert {"class": f"{kafka}.file.FileStreamSourceConnector", "type": "source", "version": "1.0"} in connectors
    assert {one["type"] for one in connectors} == {"source", "sink"}
    everything = await worker.get("/connector-plugins?connectorsOnly=false")
    assert {"source", "sink", "converter", "header_converter", "transformation", "predicate"} == {
        one["type"] for one in everything
    }
    keys = {key["name"]: key for key in await worker.get("/connector-plugins/FileStreamSource/config")}
    assert list(keys)[:4] == ["file", "topic", "batch.size", "name"]  # its own keys, and those of all sources
    assert {"transforms", "topic.creation.groups", "exactly.once.support"} <= keys.keys()
    assert list(keys["topic"])[6:8] == ["group", "order_in_group"]
    assert keys["topic"]["required"] is True
    assert keys["batch.size"]["default_value"] == "2000"
    found = await worker.ask(
        "PUT",
        "/connector-plugins/FileStreamSource/config/validate",
        {"connector.class": "FileStreamSource", "name": "x", "tasks.max": 0},
    )
    shown = found.json()
    assert found.status_code == 200
    assert (shown["name"], shown["error_count"]) == ("FileStreamSource", 2)
    errors = {one["value"]["name"]: one["value"]["errors"] for one in shown["configs"] if one["value"]["errors"]}
    assert set(errors) == {"tasks.max", "topic"}
    values = {one["value"]["name"]: one["value"]["value"] for one in shown["configs"]}
    assert values["value.converter"] == "org.apache.kafka.connect.storage.StringConverter"  # the worker's
    assert values["header.converter"] == "org.apache.kafka.connect.storage.SimpleHeaderConverter"  # of all workers


async def test_levels_of_loggers(worker: RunningWorker) -> None:
    changed = await worker.ask("PUT", "/admin/loggers/tests.of.connect", {"level": "debug"})
    assert changed.json() == ["tests.of.connect"]
    again = await worker.ask("PUT", "/admin/loggers/tests.of.connect", {"level": "DEBUG"})
    assert again.json() == []  # only those that had another value
    level = await worker.get("/admin/loggers/tests.of.connect")
    assert level["level"] == "DEBUG"
    assert level["last_modified"] > 0
    above = await worker.ask("PUT", "/admin/loggers/tests.of?scope=worker", {"level": "ERROR"})
    assert above.json() == ["tests.of", "tests.of.connect"]
    assert (await worker.get("/admin/loggers/tests.of.connect"))["level"] == "ERROR"
    everywhere = await worker.ask("PUT", "/admin/loggers/tests.of.connect?scope=cluster", {"level": "WARN"})
    assert everywhere.status_code == 204
    assert (await worker.get("/admin/loggers"))["tests.of.connect"]["level"] == "WARN"


def test_the_published_document_is_the_served_one() -> None:
    published = Path(__file__).parents[4] / OPENAPI_FILE
    assert published.read_text() == openapi_file(), "run `parley docs`"


async def test_every_endpoint_is_described(worker: RunningWorker) -> None:
    described = await worker.get("/openapi.json")
    assert described["openapi"].startswith("3.")
    routes = [one for router in (CONNECT, ADMIN) for one in router.routes if isinstance(one, APIRoute)]
    served = {(method, one.path) for one in routes for method in one.methods or ()}
    operations = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert operations == served - {*AMONG_WORKERS}
    schemas = described["components"]["schemas"]
    assert _references(described) <= {f"#/components/schemas/{name}" for name in schemas}
    ids = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


async def test_a_port_that_is_taken_is_said(connect_broker: Broker, tmp_path: Path) -> None:
    async with RestServer([Listener("127.0.0.1", 0)]) as server:
        port = server.addresses[0].port
        with pytest.raises(ServiceError, match=f"cannot listen on 127.0.0.1:{port}.*another address"):
            async with standalone_worker(
                connect_broker.bootstrap_servers, tmp_path, listeners=f"http://127.0.0.1:{port}"
            ):
                pass


@pytest.mark.parametrize("text", ["", "ftp://:8443", "localhost:8083", "http://:99999", "http://:8083/path"])
def test_listeners_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ServiceError, match="listeners"):
        parse_listeners(text)


def test_listeners() -> None:
    assert parse_listeners("HTTP://:8083, http://[::1]:8084,http://myhost,HTTPS://:8443") == [
        Listener("", 8083),
        Listener("::1", 8084),
        Listener("myhost", 8083),
        Listener("", 8443, True),
    ]
