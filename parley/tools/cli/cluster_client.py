"""Run a command's requests against a cluster: one client, one event loop, and errors that say what to do.

The client does not retry. The functions here repeat a request while the error is retriable (no leader elected yet, the
coordinator is loading its groups), until the command's timeout expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from parley.protocol.client import Client, ConnectionClosed, NoBrokerResponds, NotAuthenticated
from parley.protocol.connection import OtherProtocol
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import MAYBE_TLS
from parley.protocol.schema import Request
from parley.protocol.security.client_security import client_security, is_security_key
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.common_options import client_properties, is_misspelled, security_of, warn_ignored
from parley.tools.cli.invocation import CommandError, sentence

T = TypeVar("T")

TIMEOUT_MS = 30_000
_PAUSE_S = 0.1
_ASKED_AGAIN_S = 5.0
_CONNECT_S = 10.0
CLOSES_CONNECTIONS = "closes the connections of this client"
"""The part of the message that appears if a broker accepts connections and closes them."""
_USED_PROPERTIES = ("bootstrap.servers", "client.id", "request.timeout.ms")
_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "--topic TOPIC",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "--group GROUP",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "--cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "--transactional-id ID",
}
"""The option of ``parley acls`` that names the resource on which the user lacks a right, by error code."""
_NOT_REACHED = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)


def on_cluster(
    bootstrap: str,
    command_config: Path | Mapping[str, str] | None,
    work: Callable[[Client], Awaitable[T]],
    *,
    timeout_ms: int = TIMEOUT_MS,
) -> T:
    """Connect, run ``work`` with the client, disconnect, and return the result of ``work``. Raises ``CommandError`` if
    the settings are invalid or ``work`` raises KafkaError, for example because no broker responds. Other errors of
    ``work`` stay unchanged.

    ``command_config`` is a properties file, or its content. If it is the content, misspelled security settings are not
    mentioned: librdkafka's client, which has other such settings, has warned about its own. The client waits
    ``timeout_ms`` for each response, unless ``request.timeout.ms`` is set.
    """
    if isinstance(command_config, Mapping):
        properties = dict(command_config)
        ignored = [name for name in properties if not is_security_key(name)]
    else:
        properties = client_properties(command_config)
        ignored = [name for name in properties if not is_security_key(name) or is_misspelled(name)]
    warn_ignored(name for name in ignored if name not in _USED_PROPERTIES)
    security = security_of(properties, "--command-config")
    wait_ms = properties.get("request.timeout.ms", str(timeout_ms))
    if not wait_ms.isdecimal() or not int(wait_ms):
        raise CommandError(f"request.timeout.ms must be a number of milliseconds above 0, not '{wait_ms}'.")
    try:
        client = Client(
            bootstrap,
            client_id=properties.get("client.id", "parley-cli"),
            security=security,
            timeout=int(wait_ms) / 1000,
            connect_timeout=min(_CONNECT_S, int(wait_ms) / 1000),
        )
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
    if isinstance(error, NotAuthenticated):
        return f"{error.message}. The security settings come from --command-config. ({error.code.name})"
    if _speaks_http(error):
        return (
            f"{bootstrap} speaks HTTP, not Kafka's protocol, like the port of a broker's metrics. Name the port of "
            "one of the broker's listeners."
        )
    if _is_closed(error):
        return (
            f"{bootstrap} {CLOSES_CONNECTIONS}. If the listener needs TLS or a login, set "
            f"security.protocol and its settings in --command-config. ({_reasons(error)})"
        )
    if error.code in _NOT_REACHED:
        return (
            f"no broker responds at {bootstrap}. Is a broker running? `parley start` starts one. "
            f"--bootstrap-server or --profile names another. ({_reasons(error)})"
        )
    if error.code is ErrorCode.UNSUPPORTED_VERSION:
        return sentence(f"the broker is too old for this request: {error.message}")
    return described(error.code, error.message) + _next_step(error.code)


def _failures(error: KafkaError) -> tuple[KafkaError, ...]:
    """Return the error of each address that the client tried, or ``error`` itself if it concerns a single
    connection."""
    return error.failures if isinstance(error, NoBrokerResponds) else (error,)


def _reasons(error: KafkaError) -> str:
    """Join the messages of all failures, without the client's advice, because the command gives its own."""
    return "; ".join(each.message.removesuffix(MAYBE_TLS) for each in _failures(error))


def _speaks_http(error: KafkaError) -> bool:
    return any(isinstance(each, ConnectionClosed) and each.protocol is OtherProtocol.HTTP for each in _failures(error))


async def why_refused(bootstrap: str, security: Mapping[str, str]) -> str:
    """Return why brokers that accept connections do not serve a client with these settings, or an empty string if the
    reason is unknown.

    librdkafka cannot distinguish an unreachable broker from a listener that closes the connection because it requires
    TLS or a login.
    """
    try:
        client = Client(
            bootstrap, security=client_security(security), timeout=_ASKED_AGAIN_S, connect_timeout=_ASKED_AGAIN_S
        )
        async with client:
            await client.metadata([])
    except KafkaError as error:
        is_told = isinstance(error, NotAuthenticated) or _is_closed(error)
        return _explained(error, bootstrap) if is_told else ""
    except (OSError, ValueError):  # such as settings that only librdkafka knows
        return ""
    return ""


def _is_closed(error: KafkaError) -> bool:
    """Return True if a broker accepted a connection and then closed it, as listeners that require TLS or a login do."""
    return any(isinstance(each, ConnectionClosed) for each in _failures(error))


def described(code: int, message: str | None = None) -> str:
    """Return ``message``, or the standard message of the error code, followed by the code's name so that users can
    search for it."""
    known = ErrorCode(code)
    return f"{message or known.message} ({known.name})"


def check(code: int, message: str | None = None, *, doing: str = "") -> None:
    """Raise ``CommandError`` with advice, unless the code is NONE. Its message starts with ``doing``, which says what
    failed."""
    if code != ErrorCode.NONE:
        text = described(code, message) + _next_step(code)
        raise CommandError(f"{doing}: {text}" if doing else text)


def _next_step(code: int) -> str:
    """Return advice on an error that an administrator can resolve, or an empty string."""
    resource = _RIGHTS.get(ErrorCode(code))
    return (
        f". An administrator grants the right: `parley acls --add --allow-principal User:NAME --operation OPERATION "
        f"{resource}`; docs/authorization.md lists the operation for each request."
        if resource
        else ""
    )


async def until_ready(ask: Callable[[], Awaitable[T]], code_of: Callable[[T], int], timeout_ms: int) -> T:
    """Repeat the request while its error code is retriable, until the timeout expires. Returns the last response, which
    may still contain an error code. Raises KafkaError if the last request got no response.

    A request that failed with REQUEST_TIMED_OUT is not repeated: the broker has already waited, for example because the
    coordination store did not respond.
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
    """Send a request to the coordinator of a group, and return its response, which may contain an error code. Retries
    until the timeout while the coordinator is unavailable or loading. Raises KafkaError if the last request got no
    response."""

    async def ask() -> Any:
        return await client.send(request, node=await client.coordinator(group))

    return await until_ready(ask, code_of, timeout_ms)


async def by_leader(client: Client, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Group the partitions by the id of their leader. Raises ``KafkaError`` if a partition has no leader or does not
    exist."""
    grouped: dict[int, list[TopicPartition]] = {}
    for topic, index in partitions:
        grouped.setdefault(await client.leader(topic, index), []).append((topic, index))
    return grouped


def led_by(topics: Iterable[Any]) -> dict[int, list[TopicPartition]]:
    """Group the partitions of a Metadata response's topics by the id of their leader. Omits partitions without a
    leader."""
    grouped: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                grouped.setdefault(partition.leader_id, []).append((topic.name or "", partition.partition_index))
    return grouped


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group the partitions by topic, as sorted partition numbers."""
    grouped: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        grouped.setdefault(topic, []).append(index)
    return grouped
