"""Describe groups of all types together: those of consumers, and share groups, each in the tables of its own tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from parley.protocol.client import Client
from parley.tools.cli.groups import describing, tables
from parley.tools.cli.groups.listing import CONSUMER_TYPES, list_groups, of_another_type
from parley.tools.cli.share_groups import describing as share_describing
from parley.tools.cli.share_groups import tables as share_tables

_SHARE, _STREAMS = "Share", "Streams"


class Described(NamedTuple):
    """Groups by type."""

    consumers: Sequence[describing.Group]
    share: Sequence[share_describing.ShareGroup]


async def describe(client: Client, names: Sequence[str] | None, *, timeout_ms: int) -> Described:
    """Describe these groups, or all of consumers (None). Streams groups, and those that do not exist, have an error."""
    listed = {group.name: group.type for group in await list_groups(client)}
    if names is None:
        names = [name for name, kind in listed.items() if kind in CONSUMER_TYPES]
    share = [name for name in names if listed.get(name) == _SHARE]
    streams = [name for name in names if listed.get(name) == _STREAMS]
    others = [name for name in names if listed.get(name) not in (_SHARE, _STREAMS)]
    refused = [describing.Group(name, error=of_another_type(name, _STREAMS)) for name in streams]
    return Described(
        [*await describing.describe(client, others, timeout_ms=timeout_ms), *refused],
        await share_describing.describe(client, share, timeout_ms=timeout_ms),
    )


def show(found: Described, view: str, *, verbose: bool, as_json: bool) -> bool:
    """Print the groups. Returns False if one of them does not exist."""
    if as_json:
        data = [*map(tables.as_data, found.consumers), *map(share_tables.as_data, found.share)]
        print(json.dumps(data, indent=2))
        return not any("error" in each for each in data)
    # Both are shown, also if the first one has an error.
    are_known = tables.show(found.consumers, view, verbose=verbose, as_json=False)
    return share_tables.show(found.share, view, verbose=verbose, as_json=False) and are_known
