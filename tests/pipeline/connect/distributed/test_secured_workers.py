"""A group of workers whose REST API requires TLS with client certificates, and logins."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from parley import Broker
from tests.pipeline.connect.rest.test_login import SECRET, jaas_file
from tests.pipeline.connect.rest.test_settings import AUTHORITY, EXTENSION, tls
from tests.pipeline.connect.workers import RunningWorker, counter, group_worker

pytestmark = pytest.mark.slow

ALGORITHM = "HmacSHA512"


@asynccontextmanager
async def secured_worker(bootstrap: str, group: str, folder: Path) -> AsyncIterator[RunningWorker]:
    told = {
        "listeners": "https://127.0.0.1:0",
        **tls(folder, **{"ssl.client.auth": "required"}),
        "rest.extension.classes": EXTENSION,
        "java.security.auth.login.config": str(jaas_file(folder)),
        "inter.worker.key.generation.algorithm": ALGORITHM,
        "inter.worker.signature.algorithm": ALGORITHM,
        "inter.worker.verification.algorithms": ALGORITHM,
    }
    asking = client(folder, auth=("alice", SECRET))
    async with group_worker(bootstrap, group, asking, **told) as worker:
        yield worker


def client(folder: Path, auth: tuple[str, str] | None) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.load_cert_chain(AUTHORITY.issue("alice").write_pem(folder / "alice.pem"))
    return httpx.AsyncClient(verify=context, auth=auth, timeout=60)


async def test_a_secured_group_works_and_rejects_other_clients(connect_broker: Broker, tmp_path: Path) -> None:
    """One of the workers leads. The other forwards requests to it, and the leader writes the task configurations of its
    connectors."""
    bootstrap, group = connect_broker.bootstrap_servers, f"secured-{uuid4().hex[:8]}"
    names = ["a", "b", "c", "d"]
    async with (
        secured_worker(bootstrap, group, tmp_path) as one,
        secured_worker(bootstrap, group, tmp_path) as other,
        client(tmp_path, auth=None) as stranger,
    ):
        for number, name in enumerate(names):
            worker = (one, other)[number % 2]
            made = await worker.ask("PUT", f"/connectors/{name}/config", counter(group, 1))
            assert made.status_code == 201
            assert made.headers["location"] == f"{worker.url}connectors/{name}"
        for name in names:
            await one.reaches(name, "RUNNING", "RUNNING")
        owners = [(await one.get(f"/connectors/{name}/status"))["connector"]["worker_id"] for name in names]
        assert len(set(owners)) == 2, "each has connectors, so one of them asked the leader to write tasks"
        for worker in (one, other):
            assert (await stranger.get(f"{worker.url}connectors")).status_code == 401
            guessed = await stranger.put(f"{worker.url}connectors/a/stop", auth=("alice", "guess"))
            assert guessed.status_code == 401
            assert (await stranger.post(f"{worker.url}connectors/a/tasks", json=[{}])).status_code == 401
            unsigned = await worker.ask("POST", "/connectors/a/tasks", [{}])
            assert unsigned.status_code == 400
            assert "missing required signature" in unsigned.text
