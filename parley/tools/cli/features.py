"""``parley features``: show the levels of the cluster's features and change them, as kafka-features does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli.app import App, example_text
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, OutputFormat
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

_EXAMPLES = {
    "describe": [("parley features describe", "the level of each feature, and the levels that the broker supports")],
    "upgrade": [("parley features upgrade --feature transaction.version=2", "each transaction has its own epoch")],
    "downgrade": [
        ("parley features downgrade --feature transaction.version=1 --dry-run", "only check whether it is allowed")
    ],
    "disable": [("parley features disable --feature transaction.version", "the same as a downgrade to 0")],
}

app = App(
    "Show the levels of the cluster's features, and change them.\n\n"
    "`parley features COMMAND --help` describes a subcommand.",
    examples=[each[0] for each in _EXAMPLES.values()],
)

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3

_Bootstrap = Annotated[
    str, typer.Option("--bootstrap-server", "-b", help="Brokers to connect to first: host:port,host:port,...")
]
_Config = Annotated[
    Path | None,
    typer.Option("--command-config", "--config", "-c", help="Properties file for the client of this command."),
]
_Levels = Annotated[list[str], typer.Option("--feature", help="A feature and its new level: NAME=LEVEL. Repeatable.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check the change.")]
_Unsafe = Annotated[bool, typer.Option("--unsafe", help="Change the level even if metadata is lost.")]


def describe(
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP, command_config: _Config = None, output_format: OutputFormat = None
) -> None:
    """Show the features of the cluster, and their supported and finalized levels."""
    rows = on_cluster(bootstrap_server, command_config, described)
    if output_format:
        print_data(rows, output_format)
        return
    for row in rows:
        print(
            f"Feature: {row['feature']}\tSupportedMinVersion: {row['supportedMin']}\t"
            f"SupportedMaxVersion: {row['supportedMax']}\tFinalizedVersionLevel: {row['level']}\tEpoch: {row['epoch']}"
        )


async def described(client: Client) -> list[dict[str, Any]]:
    """Return the features with their supported and finalized levels, as JSON data. Raises ``CommandError`` if the
    broker rejects the request."""
    from parley.protocol.messages.api_versions import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="parley-cli", client_software_version="1")
    answer = await client.send(request)
    check(answer.error_code)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return [
        {
            "feature": each.name,
            "supportedMin": each.min_version,
            "supportedMax": each.max_version,
            "level": levels.get(each.name, 0),
            "epoch": answer.finalized_features_epoch,
        }
        for each in sorted(answer.supported_features, key=lambda each: each.name)
    ]


def upgrade(
    feature: _Levels,
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: _Config = None,
    dry_run: _DryRun = False,
) -> None:
    """Raise the levels of features."""
    _update(bootstrap_server, command_config, "upgrade", _parsed(feature), _UPGRADE, dry_run=dry_run)


def downgrade(
    feature: _Levels,
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: _Config = None,
    unsafe: _Unsafe = False,
    dry_run: _DryRun = False,
) -> None:
    """Lower the levels of features."""
    kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
    _update(bootstrap_server, command_config, "downgrade", _parsed(feature), kind, dry_run=dry_run)


def disable(
    feature: Annotated[list[str], typer.Option("--feature", help="A feature to disable. Repeatable.")],
    bootstrap_server: _Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: _Config = None,
    unsafe: _Unsafe = False,
    dry_run: _DryRun = False,
) -> None:
    """Disable features: lower their levels to 0."""
    kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
    _update(bootstrap_server, command_config, "disable", dict.fromkeys(feature, 0), kind, dry_run=dry_run)


def _parsed(texts: Sequence[str]) -> dict[str, int]:
    levels = {}
    for text in texts:
        name, separator, level = text.partition("=")
        if not (name and separator and level.isdecimal() and level.isascii() and int(level) < 1 << 15):
            raise CommandError(f"--feature {text}: must be NAME=LEVEL, such as transaction.version=2.")
        levels[name] = int(level)
    return levels


def _update(
    bootstrap_server: str,
    command_config: Path | None,
    verb: str,
    levels: Mapping[str, int],
    upgrade_type: int,
    *,
    dry_run: bool,
) -> None:
    async def update(client: Client) -> None:
        from parley.protocol.messages.features import UpdateFeaturesRequest as Request

        updates = [
            Request.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ]
        answer = await client.send(
            Request(feature_updates=updates, validate_only=dry_run), node=await client.controller()
        )
        failed = f"Cannot {verb} the features" if dry_run else f"Could not {verb} the features"
        check(answer.error_code, answer.error_message, doing=failed)

    on_cluster(bootstrap_server, command_config, update)
    for name, level in levels.items():
        done = f"{verb}d to {level}" if level else "disabled"
        print(f"{name} {'can be' if dry_run else 'was'} {done}.")


_COMMANDS: dict[str, Callable[..., Awaitable[None] | None]] = {
    "describe": describe,
    "upgrade": upgrade,
    "downgrade": downgrade,
    "disable": disable,
}
for _name, _function in _COMMANDS.items():
    app.command(name=_name, epilog=example_text(_EXAMPLES[_name]))(_function)
