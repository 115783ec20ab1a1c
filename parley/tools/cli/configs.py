"""``parley configs``: show and change settings of topics, brokers, groups, users and clients, as kafka-configs does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.tools.cli import users_and_clients
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    CommandConfig,
    OutputFormat,
    client_properties,
    one_action,
    required,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data

if TYPE_CHECKING:
    from parley.protocol.client import Client

app = App(
    "Show and change the settings of topics, brokers and groups of a running cluster, its SCRAM users and the quotas "
    "of users, client ids and addresses.\n\n"
    "`--describe` shows the dynamic settings; with `--all` also the defaults and the properties file's settings. In "
    "`--add-config`, put a value with commas in brackets: `cleanup.policy=[compact,delete]`.",
    examples=[
        ("parley configs --describe --topic greetings --all", "every setting of a topic, and its source"),
        ("parley configs --alter --topic greetings --add-config retention.ms=60000,max.message.bytes=2000000", "set"),
        (
            "parley configs --alter --user alice --add-config 'SCRAM-SHA-256=[iterations=8192,password=...]'",
            "let a user log in with SCRAM",
        ),
        ("parley configs --alter --user alice --add-config producer_byte_rate=1048576", "limit what a user sends"),
        (
            "parley configs --alter --user broker --add-config 'SCRAM-SHA-512=[password=...]' "
            "--config server.properties",
            "the first user, before the first broker starts",
        ),
    ],
    replaced={"--entity-default": ("--entity-name", "")},
)

RESOURCE_TYPES: Final = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
"""The protocol's number for each resource type, by the singular of its name in ``--entity-type``."""
_DEFAULTS: Final = ("broker", *users_and_clients.TYPES)
"""The entity types that have default settings, which apply to every entity of the type."""
_SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
_OWN_SOURCES: Final = {"topic": (1,), "broker": (2, 3), "broker-logger": (6,), "client-metrics": (7,), "group": (8,)}
_LISTS_ALL: Final = ("topic", "broker", "broker-logger")
"""The entity types whose DescribeConfigs response lists every setting, set or not."""
_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity that has settings: its type in the singular, and its name. An empty name means the defaults of the
    type, None means every entity of the type."""

    kind: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def is_default(self) -> bool:
        return self.kind == "broker" and self.name == ""

    @property
    def node(self) -> int | None:
        """The id of the only broker that can handle the request, or None if any broker can."""
        return int(self.name) if self.kind in ("broker", "broker-logger") and self.name else None


def parse_entities(types: Sequence[str], names: Sequence[str], short: Mapping[str, str | None]) -> tuple[Entity, ...]:
    """Return the entity that ``--entity-type`` and ``--entity-name`` name, or a short option such as ``--topic``.

    The first type belongs to the first name, and so on. A user with a client id is returned as two entities, the user
    first. Raises ``CommandError`` if the options name no entity, an invalid one, or any other combination.
    """
    given = [Entity(kind, name) for kind, name in short.items() if name is not None]
    if given and (types or names):
        raise CommandError("Name the entity by --entity-type and --entity-name, or by an option such as --topic.")
    if len(names) > len(types):
        raise CommandError("Each --entity-name and --entity-default needs an --entity-type.")
    found = [Entity(_singular(type_), name) for type_, name in zip_longest(types, names)] + given
    for each in found:
        _check(each)
    if len(found) != 1 and sorted(each.kind for each in found) != ["client", "user"]:
        raise CommandError(
            "Name exactly one type of entity: --topic, --broker, --broker-defaults, --group, --user, --client, --ip, "
            "or --entity-type. Only a user and a client can be named together."
        )
    return tuple(sorted(found, key=lambda each: each.kind, reverse=True))


def _check(entity: Entity) -> None:
    """Raise ``CommandError`` if the type is unknown, or if its entities cannot have this name."""
    kind, name = entity.kind, entity.name
    if kind not in RESOURCE_TYPES and kind not in users_and_clients.TYPES:
        types = ", ".join(_plural(each) for each in (*RESOURCE_TYPES, *users_and_clients.TYPES))
        raise CommandError(f"--entity-type takes {types}, not '{_plural(kind)}'.")
    if name == "" and kind not in _DEFAULTS:
        raise CommandError(f"{_plural(kind).capitalize()} have no default configuration: name one.")
    if kind in ("broker", "broker-logger") and name and not name.isdecimal():
        raise CommandError(f"A broker is named by its numeric id, not '{name}'.")


def _singular(type_: str) -> str:
    return type_ if type_ == "client-metrics" else type_.removesuffix("s")


def _plural(kind: str) -> str:
    return kind if kind == "client-metrics" else f"{kind}s"


def parse_settings(text: str) -> dict[str, str]:
    """Parse ``k1=v1,k2=[v1,v2]``, where a value that contains commas is in brackets. Raises ``CommandError`` for any
    other format."""
    found: dict[str, str] = {}
    rest = text
    while rest.strip(", "):
        key, equals, rest = rest.lstrip(", ").partition("=")
        if not equals or not key.strip() or "," in key:
            raise CommandError(f"--add-config takes key=value pairs, not '{text}'.")
        if rest.startswith("["):
            value, closed, rest = rest[1:].partition("]")
            if not closed or (rest and not rest.startswith(",")):
                raise CommandError(f"Unclosed bracket in '{text}'.")
        else:
            value, _, rest = rest.partition(",")
        found[key.strip()] = value.strip()
    return found


async def change(client: Client, entity: Entity, set_: dict[str, str], removed: Sequence[str]) -> None:
    """Set and remove settings with ``apply``, then print that this was done, and the cluster's warnings."""
    await apply(client, entity, set_, removed)
    print(f"Completed updating {_target(entity)}.")
    for warning in await warnings_about(client, entity, list(set_)):
        print(f"Warning: {warning}", file=sys.stderr)


async def apply(client: Client, entity: Entity, set_: Mapping[str, str], removed: Sequence[str]) -> None:
    """Set and remove settings of one entity, all of them or none.

    Raises ``CommandError`` if the broker or a setting to remove does not exist, or if the cluster rejects the request.
    """
    from parley.protocol.messages.configs import IncrementalAlterConfigsRequest as Request

    await check_exists(client, entity)
    if removed:
        await _check_known(client, entity, removed)
    configs = [Request.AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in removed]
    configs += [Request.AlterableConfig(name=name, config_operation=_SET, value=value) for name, value in set_.items()]
    resource = Request.AlterConfigsResource(
        resource_type=RESOURCE_TYPES[entity.kind], resource_name=entity.name or "", configs=configs
    )
    node = entity.node if entity.node is not None else await client.controller()
    answer = await client.send(Request(resources=[resource]), node=node)
    for result in answer.responses:
        check(result.error_code, result.error_message, doing=f"The settings of {entity} were not changed")


async def warnings_about(client: Client, entity: Entity, names: Sequence[str]) -> list[str]:
    """Return the cluster's warnings about these settings of a topic or broker: which of them have no effect in Parley,
    and why. Returns an empty list for other entities."""
    from parley.broker.config.describe import IN_PARLEY
    from parley.protocol.messages.configs import DescribeConfigsRequest as Request

    if not names or entity.kind not in ("topic", "broker"):
        return []
    resource = Request.DescribeConfigsResource(
        resource_type=RESOURCE_TYPES[entity.kind], resource_name=entity.name or "", configuration_keys=list(names)
    )
    node = entity.node if entity.node is not None else await client.controller()
    answer = await client.send(Request(resources=[resource], include_documentation=True), node=node)
    documentation = (one.documentation or "" for result in answer.results for one in result.configs)
    return [warning for text in documentation if (warning := text.partition(IN_PARLEY)[2])]


async def check_exists(client: Client, entity: Entity) -> None:
    """Raise ``CommandError`` if the entity is a broker that is not in the cluster, because the client would wait for
    it."""
    if entity.node is None:
        return
    brokers = [broker.node_id for broker in (await client.metadata([])).brokers]
    if entity.node not in brokers:
        there = ", ".join(map(str, sorted(brokers)))
        raise CommandError(
            f"The {entity.kind} '{entity.name}' doesn't exist and doesn't have dynamic config. "
            f"Brokers of this cluster: {there}."
        )


async def _check_known(client: Client, entity: Entity, names: Sequence[str]) -> None:
    """Raise ``CommandError`` for an unknown setting, because the cluster would silently ignore its removal."""
    if entity.kind not in _LISTS_ALL:
        return
    if entity.is_default:  # for the defaults, Kafka lists only the settings that are set
        broker = (await client.metadata([])).brokers[0]
        entity = Entity("broker", str(broker.node_id))
    known = {one.name for one in await describe(client, entity, all_settings=True)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(f"Invalid config(s): {','.join(unknown)}")


async def entities(client: Client, entity: Entity) -> list[Entity]:
    """Return the entity itself, or all entities of its type if it has no name. Raises ``CommandError`` if they cannot
    be listed."""
    if entity.name is not None:
        return [entity]
    if entity.kind == "topic":
        return [Entity("topic", topic.name or "") for topic in sorted((await client.metadata()).topics, key=_name)]
    if entity.kind in ("broker", "broker-logger"):
        brokers = sorted(broker.node_id for broker in (await client.metadata([])).brokers)
        found = [Entity(entity.kind, str(broker)) for broker in brokers]
        return [*found, Entity("broker", "")] if entity.kind == "broker" else found
    from parley.protocol.messages.configs import ListConfigResourcesRequest

    answer = await client.send(ListConfigResourcesRequest(resource_types=[RESOURCE_TYPES[entity.kind]]))
    check(answer.error_code)
    return [Entity(entity.kind, one.resource_name) for one in answer.config_resources]


def _name(topic: Any) -> str:
    return topic.name or ""


async def describe(
    client: Client, entity: Entity, *, all_settings: bool, with_documentation: bool = False
) -> list[Any]:
    """Return the settings of one entity: only its own, or all. Raises ``CommandError`` if the entity does not exist."""
    from parley.protocol.errors import ErrorCode
    from parley.protocol.messages.configs import DescribeConfigsRequest as Request

    await check_exists(client, entity)
    resource = Request.DescribeConfigsResource(
        resource_type=RESOURCE_TYPES[entity.kind], resource_name=entity.name or "", configuration_keys=None
    )
    answer = await client.send(
        Request(resources=[resource], include_synonyms=True, include_documentation=with_documentation), node=entity.node
    )
    (result,) = answer.results
    if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise CommandError(
            f"The topic '{entity.name}' does not exist. `parley topics --list` shows the existing topics."
        )
    check(result.error_code, result.error_message, doing=f"The settings of {entity} cannot be shown")
    own = (3,) if entity.is_default else _OWN_SOURCES[entity.kind]
    shown = [one for one in result.configs if all_settings or one.config_source in own]
    return sorted(shown, key=lambda one: one.name)


def heading(entity: Entity, *, all_settings: bool) -> str:
    """Return the heading above the settings of an entity."""
    if entity.is_default:
        return "Default configs for brokers in the cluster are:"
    return f"{'All' if all_settings else 'Dynamic'} configs for {entity} are:"


def line(config: Any) -> str:
    """Format a setting as kafka-configs does: its value, and all sources of the value in order of precedence."""
    synonyms = ", ".join(f"{source_name(one.source)}:{one.name}={_value(one)}" for one in config.synonyms)
    sensitive = "true" if config.is_sensitive else "false"
    return f"  {config.name}={_value(config)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _value(config: Any) -> str:
    return "null" if config.value is None else str(config.value)


def source_name(number: int) -> str:
    """Return Kafka's name for the source of a value, or ``UNKNOWN``."""
    return _SOURCES.get(number, "UNKNOWN")


def as_data(entity: Entity, configs: Iterable[Any]) -> dict[str, Any]:
    """Return the settings of an entity as JSON data."""
    return {
        "type": entity.kind,
        "name": entity.name or None,
        "configs": [
            {
                "name": one.name,
                "value": one.value,
                "readOnly": one.read_only,
                "sensitive": one.is_sensitive,
                "source": source_name(one.config_source),
                "synonyms": [{"name": s.name, "value": s.value, "source": source_name(s.source)} for s in one.synonyms],
            }
            for one in configs
        ],
    }


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley configs``, as given on the command line."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    describe_: Annotated[bool, typer.Option("--describe", help="Show settings.")] = False
    alter: Annotated[bool, typer.Option("--alter", help="Change settings.")] = False
    entity_type: Annotated[
        list[str],
        typer.Option(
            "--entity-type",
            help="topics, brokers, broker-loggers, groups, client-metrics, users, clients or ips. Users and clients "
            "may be given together.",
        ),
    ] = field(default_factory=list)
    entity_name: Annotated[
        list[str],
        typer.Option("--entity-name", help="With --entity-type: the name of the entity; all of them unless given."),
    ] = field(default_factory=list)
    entity_default: Annotated[
        bool,
        typer.Option(
            "--entity-default", help="With --entity-type brokers, users, clients or ips: the default, not one of them."
        ),
    ] = False
    topic: Annotated[str | None, typer.Option("--topic", help="A topic.")] = None
    broker: Annotated[str | None, typer.Option("--broker", help="A broker, by its id.")] = None
    broker_defaults: Annotated[bool, typer.Option("--broker-defaults", help="The defaults of all brokers.")] = False
    broker_logger: Annotated[str | None, typer.Option("--broker-logger", help="The loggers of a broker.")] = None
    group: Annotated[str | None, typer.Option("--group", help="A consumer group.")] = None
    user: Annotated[str | None, typer.Option("--user", help="A user: its quotas and SCRAM credentials.")] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="The quotas of all other users.")] = False
    client: Annotated[str | None, typer.Option("--client", help="A client id: its quotas.")] = None
    client_defaults: Annotated[bool, typer.Option("--client-defaults", help="The quotas of all other client ids.")] = (
        False
    )
    ip: Annotated[str | None, typer.Option("--ip", help="An IP address: its quota.")] = None
    ip_defaults: Annotated[bool, typer.Option("--ip-defaults", help="The quota of all other addresses.")] = False
    client_metrics: Annotated[str | None, typer.Option("--client-metrics", help="A metrics subscription.")] = None
    add_config: Annotated[str, typer.Option("--add-config", help="Settings to set: k1=v1,k2=[v1,v2].")] = ""
    add_config_file: Annotated[
        Path | None, typer.Option("--add-config-file", help="Properties file with the settings to set.")
    ] = None
    delete_config: Annotated[str, typer.Option("--delete-config", help="Settings to remove: k1,k2.")] = ""
    all_settings: Annotated[bool, typer.Option("--all", help="Describe defaults and static settings too.")] = False
    force: Annotated[bool, typer.Option("--force", help="Accepted for compatibility; this command never prompts.")] = (
        False
    )
    command_config: CommandConfig = None
    coordination_url: Annotated[
        str | None,
        typer.Option(
            "--coordination-url",
            help="With users, clients or ips: the coordination store, before the first broker starts.",
        ),
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A broker's properties file, instead of --coordination-url.")
    ] = None
    output_format: OutputFormat = None


@app.only_command_with(Options)
def configs(options: Options) -> None:
    action = one_action(describe=options.describe_, alter=options.alter)
    short = {
        "topic": options.topic,
        "broker": "" if options.broker_defaults else options.broker,
        "broker-logger": options.broker_logger,
        "group": options.group,
        "client-metrics": options.client_metrics,
        "user": "" if options.user_defaults else options.user,
        "client": "" if options.client_defaults else options.client,
        "ip": "" if options.ip_defaults else options.ip,
    }
    found = parse_entities(options.entity_type, options.entity_name, short)
    parts = [(each.kind, each.name) for each in found]
    is_limited = found[0].kind in users_and_clients.TYPES
    store_option = "--coordination-url" if options.coordination_url is not None else "--config"
    if not is_limited and (options.coordination_url is not None or options.config is not None):
        raise CommandError(
            f"{store_option} is for users, clients and ips: all other settings are changed through a broker. Name one "
            "with --bootstrap-server, and a file with client settings with --command-config."
        )
    place = users_and_clients.Place(
        options.bootstrap_server, options.command_config, options.coordination_url, options.config
    )
    if action == "alter":
        added, removed = _wanted(options, found)
        if is_limited:
            users_and_clients.alter(place, parts, added, removed)
            print(f"Completed updating {_target(found[0])}.")
        else:
            _alter(options, found[0], added, removed)
    elif is_limited:
        users_and_clients.describe(place, parts, output_format=options.output_format)
    else:
        _describe(options, found[0])


def _wanted(options: Options, found: Sequence[Entity]) -> tuple[dict[str, str], list[str]]:
    """Return the settings to set and to remove. Raises ``CommandError`` if the options are wrong."""
    if any(each.name is None for each in found):
        raise CommandError("--alter changes one entity; name it with --entity-name or --entity-default.")
    if options.add_config and options.add_config_file:
        raise CommandError("Use --add-config or --add-config-file, not both.")
    if options.add_config_file:
        added = client_properties(options.add_config_file)
    else:
        added = parse_settings(options.add_config)
    removed = [name.strip() for name in options.delete_config.split(",") if name.strip()]
    required(added or removed, "--add-config or --delete-config", "alter")
    return added, removed


def _target(entity: Entity) -> str:
    return f"config for {entity}" if entity.name else f"default config for {_plural(entity.kind)} in the cluster"


def _alter(options: Options, entity: Entity, added: dict[str, str], removed: list[str]) -> None:
    on_cluster(options.bootstrap_server, options.command_config, lambda client: change(client, entity, added, removed))


def _describe(options: Options, entity: Entity) -> None:
    async def gather(client: Client) -> tuple[list[tuple[Entity, list[Any]]], list[str]]:
        found = await entities(client, entity)
        described = [(one, await describe(client, one, all_settings=options.all_settings)) for one in found]
        warnings = []
        for one, settings in described:
            own = _OWN_SOURCES[one.kind]
            hidden = [each.name for each in settings if each.is_sensitive and each.config_source in own]
            warnings += await warnings_about(client, one, hidden)
        return described, warnings

    described, warnings = on_cluster(options.bootstrap_server, options.command_config, gather)
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    if options.output_format:
        print_data([as_data(one, settings) for one, settings in described], options.output_format)
        return
    for one, settings in described:
        print(heading(one, all_settings=options.all_settings))
        for setting in settings:
            print(line(setting))
