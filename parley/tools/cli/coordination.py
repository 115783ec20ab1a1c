"""``parley coordination``: check, show, back up and restore a coordination store, or move a cluster to another."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.tools.cli.app import App, example_text
from parley.tools.cli.cluster_client import check as check_code
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, CommandConfig, OnlyBootstrapServer, OutputFormat
from parley.tools.cli.invocation import FAILED, CommandError
from parley.tools.cli.output import print_data
from parley.tools.cli.store_client import OPEN_MAX_S, in_store, run_on_store, store_address

if TYPE_CHECKING:
    from parley.consensus.protection import Protection
    from parley.protocol.client import Client

POLL_S = 0.1

_EXAMPLES = {
    "check": [
        ("parley coordination check etcd://db1:2379,db2:2379/kafka", "would a cluster run on this store?"),
        ("parley coordination check --config server.properties", "the store of this broker: is it locked?"),
    ],
    "status": [
        ("parley coordination status --config server.properties", "the store that this broker uses"),
        ("parley coordination status local:///var/lib/parley/coordination --json", "as JSON"),
    ],
    "dump": [
        (
            "parley coordination dump --config server.properties --show-secrets > store.json",
            "a backup that can be restored",
        )
    ],
    "restore": [
        (
            "parley coordination restore store.json zookeeper://zk1:2181/kafka",
            "after the old store is lost; stop all brokers first",
        ),
    ],
    "migrate": [
        ("parley coordination migrate --to etcd://db1:2379/kafka", "move the running cluster to another store"),
        ("parley coordination migrate --status", "the state of the latest move"),
    ],
}

app = App(
    "Check, show, back up and restore a coordination store, or move a running cluster to another store.\n\n"
    "`parley coordination COMMAND --help` describes a subcommand.",
    examples=[each[0] for each in _EXAMPLES.values()],
)

_Url = Annotated[str | None, typer.Argument(metavar="[URL]", help="The store's URL, as in coordination.url.")]
_UrlOption = Annotated[
    str | None, typer.Option("--coordination-url", metavar="URL", help="The store's URL, as an option.")
]
_Config = Annotated[Path | None, typer.Option("--config", "-c", help="A broker's properties file, instead of the URL.")]


def _one_of(url: str | None, coordination_url: str | None) -> str | None:
    """Return the store's URL, which may be given as an argument or an option, or None if it is not given. Raises
    ``CommandError`` if both are given."""
    if url is not None and coordination_url is not None:
        raise CommandError("Name one store: its URL, or --coordination-url.")
    return coordination_url if url is None else url


def check(
    url: _Url = None, coordination_url: _UrlOption = None, config: _Config = None, output_format: OutputFormat = None
) -> None:
    """Check whether a cluster would run on a store, how well, and whether other clients are kept out.

    The check writes keys below a temporary prefix and removes them. An empty store gets its identity. The exit code
    is 0 if a cluster would run on the store. `parley security check` fails if the store is open to other clients.
    """
    from parley.tools.coordination.store_fitness import check as check_store

    address, backend_at = store_address(_one_of(url, coordination_url), config)

    async def work() -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        backend = await backend_at(address)
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                await backend.open()
            return await check_store(backend, loop.time() - begun)
        finally:
            await backend.close()

    found = run_on_store(work)
    if output_format:
        print_data(found.as_data(address), output_format)
    else:
        for name in found.passed:
            print(f"ok      {name}")
        for problem in found.problems:
            print(f"FAILED  {problem}")
        print("ms      " + ", ".join(f"{name} {value:g}" for name, value in found.latencies_ms.items()))
        for line in _protection_lines(found.protection):
            print(line)
        print(found.verdict)
    if found.problems:
        raise typer.Exit(FAILED)


def _protection_lines(protection: Protection) -> Iterator[str]:
    for finding in (protection.tree, protection.connection):
        advice = f": to close it, {finding.advice}" if finding.advice else ""
        yield f"{finding.guard.value:<7} {finding.text}{advice}"


def status(
    url: _Url = None, coordination_url: _UrlOption = None, config: _Config = None, output_format: OutputFormat = None
) -> None:
    """Show the controller, the brokers with their sessions, the number of watches, and the size of the stored data."""
    from parley.tools.coordination.status import status_of

    address, backend_at = store_address(_one_of(url, coordination_url), config)
    found = run_on_store(lambda: in_store(address, backend_at, lambda backend: status_of(backend, address)))
    if output_format:
        print_data(found.as_data(), output_format)
    else:
        print("\n".join(found.as_text()))


def dump(
    url: _Url = None,
    coordination_url: _UrlOption = None,
    config: _Config = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Include secret settings; a dump without them cannot be restored.")
    ] = False,
) -> None:
    """Print the persistent contents of a store as JSON: topics, partitions, settings, counters and epochs.

    Fails if the cluster has moved away from the store, because the contents are then out of date.
    """
    from parley.tools.coordination.dump_and_restore import NotDumped
    from parley.tools.coordination.dump_and_restore import dump as dump_store

    address, backend_at = store_address(_one_of(url, coordination_url), config)
    try:
        found = run_on_store(
            lambda: in_store(address, backend_at, lambda each: dump_store(each, show_secrets=show_secrets))
        )
    except NotDumped as reason:
        raise CommandError(f"Nothing was dumped: {reason}.") from reason
    print(json.dumps(found, indent=1))


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The output of `dump`; - for standard input.")],
    url: _Url = None,
    coordination_url: _UrlOption = None,
    config: _Config = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Restore even if the store is not empty.")] = False,
) -> None:
    """Restore the output of `dump` into a store, to replace a lost one.

    The cluster then has the topics and settings of the dump: topics created since are unknown to it. Stop all
    brokers first, and never run brokers on the old store again. Afterwards start all brokers with their data: no
    partition has a leader before all its replicas have reported their logs.
    """
    from parley.tools.coordination.dump_and_restore import NotRestored
    from parley.tools.coordination.dump_and_restore import restore as restore_store

    address, backend_at = store_address(_one_of(url, coordination_url), config)
    dumped = _read(file)

    async def work() -> int:
        backend = await backend_at(address)
        try:
            await backend.open()
            return await restore_store(backend, dumped, overwrite=overwrite)
        finally:
            await backend.close()

    try:
        count = run_on_store(work)
    except NotRestored as reason:
        raise CommandError(f"Nothing was restored: {reason}.") from reason
    print(f"Restored {count} keys. Start all brokers: partitions wait for all of their replicas.", file=sys.stderr)


def migrate(
    to: Annotated[str | None, typer.Option("--to", help="Move to the store at this URL.")] = None,
    show_status: Annotated[bool, typer.Option("--status", help="Only show the state of the latest move.")] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Abort the move in progress, if it can still be aborted.")
    ] = False,
    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    output_format: OutputFormat = None,
) -> None:
    """Move a running cluster to another store.

    Clients are not interrupted. The new store must be empty, or a store that this cluster has moved away from, and
    every broker must reach it at this URL. At any time exactly one store is in use, even after a failure: the old one
    until the move is done, the new one from then on.
    """
    if [to is not None, show_status, abort].count(True) != 1:
        raise CommandError("Name exactly one of --to, --status, --abort.")

    async def work(client: Client) -> Any:
        if to is not None:
            return await _move(client, to, quiet=output_format is not None)
        return await _ask(client, 1 if show_status else 2)

    answer = on_cluster(bootstrap_server, command_config, work)
    if output_format:
        print_data(
            {name: getattr(answer, name) for name in ("move", "state", "step", "detail", "store")}, output_format
        )
    else:
        print(_sentence(answer, is_request=to is not None))
    if to is not None and answer.state not in ("done", "none"):
        raise typer.Exit(FAILED)


async def _ask(client: Client, action: int, url: str | None = None) -> Any:
    from parley.protocol.errors import ErrorCode
    from parley.protocol.messages.coordination import MigrateCoordinationRequest

    answer = await client.send(MigrateCoordinationRequest(action=action, url=url))
    if answer.error_code != ErrorCode.NOT_CONTROLLER:
        check_code(answer.error_code, answer.error_message)
    return answer


async def _move(client: Client, url: str, *, quiet: bool) -> Any:
    """Start the move and wait until it ends. Returns its last state. Tolerates a change of controller. Raises
    ``CommandError`` if the controller rejects the move, or changes before the move has begun."""
    from parley.protocol.errors import ErrorCode, KafkaError
    from parley.protocol.messages.coordination import START, STATUS

    begun = await _ask(client, START, url)
    check_code(begun.error_code, begun.error_message)
    shown = ""
    while True:
        await asyncio.sleep(POLL_S)
        try:
            answer = await _ask(client, STATUS)
        except KafkaError as error:
            if not error.code.retriable:
                raise
            continue
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            continue
        if answer.move != begun.move:
            raise CommandError(
                "The controller changed before the move began: the old store is still in use. Try again."
            )
        if answer.state != "under way":
            return answer
        if (text := f"{answer.step}  {answer.detail}".rstrip()) != shown and not quiet:
            shown = text
            print(text, file=sys.stderr)


def _sentence(answer: Any, *, is_request: bool) -> str:
    from parley.broker.store_move.driver import ALREADY_USED

    match answer.state:
        case "done" | "none" if is_request and answer.detail == ALREADY_USED:
            return f"Nothing was moved: {answer.detail}. It uses {answer.store}."
        case "done":
            return f"The cluster has moved. It uses {answer.store}."
        case "failed":
            return f"The cluster has not moved: {answer.detail or answer.step}. It uses {answer.store}."
        case "under way":
            return f"A move is in progress: {answer.step} {answer.detail}".rstrip() + "."
        case _:
            return f"The cluster has never moved. It uses {answer.store}."


def _read(file: Path) -> Any:
    try:
        return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except OSError as error:
        raise CommandError(f"The file {file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is not valid JSON: {error}.") from error


_COMMANDS: dict[str, Callable[..., None]] = {
    "check": check,
    "status": status,
    "dump": dump,
    "restore": restore,
    "migrate": migrate,
}
for _name, _function in _COMMANDS.items():
    app.command(name=_name, epilog=example_text(_EXAMPLES[_name]))(_function)
