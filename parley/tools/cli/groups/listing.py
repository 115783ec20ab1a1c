"""List the groups of a cluster. Each broker lists the groups that it coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parley.protocol.client import Client
from parley.protocol.messages.groups import ListGroupsRequest
from parley.tools.cli.cluster_client import check, until_ready
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data

STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
    "NotReady",
)
TYPES = ("Classic", "Consumer", "Share", "Streams")
CONSUMER_TYPES = ("Classic", "Consumer")
"""The types that ``--all-groups`` includes, as in kafka-consumer-groups."""
_COMMANDS = {"Share": "parley share-groups", "Streams": "parley streams-groups"}
"""The command for each other type of group."""
_LIST_TIMEOUT_MS = 10_000
_CONSUMERS = ("consumer", "", "share", "streams")


@dataclass(frozen=True, slots=True, order=True)
class ListedGroup:
    """A group as listed by its coordinator."""

    name: str
    type: str
    state: str
    protocol_type: str


def _known(words: Iterable[str], known: Sequence[str], option: str) -> list[str]:
    """Return the words in the spelling of ``known``, whatever their case. Raises ``CommandError``, which names
    ``option``, for an unknown word."""
    spelling = {name.lower(): name for name in known}
    wrong = [word for word in words if word.lower() not in spelling]
    if wrong:
        raise CommandError(f"{option} takes {', '.join(known)}, not '{wrong[0]}'.")
    return [spelling[word.lower()] for word in words]


async def list_groups(client: Client, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
    """List the consumer groups in these states and of these types (empty: all), sorted by name. Raises ``CommandError``
    for an unknown state or type, or if a broker cannot list its groups."""
    states, types = _known(states, STATES, "--state"), _known(types, TYPES, "--type")
    found = []
    for broker in (await client.metadata([])).brokers:
        node = broker.node_id
        version = await client.version_for(ListGroupsRequest, node=node)
        request = ListGroupsRequest(
            states_filter=list(states) if version >= 4 else [],
            types_filter=[name.lower() for name in types] if version >= 5 else [],
        )
        answer = await until_ready(
            lambda node=node, request=request: client.send(request, node=node),  # type: ignore[misc]
            lambda answer: int(answer.error_code),
            _LIST_TIMEOUT_MS,
        )
        check(answer.error_code, doing=f"Broker {node} did not list its groups")
        for group in answer.groups:
            kind = (group.group_type or "classic").capitalize()
            if group.protocol_type in _CONSUMERS and (
                not states or not group.group_state or group.group_state in states
            ):
                found.append(ListedGroup(group.group_id, kind, group.group_state, group.protocol_type))
    return sorted(group for group in found if not types or group.type in types)


async def selected(client: Client, names: Sequence[str] | None) -> list[str]:
    """Return the named groups, or all consumer groups if ``names`` is None.

    Raises ``CommandError`` if a named group is a share group or a streams group.
    """
    if names is None:
        return [group.name for group in await list_groups(client, types=CONSUMER_TYPES)]
    listed = {group.name: group.type for group in await list_groups(client)}
    for name in names:
        kind = listed.get(name, "")
        if kind in _COMMANDS:
            raise CommandError(f"Group '{name}' is a {kind.lower()} group: use `{_COMMANDS[kind]}`.")
    return list(names)


def show(groups: Sequence[ListedGroup], *, with_type: bool, with_state: bool, output_format: Format | None) -> None:
    """Print the names, or a table with types and states."""
    if output_format:
        print_data([{"group": one.name, "type": one.type, "state": one.state} for one in groups], output_format)
        return
    if not with_type and not with_state:
        for one in groups:
            print(one.name)
        return
    width = max([25, *(len(one.name) for one in groups)])
    for name, kind, state in [("GROUP", "TYPE", "STATE"), *((one.name, one.type, one.state) for one in groups)]:
        columns = [f"{name:<{width}}"]
        columns += [f"{kind:<20}"] if with_type else []
        columns += [f"{state:<20}"] if with_state else []
        print(" ".join(columns))


def validate_regex(pattern: str) -> None:
    """Check a subscription pattern against the RE2 syntax that brokers use, which has no lookaround and no
    backreferences. Print a line if it is valid.

    Raises ``CommandError`` if the pattern is invalid.
    """
    import re2  # takes a while to import, and only this option needs it

    from parley.broker.coordinators.re2_patterns import reason_of

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options=options)
    except re2.error as error:
        raise CommandError(f"'{pattern}' is not a valid regular expression of RE2: {reason_of(error)}.") from error
    print(f"Success: the regular expression '{pattern}' is valid.")
