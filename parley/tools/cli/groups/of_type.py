"""List the groups of one type, for the commands that handle only that type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.protocol.client import Client
from parley.protocol.messages.groups import ListGroupsRequest
from parley.tools.cli.cluster_client import check, until_ready
from parley.tools.cli.invocation import CommandError

_LIST_TIMEOUT_MS: Final = 10_000


async def list_groups_of_type(
    client: Client, group_type: str, known_states: Sequence[str], states: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the names and states of the groups of this type, sorted. If ``states`` is empty, groups in any state are
    returned.

    Raises ``CommandError`` for a state that is not in ``known_states``, the states of groups of this type, or if a
    broker cannot list its groups.
    """
    spelling = {state.lower(): state for state in known_states}
    wrong = [state for state in states if state.lower() not in spelling]
    if wrong:
        raise CommandError(f"--state takes {', '.join(known_states)}, not '{wrong[0]}'.")
    request = ListGroupsRequest(states_filter=[spelling[state.lower()] for state in states], types_filter=[group_type])
    found = []
    for broker in (await client.metadata([])).brokers:
        node = broker.node_id
        answer = await until_ready(
            lambda node=node: client.send(request, node=node),  # type: ignore[misc]
            lambda answer: int(answer.error_code),
            _LIST_TIMEOUT_MS,
        )
        check(answer.error_code, doing=f"Broker {node} did not list its groups")
        found += [(group.group_id, group.group_state) for group in answer.groups]
    return sorted(found)
