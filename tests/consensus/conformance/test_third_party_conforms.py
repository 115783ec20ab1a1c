"""A backend from a third-party package is installed, found by its entry point, and tested on a real PostgreSQL server.

The package is ``tests/third_party/parley_postgresql``. It is installed into a directory that is on the path only while
this module runs, so no other test sees it.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.config.describe import describe_broker
from parley.consensus.backend import ABSENT
from parley.consensus.conformance import ConformanceSuite
from parley.consensus.errors import BadConfig, Unauthorized, WrongStore
from parley.consensus.registry import backend_factory, configured_url, create_backend, schemes

SOURCE = Path(__file__).parents[2] / "third_party" / "parley_postgresql"
NAME = "parley_postgresql"
_running: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the package as a user would, start its server, and yield the directory of the installation."""
    source, target = tmp_path_factory.mktemp("source") / NAME, tmp_path_factory.mktemp("installed")
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", target, source], check=True, timeout=120)
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    try:
        with importlib.import_module(f"{NAME}.proving").running() as server:
            _running.append(server)
            yield target
    finally:
        _running.clear()
        sys.path.remove(str(target))
        for module in [module for module in sys.modules if module.partition(".")[0] == NAME]:
            del sys.modules[module]


@pytest.fixture
def url() -> str:
    """Return the address of the running server."""
    address: str = _running[0].url
    return address


@pytest.mark.system
class TestPostgresql(ConformanceSuite):
    harness = staticmethod(lambda: importlib.import_module(f"{NAME}.proving").PostgresqlHarness(_running[0]))
    slow_marks = (pytest.mark.soak,)  # ``make test`` runs them on Parley's own stores


@pytest.mark.system
async def test_the_scheme_is_known_by_the_installed_entry_point(installed: Path, url: str) -> None:
    assert "postgresql" in schemes()
    async with create_backend(f"{url}&schema=found") as store:
        assert Path(sys.modules[type(store).__module__].__file__ or "").is_relative_to(installed)
        await store.put("a", b"1", expect=ABSENT)
    async with create_backend(f"{url}&schema=found") as again, create_backend(f"{url}&schema=other") as other:
        entry = await again.get("a")
        assert entry is not None
        assert entry.value == b"1"
        assert await other.get("a") is None
        assert again.identity != other.identity


@pytest.mark.system
async def test_opening_fails_without_write_permission(url: str) -> None:
    import asyncpg

    async with create_backend(f"{url}&schema=owned"):
        connection = await asyncpg.connect(url)
        with suppress(asyncpg.DuplicateObjectError):
            await connection.execute("CREATE ROLE reader LOGIN")
        await connection.execute("GRANT USAGE ON SCHEMA owned TO reader")
        await connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA owned TO reader")
        await connection.close()
        reader = create_backend(f"{url.replace('parley@', 'reader@')}&schema=owned")
        with pytest.raises(Unauthorized, match="permission denied"):
            await reader.open()
        stranger = create_backend(f"{url.replace('parley@', 'nobody-such@')}&schema=owned")
        with pytest.raises(Unauthorized):
            await stranger.open()


@pytest.mark.system
async def test_a_store_put_back_to_an_older_state_is_refused_before_anything_is_written(url: str) -> None:
    import asyncpg

    async with create_backend(f"{url}&schema=put_back") as store:
        session = await store.open_session(60_000)
        for n in range(3):
            await store.put("a", b"%d" % n)
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE put_back.store SET revision = revision - 2")
        with pytest.raises(WrongStore, match="rolled back to an older state"):
            await store.put("a", b"late")
        await session.lost.wait()
        assert await connection.fetchval("SELECT value FROM put_back.entries") == b"2"
        await connection.close()


@pytest.mark.system
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://h", "expected postgresql://"),
        ("postgresql:///database", "expected postgresql://"),
        ("postgresql://u:secret@h/d?schema=Drop%20Table", "is not a name"),
    ],
)
def test_addresses_that_make_no_sense(address: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        create_backend(address)
    assert "secret" not in str(caught.value)


@pytest.mark.system
async def test_a_database_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(BadConfig, match="absent"):
        await create_backend(url.replace("/postgres?", "/absent?")).open()


@pytest.fixture
async def guarded(url: str) -> AsyncIterator[str]:
    """Yield the address of a schema whose owner must log in with the password, ``open sesame``."""
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'open sesame'")
    await connection.execute("GRANT CREATE ON DATABASE postgres TO guarded")
    rules = Path(await connection.fetchval("SHOW hba_file"))
    before = await asyncio.to_thread(rules.read_text)
    await asyncio.to_thread(rules.write_text, f"host all guarded 127.0.0.1/32 scram-sha-256\n{before}")
    await connection.execute("SELECT pg_reload_conf()")
    yield f"{url.replace('parley@', 'guarded@')}&schema=guarded"
    await asyncio.to_thread(rules.write_text, before)
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


@pytest.mark.system
async def test_the_password_comes_from_the_stores_own_key_in_the_configuration(guarded: str) -> None:
    config = BrokerConfig.from_properties({"coordination.url": guarded, "postgresql.password": "open sesame"})
    assert config.warnings == ()
    assert "open sesame" not in str(describe_broker(config))
    async with await backend_factory(config.given)(configured_url(config.given)) as store:
        await store.put("a", b"1")
    with pytest.raises(Unauthorized):
        await (await backend_factory({"postgresql.password": "wrong"})(guarded)).open()
