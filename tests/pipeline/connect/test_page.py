"""The examples of docs/connect.md work: its files, commands, requests, and a connector written from the page alone."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from parley import Broker
from tests.pipeline.connect.workers import file_source, lines, standalone_worker, until

PAGE = (Path(__file__).parents[3] / "docs" / "connect.md").read_text()
LINES_MAX = 50
START_SECONDS = 60

pytestmark = pytest.mark.slow


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@contextmanager
def typed(command: str, folder: Path) -> Iterator[str]:
    """Run the command in the folder until the end of the block. Yields its URL once it is ready."""
    words = shlex.split(command)
    assert words[0] == "parley"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "parley", *words[1:]],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Connect is ready: "):
                break
        else:
            raise AssertionError("".join(said))
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0


def send(request: str) -> None:
    words = [*shlex.split(request), "--fail-with-body", "--max-time", "60"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (request, done.stdout, done.stderr)


async def test_the_first_connectors_and_requests(connect_broker: Broker, tmp_path: Path) -> None:
    for text in blocks("ini"):
        name = text.partition("\n")[0].removeprefix("# ")
        if name.endswith(".properties"):
            text = text.replace("127.0.0.1:9092", connect_broker.bootstrap_servers)
            (tmp_path / name).write_text(text + ("listeners=http://127.0.0.1:0\n" if "worker" in name else ""))
    (tmp_path / "in.txt").write_text("a\nb\n")
    [command] = [text.strip() for text in blocks("sh") if text.startswith("parley connect standalone")]
    [requests] = [text for text in blocks("sh") if text.startswith("curl")]
    with typed(command, tmp_path) as url:
        assert await lines(tmp_path / "out.txt", 2) == ["a", "b"]
        for request in requests.splitlines():
            await asyncio.to_thread(send, request.replace("http://127.0.0.1:8083/", url))
    with (tmp_path / "in.txt").open("a") as file:
        file.write("c\n")
    with typed(command, tmp_path):
        assert await lines(tmp_path / "out.txt", 3) == ["a", "b", "c"]


async def test_a_connector_written_from_the_page(
    connect_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next(text for text in blocks("python") if "class FolderSource(" in text)
    assert len(program.splitlines()) < LINES_MAX
    plugins, source, target = (tmp_path / name for name in ("plugins", "from", "to"))
    for folder in (plugins, source, target):
        folder.mkdir()
    (plugins / "folders.py").write_text(program)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (source / "1.txt").write_text("first")
    more = {"plugin_path": str(plugins)}
    wanted = {
        "in": {"connector.class": "folders.FolderSource", "folder": str(source), "topic": "folders"},
        "out": {"connector.class": "folders.FolderSink", "folder": str(target), "topics": "folders"},
    }
    async with standalone_worker(connect_broker.bootstrap_servers, tmp_path, **more) as worker:
        for name, config in wanted.items():
            made = await worker.ask("PUT", f"/connectors/{name}/config", config)
            assert made.status_code == 201, made.text
        assert await lines(target / "1.txt", 1) == ["first"]
        (source / "2.txt").write_text("second")
        assert await lines(target / "2.txt", 1) == ["second"]
        missing = await worker.ask("PUT", "/connectors/in/config", {"connector.class": "folders.FolderSource"})
        assert (missing.status_code, "folder" in missing.json()["message"]) == (400, True)
        partition = {"folder": str(source)}
        await until(
            lambda: worker.get("/connectors/in/offsets"),
            lambda found: found == {"offsets": [{"partition": partition, "offset": {"last": "2.txt"}}]},
        )
        (target / "1.txt").unlink()
    (source / "3.txt").write_text("third")
    async with standalone_worker(connect_broker.bootstrap_servers, tmp_path, **more) as worker:
        for name, config in wanted.items():
            await worker.ask("PUT", f"/connectors/{name}/config", config)
        assert await lines(target / "3.txt", 1) == ["third"]
        assert not (target / "1.txt").exists()


async def test_an_exactly_once_sink_written_from_the_page(
    connect_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = next(text for text in blocks("python") if "ExactlyOnceSinkTask" in text)
    assert len(program.splitlines()) < LINES_MAX
    (tmp_path / "rows.py").write_text(program)
    (tmp_path / "in.txt").write_text("a\nb\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    sink = {"connector.class": "rows.Rows", "topics": "rows", "file": str(tmp_path / "database")}
    wanted = {"in": file_source(tmp_path / "in.txt", "rows"), "out": sink}
    database = tmp_path / "database"
    for count, more in ((3, "c"), (4, "d")):  # rows that were written before are not written again
        async with standalone_worker(connect_broker.bootstrap_servers, tmp_path, plugin_path=str(tmp_path)) as worker:
            for name, config in wanted.items():
                made = await worker.ask("PUT", f"/connectors/{name}/config", config)
                assert made.status_code == 201, made.text
            with (tmp_path / "in.txt").open("a") as file:
                file.write(f"{more}\n")
            await until(partial(asyncio.to_thread, rows, database), partial(has, count))
    assert rows(database) == ["a", "b", "c", "d"]


def has(count: int, found: list[str]) -> bool:
    return len(found) >= count


def rows(database: Path) -> list[str]:
    """Return the values in the table that the page's sink fills."""
    with sqlite3.connect(database) as connection:
        there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rows'").fetchone()[0]
        return [value for (value,) in connection.execute("SELECT value FROM rows")] if there else []


def test_an_error_names_the_package_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "worker.properties").write_text(blocks("ini")[0])
    program = "import sys; sys.modules['starlette'] = None; from parley.tools.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "connect", "standalone", str(tmp_path / "worker.properties")]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    assert done.returncode == 1
    assert "needs starlette, which is not installed" in done.stderr
    assert "[connect]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_connector_of_the_page_is_there() -> None:
    from parley.pipeline.connect.connector import Connector
    from parley.pipeline.connect.plugins import Plugins

    names = set(re.findall(r"^connector\.class=(.*)$", PAGE, re.MULTILINE))
    rows = re.findall(r"^\| (`\w+(?:Source|Sink)`.*?) \|", PAGE, re.MULTILINE)
    names |= {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    plugins = Plugins()
    for name in names:
        plugins.load(name, Connector)  # type: ignore[type-abstract]
    for text in blocks("ini"):
        given = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        if "connector.class" not in given:
            continue
        definition = plugins.load(given["connector.class"], Connector).config_def  # type: ignore[type-abstract]
        assert given.keys() - {"name", "connector.class", "topics"} <= definition.keys.keys()
        assert not [one.errors for one in definition.validate(given) if one.errors]
