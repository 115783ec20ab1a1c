"""The protection of stores from other clients: each store unprotected, and locked as for ``make cluster SECURE=1``."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from parley.consensus.errors import CoordinationError, Unauthorized
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.protection import Guard
from parley.consensus.registry import create_backend
from parley.consensus.zookeeper.address import parse
from parley.consensus.zookeeper.connection import synchronous_client
from parley.tools.secured_demo.certificates import Authority, write_private
from parley.tools.store_locks import Lock
from parley.tools.store_servers import KINDS
from tests.support.stores.of_tools import store_server
from tests.support.stores.running import below


async def test_the_embedded_store_is_for_its_owner_unless_its_folder_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with create_backend(f"local://{folder}") as backend:
        assert (await backend.protection()).tree.guard is Guard.CLOSED
        folder.chmod(0o750)
        found = (await backend.protection()).tree
        assert (found.guard, found.advice) == (Guard.OPEN, f"chmod -R go-rwx {folder}")


async def test_a_store_in_memory_has_no_other_clients() -> None:
    async with MemoryBackend(MemoryStore()) as backend:
        found = await backend.protection()
        assert {found.tree.guard, found.connection.guard} == {Guard.CLOSED}


@pytest.mark.system
@pytest.mark.parametrize(
    ("store", "text", "advice"),
    [
        ("zookeeper", "is open to world:anyone", "zookeeper-security-migration --zookeeper.acl secure"),
        ("etcd", "etcd has no users", "etcdctl auth enable"),
        ("consul", "clients without a token may read", 'default_policy = "deny"'),
    ],
)
async def test_a_store_without_accounts_is_open(
    real_store: Callable[[str], str], store: str, text: str, advice: str
) -> None:
    async with create_backend(below(real_store(store), f"test-{secrets.token_hex(8)}")) as backend:
        found = await backend.protection()
        assert (found.tree.guard, found.connection.guard) == (Guard.OPEN, Guard.OPEN)
        assert text in found.tree.text
        assert advice in found.tree.advice
        assert "ca-file in coordination.url" in found.connection.advice
        assert (await backend.list("", limit=10)).entries == ()


@pytest.mark.system
async def test_a_tree_that_is_locked_in_part_is_open(real_store: Callable[[str], str], tmp_path: Path) -> None:
    write_private(tmp_path / "password", "secret")
    url = below(real_store("zookeeper"), f"test-{secrets.token_hex(8)}")
    url += f"?acl=true&user=parley&password-file={tmp_path}/password"
    async with create_backend(url) as backend:
        await backend.put("a", b"1")
        assert (await backend.protection()).tree.guard is Guard.CLOSED
        address = parse(url, {})
        with synchronous_client(address.endpoint) as client:
            (name, *_) = client.get_children(f"{address.root}/identity")
            client.set_acls(f"{address.root}/identity/{name}", OPEN_ACL_UNSAFE)
        found = (await backend.protection()).tree
        assert found.guard is Guard.OPEN
        assert f"{address.root}/identity/{name} is open" in found.text


@pytest.mark.system
@pytest.mark.parametrize("store", KINDS)
async def test_a_locked_store_is_closed_and_stays_so_after_a_restart(store: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("password", "root"):
        write_private(tmp_path / name, str(uuid.uuid4()))
    certificate = authority.issue(tmp_path / "store.pem", "store")
    lock = Lock(authority.certificate_file, certificate, tmp_path / "password", tmp_path / "root")
    with store_server(store, tmp_path / store, lock=lock) as url:
        async with create_backend(url) as backend:
            await backend.put("kept", b"1")
            found = await backend.protection()
            assert (found.tree.guard, found.connection.guard) == (Guard.CLOSED, Guard.CLOSED), found
        await _refuses_strangers(url)
    with store_server(store, tmp_path / store, lock=lock) as url:
        async with create_backend(url) as backend:
            entry = await backend.get("kept")
            assert entry is not None
            assert entry.value == b"1"


async def _refuses_strangers(url: str) -> None:
    address, _, query = url.partition("?")
    authority = dict(parse_qsl(query))["ca-file"]
    for stranger, error in ((address, CoordinationError), (f"{address}?ca-file={authority}", Unauthorized)):
        client = create_backend(stranger)
        with pytest.raises(error):
            await client.open()
        await client.close()
