"""Describe groups of all types together, each in the tables that the command for its type prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parley.protocol.client import Client
from parley.tools.cli.groups import describing, tables
from parley.tools.cli.groups.listing import CONSUMER_TYPES, list_groups
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.share_groups import describing as share_describing
from parley.tools.cli.share_groups import tables as share_tables
from parley.tools.cli.streams_groups import describing as streams_describing
from parley.tools.cli.streams_groups import tables as streams_tables

_SHARE, _STREAMS = "Share", "Streams"


class Described(NamedTuple):
    """The described groups, by type."""

    consumers: Sequence[describing.Group]
    share: Sequence[share_describing.ShareGroup]
    streams: Sequence[streams_describing.StreamsGroup]


async def describe(client: Client, names: Sequence[str] | None, *, with_offsets: bool, timeout_ms: int) -> Described:
    """Describe these groups, or all consumer groups if ``names`` is None. The description of a group that does not
    exist contains an error. Raises ``CommandError`` if a broker rejects a request.

    Without ``with_offsets``, streams groups have no offsets, because their lag requires requests to the leaders of all
    partitions.
    """
    listed = {group.name: group.type for group in await list_groups(client)}
    if names is None:
        names = [name for name, kind in listed.items() if kind in CONSUMER_TYPES]
    share = [name for name in names if listed.get(name) == _SHARE]
    streams = [name for name in names if listed.get(name) == _STREAMS]
    others = [name for name in names if listed.get(name) not in (_SHARE, _STREAMS)]
    return Described(
        await describing.describe(client, others, timeout_ms=timeout_ms),
        await share_describing.describe(client, share, timeout_ms=timeout_ms),
        await streams_describing.describe(client, streams, with_offsets=with_offsets, timeout_ms=timeout_ms),
    )


def show(found: Described, view: str, *, verbose: bool, output_format: Format | None) -> bool:
    """Print the groups: their offsets, members or state, as ``view`` says. With ``output_format``, print everything.
    Returns False if any of them does not exist."""
    if output_format:
        data = [
            *map(tables.as_data, found.consumers),
            *map(share_tables.as_data, found.share),
            *map(streams_tables.as_data, found.streams),
        ]
        print_data(data, output_format)
        return not any("error" in each for each in data)
    are_known = [  # groups of all types are shown, even if some of the first type have an error
        tables.show(found.consumers, view, verbose=verbose, output_format=None),
        share_tables.show(found.share, view, verbose=verbose, output_format=None),
        streams_tables.show(found.streams, view, verbose=verbose, output_format=None),
    ]
    return all(are_known)
