"""``parley profile``: add, list, show, choose and remove profiles of this user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parley.tools.cli import profiles
from parley.tools.cli.app import App, example_text
from parley.tools.cli.common_options import OutputFormat
from parley.tools.cli.invocation import CommandError, pairs
from parley.tools.cli.output import print_data

_EXAMPLES = {
    "add": [
        ("parley profile add prod --bootstrap-server broker1:9092 --command-config client.properties", "with a login"),
        ("parley profile add local --bootstrap-server 127.0.0.1:9092 --use", "and use it from now on"),
    ],
    "list": [("parley profile list", "all profiles; a star marks the one that is used")],
    "show": [("parley profile show prod", "its settings, without secrets")],
    "use": [
        ("parley profile use prod", "for all commands that name no --bootstrap-server"),
        ("parley profile use --none", "127.0.0.1:9092 again"),
    ],
    "remove": [("parley profile remove prod", "delete its file")],
}

app = App(
    "Store the addresses and the client settings of clusters under names, so that commands need no "
    "--bootstrap-server and no --command-config.\n\n"
    "The option `--profile NAME` selects a profile for one command, the variable PARLEY_PROFILE for a shell, and "
    "`parley profile use` for all later commands. A command with --bootstrap-server uses no profile, unless --profile "
    "names one: then it uses the profile's settings. The profiles are properties files in ~/.config/parley/profiles "
    "that only this user can read.",
    examples=[each[0] for each in _EXAMPLES.values()],
    takes_profiles=False,
)

_Name = Annotated[str, typer.Argument(metavar="PROFILE", help="The profile.")]


@app.command(epilog=example_text(_EXAMPLES["add"]))
def add(
    name: _Name,
    servers: Annotated[
        str | None, typer.Option("--bootstrap-server", help="Brokers to connect to first: host:port,host:port,...")
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option("--command-config", help="Properties file whose settings are copied.")
    ] = None,
    setting: Annotated[list[str], typer.Option("--property", help="A client setting key=value; repeatable.")] = [],  # noqa: B006 - read only
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a profile of this name.")] = False,
    use_it: Annotated[bool, typer.Option("--use", help="Use the profile from now on.")] = False,
) -> None:
    """Store a profile. References to config providers stay references."""
    settings = {**_read(command_config), **pairs(setting, "--property")}
    if servers:
        settings = {profiles.ADDRESS: servers, **{k: v for k, v in settings.items() if k != profiles.ADDRESS}}
    if not settings.get(profiles.ADDRESS):
        raise CommandError(f"Name the brokers with --bootstrap-server, or {profiles.ADDRESS} in the properties file.")
    profile = profiles.store(name, settings, replace=replace)
    if use_it:
        profiles.use(name)
    print(f"Stored {name} in {profile.path}.")


@app.command(name="list", epilog=example_text(_EXAMPLES["list"]))
def list_(output_format: OutputFormat = None) -> None:
    """List the profiles."""
    current = profiles.current_name()
    rows = [
        {
            "profile": each.name,
            "current": each.name == current,
            "bootstrapServers": each.address,
            "securityProtocol": each.settings.get("security.protocol", "PLAINTEXT"),
        }
        for each in profiles.stored()
    ]
    if output_format:
        print_data(rows, output_format)
        return
    for row in rows:
        print(
            f"{'*' if row['current'] else ' '} {row['profile']}  {row['bootstrapServers']}  {row['securityProtocol']}"
        )
    if not rows:
        print("There are no profiles. `parley profile add NAME --bootstrap-server HOST:PORT` creates one.")


@app.command(epilog=example_text(_EXAMPLES["show"]))
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[PROFILE]", help="The profile; the one in use unless given.")
    ] = None,
    output_format: OutputFormat = None,
) -> None:
    """Show the settings of a profile. Secrets are masked."""
    if not (chosen := name or profiles.current_name()):
        raise CommandError("No profile is in use. Name one, or choose it with `parley profile use NAME`.")
    profile = profiles.named(chosen)
    settings = {key: profiles.masked(key, value) for key, value in profile.settings.items()}
    if output_format:
        print_data({"profile": profile.name, "file": str(profile.path), "settings": settings}, output_format)
        return
    print(f"# {profile.path}")
    for key, value in settings.items():
        print(f"{key}={value}")


@app.command(epilog=example_text(_EXAMPLES["use"]))
def use(
    name: Annotated[str | None, typer.Argument(metavar="[PROFILE]", help="The profile.")] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile from now on.")] = False,
) -> None:
    """Use a profile for all commands that name no --bootstrap-server."""
    if (name is None) != none:
        raise CommandError("Name a profile, or --none.")
    profiles.use(name or "")
    print(f"Commands without --bootstrap-server use {f'the profile {name}' if name else 'no profile'} from now on.")


@app.command(epilog=example_text(_EXAMPLES["remove"]))
def remove(name: _Name) -> None:
    """Delete a profile."""
    profiles.remove(name)
    print(f"Removed {name}.")


def _read(path: Path | None) -> dict[str, str]:
    from parley.configuration.properties import read_properties

    if path is None:
        return {}
    try:
        return read_properties(path)
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {path} is not a properties file: {error}.") from error
