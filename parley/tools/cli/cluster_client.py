"""Run a command's requests against a cluster: one client, one event loop, and errors that say what to do.

The client does not retry. The functions here repeat a request while the error is retriable (no leader elected yet, the
coordinator is loading its groups), until the command's timeout expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.schema import Request
from parley.tools.cli.common_options import client_properties, warn_ignored
from parley.tools.cli.invocation import CommandError

T = TypeVar("T")
TopicPartition = tuple[str, int]

TIMEOUT_MS = 30_000
_PAUSE_S = 0.1
_USED_PROPERTIES = ("bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol")
_NOT_REACHED = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)


def on_cluster(
    bootstrap: str, command_config: Path | None, work: Callable[[Client], Awaitable[T]], *, timeout_ms: int = TIMEOUT_MS
) -> T:
    """Connect, run ``work`` with the client, disconnect. Raises ``CommandError`` for every failure."""
    properties = client_properties(command_config)
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        raise CommandError(f"security.protocol={protocol} is not supported by this command. Use PLAINTEXT.")
    warn_ignored(name for name in properties if name not in _USED_PROPERTIES)
    wait_ms = properties.get("request.timeout.ms", str(timeout_ms))
    if not wait_ms.isdecimal() or not int(wait_ms):
        raise CommandError(f"request.timeout.ms must be a number of milliseconds above 0, not '{wait_ms}'.")
    try:
        client = Client(bootstrap, client_id=properties.get("client.id", "parley-cli"), timeout=int(wait_ms) / 1000)
    except ValueError as error:
        raise CommandError(f"--bootstrap-server: {error}.") from error

    async def connected() -> T:
        async with client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except KafkaError as error:
        raise CommandError(_explained(error, bootstrap)) from error
    except UnicodeError as error:
        raise CommandError(f"--bootstrap-server: '{bootstrap}' is not a host name.") from error


def _explained(error: KafkaError, bootstrap: str) -> str:
    if error.code in _NOT_REACHED:
        return f"no broker responds at {bootstrap}. Is a broker running? `parley start` starts one. ({error.message})"
    if error.code is ErrorCode.UNSUPPORTED_VERSION:
        return f"the broker is too old for this request: {error.message}."
    return described(error.code, error.message)


def described(code: int, message: str | None = None) -> str:
    """An error code as a message, followed by the code's name for searching."""
    known = ErrorCode(code)
    return f"{message or known.message} ({known.name})"


def check(code: int, message: str | None = None, *, doing: str = "") -> None:
    """Raise ``CommandError`` if the code is not NONE. ``doing`` is put in front of the message."""
    if code != ErrorCode.NONE:
        raise CommandError(f"{doing}: {described(code, message)}" if doing else described(code, message))


async def until_ready(ask: Callable[[], Awaitable[T]], code_of: Callable[[T], int], timeout_ms: int) -> T:
    """Send the request until its error code is not retriable or the timeout expires. Returns the last response.

    REQUEST_TIMED_OUT is not repeated: the broker has waited already, as while the coordination store does not respond.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while True:
        try:
            answer = await ask()
        except KafkaError as error:
            if not _is_temporary(error.code) or error.code in _NOT_REACHED or loop.time() >= deadline:
                raise
        else:
            code = ErrorCode(code_of(answer))
            if not _is_temporary(code) or loop.time() >= deadline:
                return answer
        await asyncio.sleep(_PAUSE_S)


def _is_temporary(code: ErrorCode) -> bool:
    return code.retriable and code is not ErrorCode.REQUEST_TIMED_OUT


async def of_coordinator(
    client: Client, group: str, request: Request, code_of: Callable[[Any], int], *, timeout_ms: int = TIMEOUT_MS
) -> Any:
    """Send a request to the coordinator of a group. Retries while there is no coordinator or it is loading."""

    async def ask() -> Any:
        return await client.send(request, node=await client.coordinator(group))

    return await until_ready(ask, code_of, timeout_ms)


async def by_leader(client: Client, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Group the partitions by leader. Raises ``KafkaError`` if a partition has no leader or does not exist."""
    grouped: dict[int, list[TopicPartition]] = {}
    for topic, index in partitions:
        grouped.setdefault(await client.leader(topic, index), []).append((topic, index))
    return grouped


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group the partitions by topic: the partition numbers of each, sorted."""
    grouped: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        grouped.setdefault(topic, []).append(index)
    return grouped
