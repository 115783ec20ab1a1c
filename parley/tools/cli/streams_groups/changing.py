"""Delete streams groups, their offsets and their internal topics, and set the offsets at which they continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.topics import DeleteTopicsRequest
from parley.protocol.schema import ZERO_UUID
from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.cluster_client import described
from parley.tools.cli.groups import deleting
from parley.tools.cli.groups.describing import Committed, committed_offsets
from parley.tools.cli.groups.partition_selection import PartitionSelection
from parley.tools.cli.groups.reset import Plan, Result, commit, new_offsets, within_log
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.output import Format, print_data
from parley.tools.cli.streams_groups.describing import describe_one, is_internal, list_streams_groups


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """The internal topics that a reset or a deletion also deletes: the named ones, or all."""

    names: tuple[str, ...] = ()
    all: bool = False


# --- Deletion ---


async def delete_groups(
    client: Client, names: Sequence[str] | None, internal: InternalTopics, *, timeout_ms: int
) -> dict[str, str]:
    """Delete these streams groups, or all of them if ``names`` is None. With ``internal.all``, also delete their
    internal topics. Returns the error for each group, which is empty if everything was deleted."""
    known = dict(await list_streams_groups(client))
    outcomes = {}
    for name in dict.fromkeys(known if names is None else names):
        if name not in known:
            outcomes[name] = f"Group '{name}' does not exist or is not a streams group."
        elif known[name] != "Empty":
            outcomes[name] = f"Streams group '{name}' is not EMPTY."
        else:
            outcomes[name] = await _delete_one(client, name, internal, timeout_ms)
    return outcomes


async def _delete_one(client: Client, name: str, internal: InternalTopics, timeout_ms: int) -> str:
    topics = (await describe_one(client, name, timeout_ms=timeout_ms)).internal_topics() if internal.all else []
    code = (await deleting.delete_groups(client, [name], timeout_ms=timeout_ms))[name]
    if code:
        return described(code)
    failed = await _delete_topics(client, topics, timeout_ms)
    return f"The group was deleted, but not all of its internal topics: {failed}" if failed else ""


async def _delete_topics(client: Client, names: Sequence[str], timeout_ms: int) -> str:
    """Delete topics. Returns what went wrong, or an empty string. A topic that does not exist is not an error."""
    if not names:
        return ""
    make = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(topics=[make(name=name, topic_id=ZERO_UUID) for name in names], timeout_ms=timeout_ms)
    answer = await client.send(request)
    failed = [
        f"{each.name}: {described(each.error_code, each.error_message)}"
        for each in answer.responses
        if each.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    return "; ".join(failed)


def show_deleted(outcomes: Mapping[str, str], *, output_format: Format | None) -> None:
    """Print which groups were deleted. Raises ``CommandError`` if any group was not."""
    if output_format:
        print_data({name: error or None for name, error in outcomes.items()}, output_format)
    gone = ", ".join(f"'{name}'" for name, error in outcomes.items() if not error)
    left = [f"* Group '{name}' could not be deleted due to: {error}" for name, error in outcomes.items() if error]
    if left:
        also = [f"These streams groups were deleted successfully: {gone}"] if gone else []
        raise CommandError("\n".join(["Deletion of some streams groups failed:", *left, *also]))
    if not output_format:
        print(f"Deletion of requested streams groups ({gone}) was successful.")


async def delete_offsets(
    client: Client, group: str, selection: PartitionSelection, *, timeout_ms: int
) -> dict[TopicPartition, int]:
    """Delete offsets of a group for its input topics (an empty selection: all). Returns the error code of each
    partition (0 if its offset was deleted). Raises ``CommandError`` if the whole request fails."""
    if not selection.topics:
        committed = await _inputs(client, group, timeout_ms)
        topics = {topic: frozenset(index for name, index in committed if name == topic) for topic, _ in committed}
        selection = PartitionSelection(topics)
        if not topics:
            return {}
    return await deleting.delete_offsets(client, group, selection, timeout_ms=timeout_ms)


async def _inputs(client: Client, group: str, timeout_ms: int) -> dict[TopicPartition, Committed]:
    """Return the group's committed offsets for its source topics, which the application reads but did not create."""
    sources = (await describe_one(client, group, timeout_ms=timeout_ms)).source_topics()
    committed = await committed_offsets(client, group, timeout_ms=timeout_ms)
    return {where: each for where, each in committed.items() if where[0] in sources}


# --- Reset ---


async def reset(client: Client, plan: Plan, internal: InternalTopics) -> list[Result]:
    """Find the new offsets of each group, and commit them and delete internal topics if the plan says so. A result
    contains an error if its group cannot be reset, or if internal topics were not deleted.

    Raises ``CommandError`` if an offset cannot be found or committed. Groups before it are then already reset.
    """
    names = plan.groups
    if names is None:
        names = tuple(name for name, _ in await list_streams_groups(client))
    return [await _reset_one(client, name, plan, internal) for name in names]


async def _reset_one(client: Client, name: str, plan: Plan, internal: InternalTopics) -> Result:
    group = await describe_one(client, name, timeout_ms=plan.timeout_ms)
    if group.error:
        return Result(name, {}, group.error)
    if group.state not in ("Empty", "Dead"):
        return Result(
            name,
            {},
            f"Assignments can only be reset if the group '{name}' is inactive, but the current state is {group.state}.",
        )
    committed = await committed_offsets(client, name, timeout_ms=plan.timeout_ms)
    if plan.target.file is not None:
        wanted = plan.target.file.get(name) or plan.target.file.get(None) or {}
        offsets = await within_log(client, wanted)
    else:
        partitions = await _partitions(client, plan.selection, committed, group.source_topics())
        if partitions is None:
            return Result(name, {}, f"One or more topics are not part of the group '{name}'.")
        offsets = await new_offsets(client, plan.target, partitions, committed)
    if not plan.execute:
        return Result(name, offsets)
    if offsets:
        await commit(client, name, offsets, timeout_ms=plan.timeout_ms)
    refused = [topic for topic in internal.names if not is_internal(topic, name)]
    topics = group.internal_topics() if internal.all else [each for each in internal.names if each not in refused]
    failed = await _delete_topics(client, topics, plan.timeout_ms)
    if refused:
        not_internal = f"These are not internal topics of the group: {', '.join(refused)}"
        failed = f"{not_internal}; {failed}" if failed else not_internal
    return Result(name, offsets, f"Deleting internal topics of '{name}' failed. {failed}" if failed else "")


async def _partitions(
    client: Client, selection: PartitionSelection, committed: Mapping[TopicPartition, Committed], sources: set[str]
) -> list[TopicPartition] | None:
    """Return the partitions to reset, or None if the group has no committed offset for one of them."""
    if not selection.topics:
        return sorted(where for where in committed if where[0] in sources)
    metadata = await client.metadata(selection.topics)
    known = {topic.name or "": [one.partition_index for one in topic.partitions] for topic in metadata.topics}
    partitions = selection.partitions(known)
    return partitions if all(where in committed for where in partitions) else None
