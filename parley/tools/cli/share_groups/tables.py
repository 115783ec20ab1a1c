"""Print share groups as the tables of kafka-share-groups, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from parley.tools.cli.groups.tables import aligned, assignment_text, show_each
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.share_groups.describing import Offset, ShareGroup

_NOTHING = "-"


def show_list(groups: Sequence[tuple[str, str]], *, with_state: bool, output_format: Format | None) -> None:
    """Print the names of groups, with their states if ``with_state`` or an output format is given."""
    if output_format:
        print_data([{"group": name, "state": state} for name, state in groups], output_format)
    elif with_state:
        for line in aligned([("GROUP", "STATE"), *groups], (15, 0)):
            print(line)
    else:
        for name, _ in groups:
            print(name)


def show(groups: Sequence[ShareGroup], view: str, *, verbose: bool, output_format: Format | None) -> bool:
    """Print the groups: their offsets, members or state, as ``view`` says. With ``output_format``, print everything.
    Returns False if any of them does not exist."""
    return show_each(groups, partial(_show_one, view=view, verbose=verbose), as_data, output_format)


def _show_one(group: ShareGroup, view: str, *, verbose: bool) -> None:
    sys.stdout.flush()
    if view == "offsets" and not group.offsets:
        print(f"\nShare group '{group.name}' has no offset information.", file=sys.stderr, flush=True)
        return
    if view != "offsets" and group.state == "Empty":
        print(f"\nShare group '{group.name}' has no active members.", file=sys.stderr, flush=True)
    if view == "members" and not group.members:
        return
    print()
    for line in _VIEWS[view](group, verbose):
        print(line)


def _offsets(group: ShareGroup, verbose: bool) -> list[str]:
    rows = [("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG")]
    rows += [
        (group.name, topic, str(index), _text(offset.leader_epoch), _text(offset.start_offset), _text(offset.lag))
        for (topic, index), offset in sorted(group.offsets.items())
    ]
    if verbose:
        return aligned(rows, (15, 15, 10, 13, 13, 0))
    return aligned([row[:3] + row[4:] for row in rows], (15, 15, 10, 13, 0))


def _text(number: int | None) -> str:
    return _NOTHING if number is None else str(number)


def _state(group: ShareGroup, verbose: bool) -> list[str]:
    row = (group.name, str(group.coordinator), group.state, str(group.epoch), str(group.target_epoch))
    rows = [("GROUP", "COORDINATOR (ID)", "STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS")]
    rows.append((*row, str(len(group.members))))
    if verbose:
        return aligned(rows, (15, 25, 15, 12, 17, 0))
    return aligned([(*each[:3], each[5]) for each in rows], (15, 25, 15, 0))


def _members(group: ShareGroup, verbose: bool) -> list[str]:
    rows = [("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "MEMBER-EPOCH", "ASSIGNMENT")]
    rows += [
        (
            group.name,
            each.member_id,
            each.host,
            each.client_id,
            str(each.partitions),
            str(each.epoch),
            assignment_text(each.assignment),
        )
        for each in group.members
    ]
    if verbose:
        return aligned(rows, (15, 15, 15, 15, 12, 13, 0))
    return aligned([each[:5] + each[6:] for each in rows], (15, 15, 15, 15, 12, 0))


_VIEWS: Mapping[str, Callable[[ShareGroup, bool], list[str]]] = {
    "offsets": _offsets,
    "members": _members,
    "state": _state,
}


def as_data(group: ShareGroup) -> dict[str, Any]:
    """Return a group as JSON data."""
    if group.error:
        return {"group": group.name, "error": group.error}
    at = group.coordinator
    return {
        "group": group.name,
        "state": group.state,
        "groupEpoch": group.epoch,
        "assignmentEpoch": group.target_epoch,
        "coordinator": None if at is None else {"id": at.id, "host": at.host, "port": at.port},
        "members": [
            {
                "consumerId": each.member_id,
                "clientId": each.client_id,
                "host": each.host,
                "epoch": each.epoch,
                "assignment": {topic: list(indexes) for topic, indexes in each.assignment.items()},
            }
            for each in group.members
        ],
        "offsets": [_offset_data(where, offset) for where, offset in sorted(group.offsets.items())],
    }


def _offset_data(where: tuple[str, int], offset: Offset) -> dict[str, Any]:
    return {
        "topic": where[0],
        "partition": where[1],
        "leaderEpoch": offset.leader_epoch,
        "startOffset": offset.start_offset,
        "lag": offset.lag,
    }
