"""``parley support-bundle``: collect the data that helps to diagnose a problem in one archive, without secrets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import CommandConfig, client_properties
from parley.tools.cli.doctor import metrics_of, progress
from parley.tools.cli.invocation import CommandError, silence_store_clients

if TYPE_CHECKING:
    from parley.tools.support_bundle.contents import Contents

app = App(
    "Collect in one archive, without secrets, what helps to diagnose a problem: findings of the doctor, "
    "configuration, metadata, metrics, versions, and the ends of logs.\n\n"
    "Name the broker's properties file if this is its machine, the cluster if it responds, or both. The archive's "
    "README.txt lists what could not be collected. The command changes nothing, and sends nothing anywhere.",
    examples=[
        ("parley support-bundle broker.properties --log parley.log", "a broker that does not start, on its machine"),
        ("parley support-bundle --bootstrap-server broker1:9092", "a running cluster"),
        ("parley support-bundle broker.properties --bootstrap-server broker1:9092 --to bundle.tar.gz", "both"),
    ],
)


@app.only_command()
def support_bundle(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A broker's properties file.")] = None,
    bootstrap_server: Annotated[
        str | None, typer.Option("--bootstrap-server", help="A running cluster: host:port,host:port,...")
    ] = None,
    command_config: CommandConfig = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", help="A broker's metrics: ID=[https://]host:port, instead of its own setting. Repeatable."
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="A log, such as the broker's. Only its end is included. Repeatable."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The archive; by default parley-support-TIME.tar.gz in this folder.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, max=86_400, help="Seconds for each of the two examinations.")
    ] = 120.0,
) -> None:
    from parley.tools.support_bundle.archive import write
    from parley.tools.support_bundle.contents import Contents, add_log, add_versions
    from parley.tools.support_bundle.known_secrets import of_addresses, secrets_in
    from parley.tools.support_bundle.masks import Masks

    if file is None and bootstrap_server is None:
        raise CommandError("Name a broker's properties file, a running cluster with --bootstrap-server, or both.")
    when = datetime.now(UTC)
    target = to or Path(f"parley-support-{when:%Y%m%dT%H%M%SZ}.tar.gz")
    if target.exists():
        raise CommandError(f"{target} already exists: choose another name with --to.")
    urls = metrics_of(metrics or [])
    client = client_properties(command_config)
    written, resolved = _settings_of(file) if file is not None else ({}, {})
    silence_store_clients()
    contents = Contents()
    add_versions(contents)
    if file is not None:
        _add_machine(contents, file, written, time_limit)
    if bootstrap_server is not None:
        _add_cluster(contents, bootstrap_server, client, urls, resolved if file is not None else None, time_limit)
    for each in log or []:
        add_log(contents, each)
    masks = Masks(
        [
            *secrets_in(resolved),
            *secrets_in(client),
            *of_addresses(" ".join(urls.values())),
        ]
    )
    try:
        write(target, contents, masks, when)
    except OSError as error:
        raise CommandError(f"The archive {target} cannot be written: {error.strerror}.") from error
    print(target)
    for text in contents.missing:
        print(f"Not in it: {masks.text(text)}", file=sys.stderr)


def _settings_of(file: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the settings of a file as written, and with the values that config providers supply. Raises
    ``CommandError`` if the file cannot be read or a value cannot be supplied."""
    from parley.configuration.properties import read_properties

    try:
        return read_properties(file), client_properties(file)
    except OSError as error:
        raise CommandError(f"The file {file} cannot be read: {error.strerror}.") from error


def _add_machine(contents: Contents, file: Path, as_written: Mapping[str, str], time_limit: float) -> None:
    import asyncio

    from parley.tools.doctor.examination import diagnosed_machine
    from parley.tools.doctor.gathering_machine import machine_of
    from parley.tools.support_bundle.contents import add_configuration, add_examination, add_log

    add_configuration(contents, as_written)
    facts = asyncio.run(machine_of(file, progress(), time_limit))
    add_examination(contents, "machine", facts, diagnosed_machine(facts))
    if facts.running is not None:
        output = Path(f"/proc/{facts.running.pid}/fd/2")
        if output.is_file():
            add_log(contents, output.resolve())
            return
    if not facts.running:
        contents.missing.append("the broker's log: the broker does not run here; name its log file with --log")
    else:
        contents.missing.append(
            "the broker's log: it is not written to a file; write it to one, and name the file with --log"
        )


def _add_cluster(
    contents: Contents,
    bootstrap: str,
    client: Mapping[str, str],
    metrics: Mapping[int, str],
    store: Mapping[str, str] | None,
    time_limit: float,
) -> None:
    from parley.tools.doctor.examination import diagnosed, snapshot
    from parley.tools.doctor.gathering_cluster import Request
    from parley.tools.support_bundle.contents import add_examination
    from parley.tools.support_bundle.topic_settings import changed_settings

    request = Request(bootstrap, client, metrics, store, limit_s=time_limit, progress=progress())
    try:
        facts = snapshot(request)
        add_examination(contents, "cluster", facts, diagnosed(facts))
        settings = changed_settings(bootstrap, client, {each.topic for each in facts.partitions})
        contents.add_data("topics.json", settings.changed)
        contents.missing += settings.missing()
    except CommandError as error:
        contents.missing.append(f"the cluster: {error}")
