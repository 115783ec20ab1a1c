"""Print streams groups as the tables of kafka-streams-groups, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from parley.tools.cli.groups.tables import aligned, show_each
from parley.tools.cli.output import Format
from parley.tools.cli.streams_groups.describing import Assignment, Offset, StreamsGroup, Tasks

_NOTHING = "-"
_MEMBER_COLUMNS = (
    "GROUP",
    "TARGET-ASSIGNMENT-EPOCH",
    "TOPOLOGY-EPOCH",
    "MEMBER",
    "MEMBER-PROTOCOL",
    "MEMBER-EPOCH",
    "PROCESS",
    "CLIENT-ID",
    "ASSIGNMENTS",
)


def show(groups: Sequence[StreamsGroup], view: str, *, verbose: bool, output_format: Format | None) -> bool:
    """Print the groups: their offsets, members or state, as ``view`` says. With ``output_format``, print everything.
    Returns False if any of them does not exist."""
    return show_each(groups, partial(_show_one, view=view, verbose=verbose), as_data, output_format)


def _show_one(group: StreamsGroup, view: str, *, verbose: bool) -> None:
    sys.stdout.flush()
    if group.state == "Empty":
        print(f"\nStreams group '{group.name}' has no active members.", file=sys.stderr, flush=True)
    if view != "state" and not group.members:
        return
    print()
    for line in _VIEWS[view](group, verbose):
        print(line.rstrip())


def _offsets(group: StreamsGroup, verbose: bool) -> list[str]:
    rows = [("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LEADER-EPOCH", "LOG-END-OFFSET", "OFFSET-LAG")]
    rows += [
        (group.name, topic, str(index), _text(each.current), _text(each.leader_epoch), str(each.end), str(each.lag))
        for (topic, index), each in sorted(group.offsets.items())
    ]
    if verbose:
        return aligned(rows, (15, 15, 10, 15, 15, 15, 0))
    return aligned([(*row[:3], row[6]) for row in rows], (15, 15, 10, 0))


def _text(number: int | None) -> str:
    return _NOTHING if number is None else str(number)


def _state(group: StreamsGroup, verbose: bool) -> list[str]:
    row = (group.name, str(group.coordinator), group.state, str(group.epoch), str(group.target_epoch))
    rows = [("GROUP", "COORDINATOR (ID)", "STATE", "GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS")]
    rows.append((*row, str(len(group.members))))
    if verbose:
        return aligned(rows, (15, 25, 25, 15, 25, 0))
    return aligned([(*each[:3], each[5]) for each in rows], (15, 25, 25, 0))


def _members(group: StreamsGroup, verbose: bool) -> list[str]:
    rows = [_MEMBER_COLUMNS]
    for each in group.members:
        tasks = assignment_text(each.assignment) + (assignment_text(each.target, "TARGET-") if verbose else "")
        protocol = "classic" if each.is_classic else "streams"
        epochs = (str(group.target_epoch), str(group.topology_epoch))
        rows.append(
            (group.name, *epochs, each.member_id, protocol, str(each.epoch), each.process_id, each.client_id, tasks)
        )
    if verbose:
        return aligned(rows, (15, 25, 15, 15, 15, 15, 15, 15, 0))
    return aligned([(row[0], row[3], *row[6:]) for row in rows], (15, 15, 15, 15, 0))


def assignment_text(found: Assignment, prefix: str = "") -> str:
    """Format tasks as text, with the name of each kind of task."""
    kinds = (("ACTIVE", found.active), ("STANDBY", found.standby), ("WARMUP", found.warmup))
    return "".join(f"{prefix}{kind}: {_tasks_text(tasks)}" for kind, tasks in kinds if tasks)


def _tasks_text(tasks: Tasks) -> str:
    return "".join(f"{subtopology}:[{','.join(map(str, indexes))}]; " for subtopology, indexes in tasks.items())


_VIEWS: Mapping[str, Callable[[StreamsGroup, bool], list[str]]] = {
    "offsets": _offsets,
    "members": _members,
    "state": _state,
}


def as_data(group: StreamsGroup) -> dict[str, Any]:
    """Return a group as JSON data."""
    if group.error:
        return {"group": group.name, "error": group.error}
    at = group.coordinator
    return {
        "group": group.name,
        "state": group.state,
        "groupEpoch": group.epoch,
        "targetAssignmentEpoch": group.target_epoch,
        "topologyEpoch": group.topology_epoch,
        "coordinator": None if at is None else {"id": at.id, "host": at.host, "port": at.port},
        "subtopologies": [
            {
                "id": each.id,
                "sourceTopics": list(each.sources),
                "repartitionSourceTopics": list(each.repartitions),
                "stateChangelogTopics": list(each.changelogs),
            }
            for each in group.subtopologies
        ],
        "members": [
            {
                "memberId": each.member_id,
                "processId": each.process_id,
                "clientId": each.client_id,
                "host": each.host,
                "epoch": each.epoch,
                "assignment": _assignment_data(each.assignment),
                "targetAssignment": _assignment_data(each.target),
            }
            for each in group.members
        ],
        "offsets": [_offset_data(where, offset) for where, offset in sorted(group.offsets.items())],
    }


def _assignment_data(found: Assignment) -> dict[str, Any]:
    return {kind: {name: list(each) for name, each in tasks.items()} for kind, tasks in found._asdict().items()}


def _offset_data(where: tuple[str, int], offset: Offset) -> dict[str, Any]:
    return {
        "topic": where[0],
        "partition": where[1],
        "currentOffset": offset.current,
        "leaderEpoch": offset.leader_epoch,
        "logEndOffset": offset.end,
        "lag": offset.lag,
    }
