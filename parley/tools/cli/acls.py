"""``parley acls``: list, add and remove ACLs, with the flags and the output of kafka-acls."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parley.broker.security.acls.bindings import AclBinding, AclFilter, PatternType, PermissionType, ResourcePattern
from parley.broker.security.operations import Operation
from parley.broker.security.principal import Principal
from parley.broker.security.resources import CLUSTER_NAME, SUPPORTED_OPERATIONS, ResourceType
from parley.protocol.errors import ErrorCode
from parley.tools.cli.app import App
from parley.tools.cli.cluster_client import check, on_cluster
from parley.tools.cli.common_options import (
    DEFAULT_BOOTSTRAP,
    CommandConfig,
    OnlyBootstrapServer,
    OutputFormat,
    one_action,
)
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import print_data
from parley.tools.plurals import plural

if TYPE_CHECKING:
    from parley.protocol.client import Client
    from parley.protocol.messages.acls import DescribeAclsResponse

app = App(
    "List, add and remove ACLs: which principals may or may not do what with topics, groups and the cluster.\n\n"
    "A denied operation stays denied, whatever else is allowed. Hosts are addresses, ranges of addresses (10.0.0.0/8) "
    "or `*`. `docs/authorization.md` lists the operations that each request needs.",
    examples=[
        ("parley acls --list", "all ACLs"),
        ("parley acls --add --allow-principal User:alice --producer --topic greetings", "what a producer needs"),
        (
            "parley acls --add --allow-principal User:bob --consumer --topic greetings --group readers",
            "what a consumer needs",
        ),
        (
            "parley acls --add --allow-principal User:carol --operation Read --topic team- "
            "--resource-pattern-type prefixed",
            "for all topics whose names start with team-",
        ),
        ("parley acls --remove --topic greetings --force", "remove all ACLs of a topic"),
    ],
    optional_values={"--principal": ""},
)

_SPECIFIC: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_PRODUCER: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_PRODUCER_ID: Final = (Operation.WRITE, Operation.DESCRIBE)
_CONSUMER: Final = (Operation.READ, Operation.DESCRIBE)

_Entry = tuple[str, str, Operation, PermissionType]
"""Principal, host, operation, permission."""
_Resource = tuple[ResourceType, str]


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_OPERATIONS: Final = {
    _pascal(operation.name).lower(): operation for operation in Operation if operation is not Operation.ANY
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley acls``, as given on the command line."""

    bootstrap_server: OnlyBootstrapServer = DEFAULT_BOOTSTRAP
    list_: Annotated[bool, typer.Option("--list", help="List the ACLs of the named resources, or all.")] = False
    add: Annotated[bool, typer.Option("--add", help="Add ACLs.")] = False
    remove: Annotated[bool, typer.Option("--remove", help="Remove ACLs.")] = False
    topic: Annotated[list[str], typer.Option("--topic", help="A topic; * for all.")] = field(default_factory=list)
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster.")] = False
    group: Annotated[list[str], typer.Option("--group", help="A consumer group; * for all.")] = field(
        default_factory=list
    )
    transactional_id: Annotated[list[str], typer.Option("--transactional-id", help="A transactional id.")] = field(
        default_factory=list
    )
    delegation_token: Annotated[list[str], typer.Option("--delegation-token", help="A delegation token.")] = field(
        default_factory=list
    )
    user_principal: Annotated[
        list[str], typer.Option("--user-principal", help="A user as a resource, for CreateTokens and DescribeTokens.")
    ] = field(default_factory=list)
    resource_pattern_type: Annotated[
        str,
        typer.Option(
            "--resource-pattern-type",
            help="literal or prefixed; with --list and --remove also any, or match: all ACLs that apply to the "
            "resource.",
        ),
    ] = "literal"
    operation: Annotated[
        list[str],
        typer.Option("--operation", help="An operation such as Read or DescribeConfigs; All unless given."),
    ] = field(default_factory=list)
    allow_principal: Annotated[
        list[str], typer.Option("--allow-principal", help="A principal to allow, as User:name; User:* for all.")
    ] = field(default_factory=list)
    deny_principal: Annotated[list[str], typer.Option("--deny-principal", help="A principal to deny.")] = field(
        default_factory=list
    )
    principal: Annotated[list[str], typer.Option("--principal", help="With --list: only ACLs of this principal.")] = (
        field(default_factory=list)
    )
    allow_host: Annotated[list[str], typer.Option("--allow-host", help="A host to allow; * unless given.")] = field(
        default_factory=list
    )
    deny_host: Annotated[list[str], typer.Option("--deny-host", help="A host to deny; * unless given.")] = field(
        default_factory=list
    )
    producer: Annotated[
        bool,
        typer.Option("--producer", help="Write, Describe, Create on the topics; Write, Describe on the ids."),
    ] = False
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Read and Describe on the topics; Read on the groups.")
    ] = False
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster, too.")
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Do not ask before ACLs are removed.")] = False
    command_config: CommandConfig = None
    output_format: OutputFormat = None


# --- What the options mean ---


def check_combination(options: Options) -> None:
    """Raise ``CommandError`` if the options contradict each other, as in kafka-acls."""
    role = options.producer or options.consumer
    if options.list_ and (
        role or options.allow_host or options.deny_host or options.allow_principal or options.deny_principal
    ):
        raise CommandError("--list takes neither principals to allow or deny, nor hosts, --producer and --consumer.")
    if role and (options.operation or options.deny_principal or options.deny_host):
        raise CommandError("--producer and --consumer take neither --operation nor --deny-principal nor --deny-host.")
    if options.principal and not options.list_:
        raise CommandError("The --principal option is only available if --list is set.")
    if options.producer and not options.topic:
        raise CommandError("With --producer you must specify a --topic.")
    if options.idempotent and not options.producer:
        raise CommandError("The --idempotent option is only available if --producer is set.")
    if options.consumer and (
        not options.topic
        or not options.group
        or (not options.producer and (options.cluster or options.transactional_id))
    ):
        raise CommandError(
            "With --consumer you must specify a --topic and a --group, and no --cluster or --transactional-id."
        )


def pattern_type_of(options: Options) -> PatternType:
    """Return the type that ``--resource-pattern-type`` names. Raises ``CommandError`` if it is unknown, or cannot be
    used to add ACLs."""
    name = options.resource_pattern_type.upper()
    if name not in PatternType.__members__:
        names = ", ".join(each.name.lower() for each in PatternType)
        raise CommandError(f"--resource-pattern-type takes {names}, not '{options.resource_pattern_type}'.")
    pattern_type = PatternType[name]
    if options.add and pattern_type not in _SPECIFIC:
        raise CommandError(f"To add ACLs, --resource-pattern-type must be literal or prefixed, not {name.lower()}.")
    return pattern_type


def resources_of(options: Options) -> list[_Resource]:
    """Return the resources that the options name. ``--cluster`` and ``--idempotent`` name the cluster, but only if the
    pattern type is literal.

    Raises ``CommandError`` if ``--resource-pattern-type`` is unknown, or is neither literal nor prefixed with
    ``--add``.
    """
    found = [(ResourceType.TOPIC, name.strip()) for name in options.topic]
    if pattern_type_of(options) is PatternType.LITERAL and (options.cluster or options.idempotent):
        found.append((ResourceType.CLUSTER, CLUSTER_NAME))
    found += [(ResourceType.GROUP, name.strip()) for name in options.group]
    found += [(ResourceType.TRANSACTIONAL_ID, name) for name in options.transactional_id]
    found += [(ResourceType.DELEGATION_TOKEN, name.strip()) for name in options.delegation_token]
    found += [(ResourceType.USER, name.strip()) for name in options.user_principal]
    return list(dict.fromkeys(found))


def entries_of(options: Options, operations: Iterable[Operation]) -> list[_Entry]:
    """Return one entry per principal, host and operation, for the allowed and the denied principals. Without a host
    option, an entry applies to all hosts. Raises ``CommandError`` for a malformed principal."""
    entries: list[_Entry] = []
    for principals, hosts, permission in (
        (options.allow_principal, options.allow_host, PermissionType.ALLOW),
        (options.deny_principal, options.deny_host, PermissionType.DENY),
    ):
        for principal in principals:
            entries += [
                (_principal(principal), host.strip(), operation, permission)
                for operation in operations
                for host in hosts or ("*",)
            ]
    return list(dict.fromkeys(entries))


def _principal(text: str) -> str:
    try:
        return str(Principal.parse(text.strip()))
    except ValueError as error:
        raise CommandError(f"{error}.") from error


def _operation(text: str) -> Operation:
    found = _OPERATIONS.get(text.strip().replace("_", "").lower())
    if found is None:
        names = ", ".join(_pascal(operation.name) for operation in _OPERATIONS.values())
        raise CommandError(f"--operation takes {names}, not '{text}'.")
    return found


def plan(options: Options) -> dict[_Resource, list[_Entry]]:
    """Return the ACLs that the options describe, by resource. Raises ``CommandError`` if they name no resource, or an
    operation or principal that is invalid."""
    resources = resources_of(options)
    if not resources:
        raise CommandError(
            "You must provide at least one resource: --topic, --cluster, --group, --transactional-id, "
            "--delegation-token or --user-principal."
        )
    found: dict[_Resource, list[_Entry]] = {}
    if not options.producer and not options.consumer:
        operations = [_operation(text) for text in options.operation] or [Operation.ALL]
        found = {resource: entries_of(options, operations) for resource in resources}
    if options.producer:
        for resource in resources:
            if resource[0] is ResourceType.TOPIC:
                found[resource] = entries_of(options, _PRODUCER)
            elif resource[0] is ResourceType.TRANSACTIONAL_ID:
                found[resource] = entries_of(options, _PRODUCER_ID)
        if options.idempotent:
            found[ResourceType.CLUSTER, CLUSTER_NAME] = entries_of(options, (Operation.IDEMPOTENT_WRITE,))
    if options.consumer:
        for resource in resources:
            if resource[0] is ResourceType.TOPIC:
                found[resource] = list(dict.fromkeys((*found.get(resource, ()), *entries_of(options, _CONSUMER))))
            elif resource[0] is ResourceType.GROUP:
                found[resource] = entries_of(options, (Operation.READ,))
    for (type, _), entries in found.items():
        _check_operations(type, entries)
    return found


def _check_operations(type: ResourceType, entries: Iterable[_Entry]) -> None:
    supported = (*SUPPORTED_OPERATIONS[type], Operation.ALL)
    if any(operation not in supported for _, _, operation, _ in entries):
        names = ", ".join(_pascal(operation.name) for operation in supported)
        raise CommandError(f"ResourceType {type.name} only supports operations {names}.")


# --- Requests ---


async def select(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Return the cluster's ACLs that match a filter. Raises ``CommandError`` if the cluster rejects the request."""
    return bindings_of(await describe(client, wanted))


async def describe(client: Client, wanted: AclFilter) -> DescribeAclsResponse:
    """Return the cluster's response to a filter, which may contain an error code."""
    from parley.protocol.messages.acls import DescribeAclsRequest

    request = DescribeAclsRequest(
        resource_type_filter=wanted.type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    answer: DescribeAclsResponse = await client.send(request)
    return answer


def bindings_of(answer: DescribeAclsResponse, doing: str = "The ACLs cannot be listed") -> list[AclBinding]:
    """Return the ACLs in a response. Raises ``CommandError`` if the response contains an error; the message then starts
    with ``doing``."""
    check(answer.error_code, answer.error_message, doing=doing)
    return [
        AclBinding(
            ResourcePattern(ResourceType(found.resource_type), PatternType(found.pattern_type), found.resource_name),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for found in answer.resources
        for acl in found.acls
    ]


async def create(client: Client, bindings: Sequence[AclBinding]) -> None:
    """Add ACLs. Raises ``CommandError`` if the cluster rejects one of them. It may have added the others."""
    from parley.protocol.messages.acls import CreateAclsRequest

    make = CreateAclsRequest.AclCreation
    creations = [
        make(
            resource_type=acl.pattern.type,
            resource_name=acl.pattern.name,
            resource_pattern_type=acl.pattern.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in bindings
    ]
    answer = await client.send(CreateAclsRequest(creations=creations))
    for result in answer.results:
        check(result.error_code, result.error_message, doing="The ACL was not added")


async def delete(client: Client, filters: Sequence[AclFilter]) -> int:
    """Delete the ACLs that match the filters, and return how many there were. Raises ``CommandError`` if the cluster
    rejects the request."""
    from parley.protocol.messages.acls import DeleteAclsRequest

    make = DeleteAclsRequest.DeleteAclsFilter
    requested = [
        make(
            resource_type_filter=wanted.type,
            resource_name_filter=wanted.name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission,
        )
        for wanted in filters
    ]
    answer = await client.send(DeleteAclsRequest(filters=requested))
    for result in answer.filter_results:
        check(result.error_code, result.error_message, doing="The ACLs were not removed")
    return sum(len(result.matching_acls) for result in answer.filter_results)


# --- The three actions ---


@app.only_command_with(Options)
def acls(options: Options) -> None:
    action = one_action(list=options.list_, add=options.add, remove=options.remove)
    check_combination(options)
    pattern_type = pattern_type_of(options)
    if action == "list":
        _list(options, pattern_type)
    elif action == "add":
        _add(options, pattern_type)
    else:
        _remove(options, pattern_type)


def _list(options: Options, pattern_type: PatternType) -> None:
    filters = [AclFilter(type, pattern_type, name) for type, name in resources_of(options)] or [AclFilter()]
    principals = [_principal(text) for text in options.principal if text]

    async def gather(client: Client) -> list[AclBinding]:
        return [acl for wanted in filters for acl in await select(client, wanted)]

    found = dict.fromkeys(on_cluster(options.bootstrap_server, options.command_config, gather))
    if options.output_format:
        print_data(
            [as_data(acl) for acl in found if not principals or acl.principal in principals], options.output_format
        )
        return
    if not principals:
        _print(found)
    for principal in principals:
        print(f"ACLs for principal `{principal}`")
        _print(acl for acl in found if acl.principal == principal)


def _add(options: Options, pattern_type: PatternType) -> None:
    planned = plan(options)
    if not all(planned.values()):
        raise CommandError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")

    async def work(client: Client) -> None:
        for (type, name), entries in planned.items():
            # The cluster is always a literal resource.
            kind = PatternType.LITERAL if type is ResourceType.CLUSTER else pattern_type
            pattern = ResourcePattern(type, kind, name)
            answer = await describe(client, AclFilter(type, kind, name))
            may_not_list = answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            # Without the right to list, the request that adds reports the missing right.
            present = [] if may_not_list else bindings_of(answer, "The ACL was not added")
            wanted = [AclBinding(pattern, *entry) for entry in entries]
            for acl in wanted:
                if acl in present:
                    print(f"Acl ({pattern_text(pattern)}, entry={entry_text(acl)}) already exists.")
            new = [acl for acl in wanted if acl not in present]
            if new:
                listed = "\n".join(f"\t{entry_text(acl)}" for acl in new)
                print(f"Adding ACLs for resource `{pattern_text(pattern)}`: \n {listed}\n")
                await create(client, new)

    on_cluster(options.bootstrap_server, options.command_config, work)


def _remove(options: Options, pattern_type: PatternType) -> None:
    planned = plan(options)
    chosen: dict[_Resource, list[_Entry]] = {}
    for resource, entries in planned.items():
        shown = pattern_text(ResourcePattern(resource[0], pattern_type, resource[1]))
        listed = "\n".join(f"\t{_entry_text(*entry)}" for entry in entries)
        question = f"remove ACLs: \n {listed}\n from" if entries else "delete all ACLs for"
        if options.force or _confirmed(f"Are you sure you want to {question} resource filter `{shown}`? (y/n)"):
            chosen[resource] = entries

    async def work(client: Client) -> int:
        removed = 0
        for (type, name), entries in chosen.items():
            filters = [AclFilter(type, pattern_type, name, *entry) for entry in entries]
            removed += await delete(client, filters or [AclFilter(type, pattern_type, name)])
        return removed

    if chosen:
        removed = on_cluster(options.bootstrap_server, options.command_config, work)
        print(f"{plural(removed, 'ACL')} removed." if removed else "No ACL matches: none was removed.", file=sys.stderr)


def _confirmed(question: str) -> bool:
    print(question)
    return sys.stdin.readline().strip().lower() == "y"


# --- Output ---


def _print(found: Iterable[AclBinding]) -> None:
    by_pattern: dict[ResourcePattern, list[AclBinding]] = {}
    for acl in found:
        by_pattern.setdefault(acl.pattern, []).append(acl)
    for pattern, of_pattern in by_pattern.items():
        print(f"Current ACLs for resource `{pattern_text(pattern)}`:")
        print("\n".join(f"\t{entry_text(acl)}" for acl in of_pattern) + "\n")


def pattern_text(pattern: ResourcePattern) -> str:
    """Format a pattern as kafka-acls prints it."""
    return (
        f"ResourcePattern(resourceType={pattern.type.name}, name={pattern.name}, "
        f"patternType={pattern.pattern_type.name})"
    )


def entry_text(acl: AclBinding) -> str:
    """Format an entry (principal, host, operation and permission) as kafka-acls prints it."""
    return _entry_text(acl.principal, acl.host, acl.operation, acl.permission)


def _entry_text(principal: str, host: str, operation: Operation, permission: PermissionType) -> str:
    return f"(principal={principal}, host={host}, operation={operation.name}, permissionType={permission.name})"


def as_data(acl: AclBinding) -> Mapping[str, Any]:
    """Return an ACL as JSON data."""
    return {
        "resourceType": acl.pattern.type.name,
        "resourceName": acl.pattern.name,
        "patternType": acl.pattern.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permissionType": acl.permission.name,
    }
