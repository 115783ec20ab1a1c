"""Print groups as the tables of kafka-consumer-groups, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.groups.describing import Group, Member
from parley.tools.cli.output import Format, print_data

_NOTHING = "-"
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


class Described(Protocol):
    """A group of any type, or the error that prevented its description."""

    @property
    def error(self) -> str: ...


D = TypeVar("D", bound=Described)


def show_each(
    groups: Sequence[D],
    show_one: Callable[[D], None],
    as_data: Callable[[D], dict[str, Any]],
    output_format: Format | None,
) -> bool:
    """Print the groups of one type. Returns False if any of them does not exist."""
    if output_format:
        print_data([as_data(group) for group in groups], output_format)
    for group in groups:
        if group.error:
            print(f"\nError: {group.error}", file=sys.stderr)
        elif not output_format:
            show_one(group)
    return not any(group.error for group in groups)


def show(groups: Sequence[Group], view: str, *, verbose: bool, output_format: Format | None) -> bool:
    """Print the groups: their offsets, members or state, as ``view`` says. With ``output_format``, print everything.
    Returns False if any of them does not exist."""
    return show_each(groups, partial(_show_one, view=view, verbose=verbose), as_data, output_format)


def _show_one(group: Group, view: str, *, verbose: bool) -> None:
    _warn(group)
    table = {"offsets": offsets_table, "members": members_table, "state": state_table}[view]
    print()
    for line in table(group, verbose=verbose):
        print(line)


def _warn(group: Group) -> None:
    sys.stdout.flush()
    if group.state == "Empty":
        print(f"\nConsumer group '{group.name}' has no active members.", file=sys.stderr, flush=True)
    elif group.state in _REBALANCING:
        print(f"\nWarning: Consumer group '{group.name}' is rebalancing.", file=sys.stderr, flush=True)


def offsets_table(group: Group, *, verbose: bool = False) -> list[str]:
    """Return the table of offsets and lag per partition."""
    holders = {where: member for member in group.members for where in member.partitions}
    rows = [_offset_row(group, where, holders.get(where)) for where in sorted({*group.committed, *holders})]
    head = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    table = [(*head, "CONSUMER-ID", "HOST", "CLIENT-ID"), *rows]
    return aligned([row if verbose else row[:3] + row[4:] for row in table], _OFFSET_WIDTHS[verbose])


_OFFSET_WIDTHS = {False: (15, 15, 10, 15, 15, 15, 15, 15, 0), True: (15, 15, 10, 15, 15, 15, 15, 15, 15, 0)}


def _offset_row(group: Group, where: TopicPartition, holder: Member | None) -> tuple[str, ...]:
    committed, end = group.committed.get(where), group.end_offsets.get(where)
    lag = end - committed.offset if committed is not None and end is not None else None
    known_epoch = committed is not None and committed.leader_epoch >= 0
    return (
        group.name,
        where[0],
        str(where[1]),
        str(committed.leader_epoch) if committed is not None and known_epoch else _NOTHING,
        _NOTHING if committed is None else str(committed.offset),
        _NOTHING if end is None else str(end),
        _NOTHING if lag is None else str(lag),
        holder.member_id if holder else _NOTHING,
        holder.host if holder else _NOTHING,
        holder.client_id if holder else _NOTHING,
    )


def members_table(group: Group, *, verbose: bool = False) -> list[str]:
    """Return the table of members. Like Kafka's tool, it shows which members are upgraded if only some are."""
    mixed = {member.upgraded for member in group.members} >= {True, False}
    static = any(member.instance_id for member in group.members)
    rows = [["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]]
    rows[0] += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"]
    for member in group.members:
        identity = [group.name, member.member_id, member.instance_id or "", member.host, member.client_id]
        epochs = [_NOTHING if epoch is None else str(epoch) for epoch in (member.epoch, member.target_epoch)]
        target = _NOTHING if member.target is None else assignment_text(member.target)
        current = [str(len(member.partitions)), epochs[0], assignment_text(member.assignment)]
        upgraded = _NOTHING if member.upgraded is None else str(member.upgraded).lower()
        rows.append([*identity, *current, epochs[1], target, upgraded])
    widths = [15, 15, 17, 15, 15, 15, 15, 20, 15, 20, 0]
    shown = 6 if not verbose else 11 if mixed else 10
    columns = [at for at in range(shown) if static or at != 2]
    return aligned([tuple(row[at] for at in columns) for row in rows], tuple(widths[at] for at in columns))


def assignment_text(assignment: Mapping[str, Sequence[int]]) -> str:
    parts = (f"{topic}:{','.join(map(str, sorted(indexes)))}" for topic, indexes in sorted(assignment.items()))
    return ";".join(parts) or _NOTHING


def state_table(group: Group, *, verbose: bool = False) -> list[str]:
    """Return the table of coordinator, assignment strategy and state."""
    head = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    row = [group.name, str(group.coordinator), group.strategy or _NOTHING, group.state]
    widths = [15, 25, 20, 20]
    if verbose:
        head += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row += [_NOTHING if epoch is None else str(epoch) for epoch in (group.epoch, group.target_epoch)]
        widths += [15, 25]
    return aligned([(*head, "#MEMBERS"), (*row, str(len(group.members)))], (*widths, 0))


def aligned(rows: Sequence[Sequence[str]], least: Sequence[int]) -> list[str]:
    """Pad each column to its longest text, and to a width of at least ``least``. A minimum of 0 marks the last column,
    which is not padded."""
    widths = [max([one, *(len(row[at]) for row in rows)]) if one else 0 for at, one in enumerate(least)]
    return [" ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)) for row in rows]


def as_data(group: Group) -> dict[str, Any]:
    """Return a group as JSON data."""
    if group.error:
        return {"group": group.name, "error": group.error}
    at = group.coordinator
    holders = {where: member for member in group.members for where in member.partitions}
    return {
        "group": group.name,
        "state": group.state,
        "assignmentStrategy": group.strategy,
        "groupEpoch": group.epoch,
        "targetAssignmentEpoch": group.target_epoch,
        "coordinator": None if at is None else {"id": at.id, "host": at.host, "port": at.port},
        "members": [_member_data(one) for one in group.members],
        "offsets": [_offset_data(group, where, holders.get(where)) for where in sorted({*group.committed, *holders})],
    }


def _offset_data(group: Group, where: TopicPartition, holder: Member | None) -> dict[str, Any]:
    committed, end = group.committed.get(where), group.end_offsets.get(where)
    return {
        "topic": where[0],
        "partition": where[1],
        "currentOffset": committed.offset if committed else None,
        "logEndOffset": end,
        "lag": end - committed.offset if committed and end is not None else None,
        "consumerId": holder.member_id if holder else None,
    }


def _member_data(one: Member) -> dict[str, Any]:
    return {
        "consumerId": one.member_id,
        "groupInstanceId": one.instance_id,
        "clientId": one.client_id,
        "host": one.host,
        "assignment": {topic: list(indexes) for topic, indexes in one.assignment.items()},
        "epoch": one.epoch,
        "targetAssignment": {topic: list(indexes) for topic, indexes in (one.target or {}).items()},
        "upgraded": one.upgraded,
    }
