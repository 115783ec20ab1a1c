"""Logins of the REST API: users from files, refusals, and what needs no login."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from parley.pipeline.connect.distributed.herder import Herder
from parley.pipeline.connect.herder_results import Forbidden
from parley.pipeline.connect.rest.app import application
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig
from parley.pipeline.service.errors import ServiceError
from parley.pipeline.service.login import BasicLogin, jaas_file_of
from tests.pipeline.connect.workers import settings

MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
SECRET = "s3cret:with=signs"
CLAIM = {"X-Connect-Authorization": "Z3Vlc3M=", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}


def jaas_file(folder: Path, users: str = f"alice={SECRET}\n") -> Path:
    (folder / "users.properties").write_text(users)
    path = folder / "jaas.conf"
    path.write_text(
        f'/* other programs */ Client {{ a.B required x="y"; }};\nKafkaConnect {{\n  {MODULE} required\n'
        f'    file="{folder / "users.properties"}";\n}};\n'
    )
    return path


@pytest.fixture
def herder() -> Mock:
    herder = Mock(spec=Herder, is_ready=True)
    herder.connectors = AsyncMock(return_value=["a"])
    herder.put_task_configs = AsyncMock(side_effect=Forbidden("Internal request contained invalid signature."))
    herder.fence = AsyncMock(side_effect=Forbidden("Internal request contained invalid signature."))
    return herder


@pytest.fixture
async def client(herder: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr("parley.pipeline.service.login._REFUSAL_DELAY_S", 0)
    app = application(herder, login=BasicLogin(jaas_file(tmp_path)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as client:
        yield client


async def test_the_right_password(client: httpx.AsyncClient) -> None:
    found = await client.get("/connectors", auth=("alice", SECRET))
    assert (found.status_code, found.json()) == (200, ["a"])


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic ?",
        "Bearer abc",
        *("Basic " + base64.b64encode(one).decode() for one in (b"", b":", b"alice", b"alice:", b"\xff:\xff")),
        "Basic " + base64.b64encode(f"alice:{SECRET}x".encode()).decode(),
        "Basic " + base64.b64encode(f"bob:{SECRET}".encode()).decode(),
    ],
)
async def test_a_stranger_learns_nothing(client: httpx.AsyncClient, herder: Mock, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for method, path in (("GET", "/"), ("GET", "/connectors"), ("PUT", "/connectors/a/stop"), ("GET", "/nowhere")):
        found = await client.request(method, path, headers=headers)
        assert found.status_code == 401
        assert found.json() == {"error_code": 401, "message": "User cannot access the resource."}
        assert found.headers["www-authenticate"].startswith("Basic ")
    herder.connectors.assert_not_called()


@pytest.mark.parametrize(("method", "path"), [("POST", "/connectors/a%20b/tasks"), ("PUT", "/connectors/a/fence/")])
async def test_requests_among_workers_are_signed_instead(client: httpx.AsyncClient, method: str, path: str) -> None:
    found = await client.request(method, path, content=b"{bad", headers=CLAIM)  # it is not parsed
    assert (found.status_code, found.json()["message"]) == (403, "Internal request contained invalid signature.")
    assert (await client.request("GET", path, headers=CLAIM)).status_code == 401
    for name in CLAIM:
        unsigned = {key: value for key, value in CLAIM.items() if key != name}
        assert (await client.request(method, path, json=[], headers=unsigned)).status_code == 401


async def test_unverified_signers_get_little_memory(
    client: httpx.AsyncClient, herder: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.pipeline.service.login.UNVERIFIED_BYTES_MAX", 300_000)

    async def send(size: int) -> int:
        return (await client.post("/connectors/a/tasks", content=b"x" * size, headers=CLAIM)).status_code

    async def meanwhile(*_: object) -> None:
        herder.put_task_configs.side_effect = None
        assert await send(150_000) == 503, "the first one still has its memory"
        assert await send(10_000) == 204, "ordinary requests are served"

    herder.put_task_configs.side_effect = meanwhile
    assert await send(300_000) == 204
    assert await send(300_000) == 204, "the memory is free again"
    assert await send(400_000) == 503


async def test_failures_are_logged_without_the_password(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await client.get("/", auth=("alice", "a-guess"))
    assert [one.getMessage() for one in caplog.records] == ["authentication failed: user 'alice' from 127.0.0.1"]


async def test_replaced_users_count_at_once(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "users.properties").write_text("bob=other\n")
    assert (await client.get("/", auth=("alice", SECRET))).status_code == 401
    assert (await client.get("/connectors", auth=("bob", "other"))).status_code == 200
    (tmp_path / "users.properties").unlink()
    assert (await client.get("/connectors", auth=("bob", "other"))).status_code == 200, "the users that were read last"


@pytest.mark.parametrize(
    ("users", "message"), [("", "at least one"), ("alice=", "no password is empty"), ("alice=\\uXYZ1", "malformed")]
)
def test_a_file_that_lets_everyone_in_is_refused(tmp_path: Path, users: str, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        BasicLogin(jaas_file(tmp_path, users))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "KafkaConnect {};",
        "KafkaConnect { a.LdapLoginModule required; };",
        f"KafkaConnect {{ {MODULE} required; }};",
    ],
)
def test_a_jaas_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    with pytest.raises(ServiceError, match="needs a section KafkaConnect"):
        BasicLogin(path)


@pytest.mark.parametrize(
    "text", ["KafkaConnect", "KafkaConnect {", "KafkaConnect { a.B required; }", f'x {{ "{SECRET}"; }};']
)
def test_a_malformed_jaas_file_is_refused_without_its_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    with pytest.raises(ServiceError, match="cannot be read") as refused:
        BasicLogin(path)
    assert SECRET not in str(refused.value)


def test_where_the_jaas_file_is() -> None:
    key = "java.security.auth.login.config"
    options = {"KAFKA_OPTS": f"-Dother=1 -D{key}='/etc/my jaas.conf'"}
    assert jaas_file_of({}, options) == Path("/etc/my jaas.conf")
    assert jaas_file_of({key: "/etc/own.conf"}, options) == Path("/etc/own.conf")
    with pytest.raises(ServiceError, match=f"set {key}"):
        jaas_file_of({}, {})
    with pytest.raises(ServiceError, match="KAFKA_OPTS cannot be read"):
        jaas_file_of({}, {"KAFKA_OPTS": "-Dother='"})


def test_another_extension_is_refused() -> None:
    told = settings("a:1", rest_extension_classes="com.example.Extension") | {"offset.storage.file.filename": "o"}
    with pytest.raises(ServiceError, match="Java class that Parley cannot run"):
        WorkerConfig.parse(told, STANDALONE)
