"""Delete share groups and their offsets, and set the offsets at which they continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.share_groups import AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import by_topic, check, described, of_coordinator
from parley.tools.cli.groups import deleting
from parley.tools.cli.groups.reset import Plan, Result, new_offsets
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.share_groups.describing import describe_one, list_share_groups, offsets_of


async def delete_groups(client: Client, names: Sequence[str] | None, *, timeout_ms: int) -> dict[str, str]:
    """Delete these share groups, or all if ``names`` is None. Returns the error for each, which is empty if the group
    was deleted."""
    known = dict(await list_share_groups(client))
    outcomes = {}
    for name in dict.fromkeys(known if names is None else names):
        if name not in known:
            outcomes[name] = f"Share group '{name}' does not exist; 'parley groups --list' shows all groups."
        elif known[name] != "Empty":
            outcomes[name] = f"Share group '{name}' is not EMPTY."
        else:
            code = (await deleting.delete_groups(client, [name], timeout_ms=timeout_ms))[name]
            outcomes[name] = described(code) if code else ""
    return outcomes


def show_deleted(outcomes: Mapping[str, str], *, output_format: Format | None) -> None:
    """Print which groups were deleted. Raises ``CommandError`` if any group was not."""
    if output_format:
        print_data({name: error or None for name, error in outcomes.items()}, output_format)
    gone = ", ".join(f"'{name}'" for name, error in outcomes.items() if not error)
    left = [f"* Group '{name}' could not be deleted due to: {error}" for name, error in outcomes.items() if error]
    if left:
        also = [f"These share groups were deleted successfully: {gone}"] if gone else []
        raise CommandError("\n".join(["Deletion of some share groups failed:", *left, *also]))
    if not output_format:
        print(f"Deletion of requested share groups ({gone}) was successful.")


async def delete_offsets(client: Client, group: str, topics: Sequence[str], *, timeout_ms: int) -> dict[str, str]:
    """Delete the offsets of a group for topics. Returns the error for each topic, which is empty if its offsets were
    deleted. Raises ``CommandError`` if the whole request fails."""
    kind = DeleteShareGroupOffsetsRequest
    requested = [kind.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in dict.fromkeys(topics)]
    answer = await of_coordinator(
        client,
        group,
        kind(group_id=group, topics=requested),
        lambda answer: int(answer.error_code),
        timeout_ms=timeout_ms,
    )
    check(answer.error_code, answer.error_message)
    return {
        each.topic_name: described(each.error_code, each.error_message) if each.error_code else ""
        for each in answer.responses
    }


def show_topics(outcomes: Mapping[str, str], *, output_format: Format | None) -> None:
    """Print the outcome for each topic. Raises ``CommandError`` if any failed."""
    if output_format:
        print_data({topic: error or None for topic, error in outcomes.items()}, output_format)
    else:
        width = max([15, *(len(topic) for topic in outcomes)])
        print(f"\n{'TOPIC':<{width}} STATUS")
        for topic, error in sorted(outcomes.items()):
            print(f"{topic:<{width}} {f'Error: {error}' if error else 'Successful'}")
    failed = [topic for topic, error in outcomes.items() if error]
    if failed:
        raise CommandError(f"The offsets for {', '.join(sorted(failed))} were not deleted.")


async def reset(client: Client, plan: Plan) -> Result:
    """Find the new offsets of the plan's only share group, and set them if the plan says so. Raises ``CommandError`` if
    the group is not empty, or an offset cannot be found or set."""
    assert plan.groups is not None
    (name,) = plan.groups
    group = await describe_one(client, name, timeout_ms=plan.timeout_ms)
    if not group.error and group.state not in ("Empty", "Dead"):
        raise CommandError(f"Share group '{name}' is not empty.")
    partitions = await _partitions(client, name, plan)
    offsets = await new_offsets(client, plan.target, partitions, {})
    if plan.execute and offsets:
        await _alter(client, name, offsets, plan.timeout_ms)
    return Result(name, offsets)


async def _partitions(client: Client, name: str, plan: Plan) -> list[TopicPartition]:
    if not plan.selection.topics:
        return sorted(await offsets_of(client, name, timeout_ms=plan.timeout_ms))
    metadata = await client.metadata(plan.selection.topics)
    known = {topic.name or "": [one.partition_index for one in topic.partitions] for topic in metadata.topics}
    return plan.selection.partitions(known)


async def _alter(client: Client, name: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
    kind = AlterShareGroupOffsetsRequest
    make = kind.AlterShareGroupOffsetsRequestPartition
    topics = [
        kind.AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[make(partition_index=index, start_offset=offsets[topic, index]) for index in indexes],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
    answer = await of_coordinator(
        client, name, kind(group_id=name, topics=topics), lambda answer: int(answer.error_code), timeout_ms=timeout_ms
    )
    check(answer.error_code, answer.error_message)
    refused = [_refusal(topic.topic_name, one) for topic in answer.responses for one in topic.partitions]
    failed = [text for text in refused if text]
    if failed:
        raise CommandError(f"The offsets of share group '{name}' were not all reset. {'; '.join(failed)}")


def _refusal(topic: str, one: Any) -> str:
    if one.error_code == ErrorCode.NONE:
        return ""
    return f"{topic}-{one.partition_index}: {described(one.error_code, one.error_message)}"
