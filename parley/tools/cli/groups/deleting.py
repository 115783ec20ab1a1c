"""Delete groups, and the offsets of a group for some topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.group_offsets import OffsetDeleteRequest
from parley.protocol.messages.groups import DeleteGroupsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import by_topic, check, described, of_coordinator
from parley.tools.cli.groups.listing import selected
from parley.tools.cli.groups.partition_selection import PartitionSelection
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.plurals import plural

_UNKNOWN_TOPIC = -1
"""The partition number under which an error about a whole topic is reported."""


async def delete_selected(client: Client, names: Sequence[str] | None, *, timeout_ms: int) -> dict[str, int]:
    """Delete these groups of any type, or all consumer groups if ``names`` is None. Returns the error code of each
    group (0 if it was deleted)."""
    chosen = await selected(client, None) if names is None else names
    return await delete_groups(client, chosen, timeout_ms=timeout_ms)


async def delete_groups(client: Client, names: Sequence[str], *, timeout_ms: int) -> dict[str, int]:
    """Delete these groups of any type. Returns the error code of each group (0 if it was deleted). Raises KafkaError if
    a coordinator does not respond; the groups before it are then already deleted.

    The internal topics of a streams group are kept.
    """
    codes = {}
    for name in dict.fromkeys(names):
        answer = await of_coordinator(
            client,
            name,
            DeleteGroupsRequest(groups_names=[name]),
            lambda answer: int(answer.results[0].error_code),
            timeout_ms=timeout_ms,
        )
        codes[name] = int(answer.results[0].error_code)
    return codes


def show_groups(codes: Mapping[str, int], *, output_format: Format | None) -> None:
    """Print which groups were deleted. Raises ``CommandError`` if any group was not."""
    if output_format:
        print_data({name: described(code) if code else None for name, code in codes.items()}, output_format)
    gone = [f"'{name}'" for name, code in codes.items() if not code]
    left = [f"* Group '{name}' could not be deleted due to: {described(code)}" for name, code in codes.items() if code]
    if left:
        raise CommandError(
            "\n".join(
                [
                    "Deletion of some consumer groups failed:",
                    *left,
                    *([f"These were deleted successfully: {', '.join(gone)}"] if gone else []),
                ]
            )
        )
    if not output_format:
        print(f"Deletion of requested consumer groups ({', '.join(gone)}) was successful.")


async def delete_consumer_offsets(
    client: Client, group: str, selection: PartitionSelection, *, timeout_ms: int
) -> dict[TopicPartition, int]:
    """Delete offsets of a consumer group, as ``delete_offsets`` does. Also raises ``CommandError`` if the group has
    another type."""
    (name,) = await selected(client, [group])
    return await delete_offsets(client, name, selection, timeout_ms=timeout_ms)


async def delete_offsets(
    client: Client, group: str, selection: PartitionSelection, *, timeout_ms: int
) -> dict[TopicPartition, int]:
    """Delete offsets of a group. Returns the error code of each partition (0 if its offset was deleted). A topic that
    does not exist is reported as partition ``_UNKNOWN_TOPIC``.

    Raises ``CommandError`` if the whole request fails.
    """
    metadata = await client.metadata(selection.topics)
    known = {topic.name or "": [one.partition_index for one in topic.partitions] for topic in metadata.topics}
    codes: dict[TopicPartition, int] = {}
    wanted: list[TopicPartition] = []
    for topic, partitions in selection.topics.items():
        indexes = sorted(partitions if partitions is not None else known.get(topic, ()))
        wanted += [(topic, index) for index in indexes]
        if not indexes:
            codes[topic, _UNKNOWN_TOPIC] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                ],
            )
            for topic, indexes in by_topic(wanted).items()
        ],
    )
    answer = await of_coordinator(client, group, request, lambda answer: int(answer.error_code), timeout_ms=timeout_ms)
    check(answer.error_code, doing=f"No offset of group '{group}' was deleted")
    for topic in answer.topics:
        for one in topic.partitions:
            codes[topic.name, one.partition_index] = int(one.error_code)
    return codes


def show_offsets(group: str, codes: Mapping[TopicPartition, int], *, output_format: Format | None) -> None:
    """Print the result for each partition. Raises ``CommandError`` if any offset was not deleted."""
    failed = [where for where, code in codes.items() if code]
    rows = [(topic, index, described(code) if code else "Successful") for (topic, index), code in sorted(codes.items())]
    if output_format:
        print_data(
            [{"topic": topic, "partition": index, "status": status} for topic, index, status in rows], output_format
        )
    else:
        print(f"Request {'failed' if failed else 'succeeded'} for deleting offsets from group {group}.\n")
        for line in _table(rows):
            print(line)
    if failed:
        raise CommandError(f"The offsets of {plural(len(failed), 'partition')} were not deleted.")


def _table(rows: Iterable[tuple[str, int, str]]) -> list[str]:
    rows = list(rows)
    width = max([15, *(len(topic) for topic, _, _ in rows)])
    lines = [f"{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}"]
    for topic, index, status in rows:
        shown = "-" if index == _UNKNOWN_TOPIC else str(index)
        outcome = status if status == "Successful" else f"Error: {status}"
        lines.append(f"{topic:<{width}} {shown:<10} {outcome:<15}")
    return lines
