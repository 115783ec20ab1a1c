"""Set the offsets of a group without joining it: plan the new offsets, show them, and commit them with --execute.

Rules:

1. Only a group without members may be reset, because members would overwrite the new offsets with their own.
2. A new offset is limited to the range between the start and the end of the partition.
3. Without --execute nothing changes.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from parley.broker.runtime.clock import SYSTEM_CLOCK
from parley.protocol.client import Client
from parley.protocol.messages.group_offsets import OffsetCommitRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import by_topic, check, described, until_ready
from parley.tools.cli.common_options import one_action
from parley.tools.cli.groups.describing import Committed, committed_offsets, describe_one
from parley.tools.cli.groups.listing import selected
from parley.tools.cli.groups.partition_selection import PartitionSelection
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.topic_offsets import EARLIEST, LATEST, list_offsets

_BY_NAME_VERSION_MAX: Final = 9
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)

TARGETS: Final = (
    "to_earliest", "to_latest", "to_current", "to_offset", "shift_by", "to_datetime", "by_duration", "from_file",
)  # fmt: skip
"""The options that determine the new offsets. Exactly one is required."""

FilePlan = Mapping[str | None, Mapping[TopicPartition, int]]
"""The offsets in a CSV file, by group. Lines without a group are under None."""


@dataclass(frozen=True, slots=True)
class Target:
    """How to determine the new offsets: ``kind`` is the option's name, ``number`` or ``file`` holds its value. A time
    is in ms since 1970."""

    kind: str
    number: int = 0
    file: FilePlan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A reset as the user requested it. ``groups`` is None for all groups."""

    target: Target
    groups: tuple[str, ...] | None
    selection: PartitionSelection
    execute: bool
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Result:
    """The new offsets of one group. If ``error`` is set, the reset failed or was only partly done."""

    group: str
    offsets: Mapping[TopicPartition, int]
    error: str = ""


def target(*, now_ms: int | None = None, **options: Any) -> Target:
    """Return the target that the options name. ``by_duration`` counts back from ``now_ms``, by default the current
    time. Raises ``CommandError`` unless exactly one is given, or if its value is malformed."""
    given = {name: value is not None and value is not False and value != "" for name, value in options.items()}
    kind = one_action(**given)
    value = options[kind]
    if kind == "from_file":
        return Target(kind, file=read_csv(value))
    if kind == "to_datetime":
        return Target(kind, parse_datetime(value))
    if kind == "by_duration":
        now = SYSTEM_CLOCK.wall_ms() if now_ms is None else now_ms
        return Target(kind, now - parse_duration(value))
    if kind == "to_offset" and value < 0:
        raise CommandError(f"--to-offset takes 0 or more, not {value}.")
    return Target(kind, 0 if isinstance(value, bool) else value)


def parse_datetime(text: str) -> int:
    """Parse a time such as 2026-01-31T08:30:00.000 to ms since 1970. The time is in UTC unless it has an offset. Raises
    ``CommandError`` for any other format."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"--to-datetime takes YYYY-MM-DDThh:mm:ss.sss, not '{text}'.") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def parse_duration(text: str) -> int:
    """Parse a duration such as P1DT2H30M (ISO 8601 without months and years) to ms. Raises ``CommandError`` for any
    other format."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.group("days", "hours", "minutes", "seconds")):
        raise CommandError(f"--by-duration takes PnDTnHnMnS, as in PT1H30M, not '{text}'.")
    parts = {name: float(value) for name, value in match.groupdict().items() if value and name != "sign"}
    duration = timedelta(**parts) // timedelta(milliseconds=1)
    return -duration if match["sign"] == "-" else duration


def read_csv(path: Path) -> FilePlan:
    """Read lines ``[group,]topic,partition,offset``. Raises ``CommandError`` if the file cannot be read, or a line has
    any other format."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(csv.reader(file), 1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"The file {path} cannot be read: {error}.") from error
    plan: dict[str | None, dict[TopicPartition, int]] = {}
    for number, row in rows:
        group = row[0] if len(row) == 4 else None
        if len(row) not in (3, 4) or not row[-2].isdecimal() or not row[-1].isdecimal():
            raise CommandError(
                f"{path}, line {number}: expected [group,]topic,partition,offset, not '{','.join(row)}'."
            )
        plan.setdefault(group, {})[row[-3], int(row[-2])] = int(row[-1])
    return plan


async def reset(client: Client, plan: Plan) -> list[Result]:
    """Find the new offsets of each group, and commit them if the plan says so. The result of a group that has members
    contains an error.

    Raises ``CommandError`` if any of the groups is a share group or a streams group, or if an offset cannot be found or
    committed. Groups before it are then already reset.
    """
    names = await selected(client, plan.groups)
    return [await _reset_one(client, name, plan) for name in names]


async def _reset_one(client: Client, name: str, plan: Plan) -> Result:
    group = await describe_one(client, name, timeout_ms=plan.timeout_ms)
    if not group.is_inactive:
        return Result(
            name,
            {},
            f"Assignments can only be reset if the group '{name}' is inactive, but the current state is {group.state}.",
        )
    committed = group.committed or await committed_offsets(client, name, timeout_ms=plan.timeout_ms)
    if plan.target.file is not None:
        wanted = plan.target.file.get(name) or plan.target.file.get(None) or {}
        offsets = await within_log(client, wanted)
    else:
        partitions = await _partitions(client, plan.selection, committed)
        offsets = await new_offsets(client, plan.target, partitions, committed)
    if plan.execute and offsets:
        await commit(client, name, offsets, timeout_ms=plan.timeout_ms)
    return Result(name, offsets)


async def _partitions(
    client: Client, selection: PartitionSelection, committed: Mapping[TopicPartition, Committed]
) -> list[TopicPartition]:
    if not selection.topics:
        return sorted(committed)
    metadata = await client.metadata(selection.topics)
    known = {topic.name or "": [one.partition_index for one in topic.partitions] for topic in metadata.topics}
    return selection.partitions(known)


async def new_offsets(
    client: Client, to: Target, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, int]:
    """Find the new offset of each partition. Raises ``CommandError`` if a partition's offset cannot be looked up, or is
    to be shifted and was never committed."""
    match to.kind:
        case "to_earliest":
            return await _looked_up(client, partitions, EARLIEST)
        case "to_latest":
            return await _looked_up(client, partitions, LATEST)
        case "to_offset":
            return await within_log(client, dict.fromkeys(partitions, to.number))
        case "shift_by":
            without = [where for where in partitions if where not in committed]
            if without:
                raise CommandError(
                    f"{without[0][0]}-{without[0][1]} has no committed offset of this group, so it cannot be shifted."
                )
            return await within_log(client, {where: committed[where].offset + to.number for where in partitions})
        case "to_current":
            rest = [where for where in partitions if where not in committed]
            offsets = {where: committed[where].offset for where in partitions if where in committed}
            return await within_log(client, offsets) | await _looked_up(client, rest, LATEST)
        case _:
            timed = await _looked_up(client, partitions, to.number)
            later = [where for where, offset in timed.items() if offset < 0]
            return timed | await _looked_up(client, later, LATEST)


async def _looked_up(client: Client, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
    found = await list_offsets(client, partitions, time)
    for (topic, index), one in found.items():
        check(one.error, doing=f"The offset of {topic}-{index}")
    return {where: one.offset for where, one in sorted(found.items())}


async def within_log(client: Client, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets, limited to the range between the start and the end of each partition. Prints a warning for
    each offset outside it. Raises ``CommandError`` if a partition's start or end cannot be looked up."""
    first, last = await _looked_up(client, wanted, EARLIEST), await _looked_up(client, wanted, LATEST)
    kept = {}
    for (topic, index), offset in sorted(wanted.items()):
        low, high = first[topic, index], last[topic, index]
        kept[topic, index] = min(max(offset, low), high)
        if not low <= offset <= high:
            bound = "lower than the earliest" if offset < low else "higher than the latest"
            print(
                f"Warning: New offset ({offset}) is {bound} of {topic}-{index}. It is set to {kept[topic, index]}.",
                file=sys.stderr,
            )
    return kept


async def commit(client: Client, group: str, offsets: Mapping[TopicPartition, int], *, timeout_ms: int) -> None:
    """Commit the offsets without joining the group. Raises ``CommandError`` if any offset is rejected."""
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[topic, index], committed_metadata=""
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(offsets).items()
        ],
    )

    async def ask() -> Any:
        node = await client.coordinator(group)
        version = min(await client.version_for(OffsetCommitRequest, node=node), _BY_NAME_VERSION_MAX)
        return await client.send(request, node=node, version=version)

    def first_code(answer: Any) -> int:
        return next((one.error_code for topic in answer.topics for one in topic.partitions if one.error_code), 0)

    answer = await until_ready(ask, first_code, timeout_ms)
    refused = [
        f"{topic.name}-{one.partition_index}: {described(one.error_code)}"
        for topic in answer.topics
        for one in topic.partitions
        if one.error_code
    ]
    if refused:
        raise CommandError(f"The offsets of group '{group}' were not all reset. {'; '.join(refused)}")


def warn_dry_run() -> None:
    """Warn that the new offsets are only shown, and that nothing has changed."""
    print("Without --execute nothing is changed; these would be the new offsets.", file=sys.stderr)


def show(results: Sequence[Result], *, as_csv: bool, output_format: Format | None) -> None:
    """Print the new offsets as a table, CSV or JSON, and errors to standard error."""
    for result in results:
        if result.error:
            print(f"\nError: {result.error}", file=sys.stderr)
    rows = [
        (result.group, topic, index, offset)
        for result in results
        for (topic, index), offset in sorted(result.offsets.items())
    ]
    if output_format:
        print_data(
            [dict(zip(("group", "topic", "partition", "offset"), row, strict=True)) for row in rows], output_format
        )
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows if len(results) > 1 else [row[1:] for row in rows])
    elif not rows and not any(result.error for result in results):
        print("No partitions to reset: none of the topics has committed offsets in the group.", file=sys.stderr)
    elif rows:
        widths = [max([15, *(len(str(row[at])) for row in rows)]) for at in (0, 1)]
        print()
        for group, topic, index, offset in [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), *rows]:
            print(f"{group:<{widths[0]}} {topic:<{widths[1]}} {index:<10} {offset}")
