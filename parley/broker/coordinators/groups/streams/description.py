"""A streams group as StreamsGroupDescribe returns it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parley.broker.coordinators.groups.streams.configuration import Configured
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup, StreamsMember
from parley.broker.coordinators.groups.streams.tasks import CurrentTasks, MemberTasks
from parley.broker.coordinators.groups.streams.topology import InternalTopic, Subtopology, Topology
from parley.protocol.messages.streams_groups import StreamsGroupDescribeResponse as Response


def described(group: StreamsGroup, operations: int) -> Response.DescribedGroup:
    """Return the description of a group. Its topology contains numbers of partitions only if all topics exist.

    ``operations`` are the operations that the client may perform on the group, as bits.
    """
    return Response.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state().value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=None if group.topology is None else _topology(group.topology, group.configured),
        members=[_member(member, group.target_of(member.member_id)) for member in group.members.values()],
        authorized_operations=operations,
    )


def _topology(topology: Topology, configured: Configured | None) -> Response.Topology:
    found = configured.subtopologies if configured is not None and configured.is_ready else None
    subtopologies = []
    for each in topology.subtopologies:
        known = None if found is None else found.get(each.id)
        changelogs = each.changelogs if known is None else known.changelogs
        repartitions = each.repartitions if known is None else known.repartitions
        subtopologies.append(_subtopology(each, changelogs, repartitions))
    return Response.Topology(epoch=topology.epoch, subtopologies=subtopologies)


def _subtopology(
    found: Subtopology, changelogs: Sequence[InternalTopic], repartitions: Sequence[InternalTopic]
) -> Response.Subtopology:
    return Response.Subtopology(
        subtopology_id=found.id,
        source_topics=sorted(found.sources),
        repartition_sink_topics=sorted(found.sinks),
        state_changelog_topics=_infos(changelogs),
        repartition_source_topics=_infos(repartitions),
    )


def _infos(topics: Sequence[InternalTopic]) -> list[Response.TopicInfo]:
    return [
        Response.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[Response.KeyValue(key=key, value=value) for key, value in topic.configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(member: StreamsMember, target: MemberTasks) -> Response.Member:
    details, progress = member.details, member.progress
    endpoint = details.endpoint
    return Response.Member(
        member_id=member.member_id,
        member_epoch=progress.epoch,
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        client_id=details.client_id,
        client_host=details.client_host,
        topology_epoch=details.topology_epoch,
        process_id=details.process_id,
        user_endpoint=None if endpoint is None else Response.Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[Response.KeyValue(key=key, value=value) for key, value in details.tags],
        task_offsets=[],
        task_end_offsets=[],
        assignment=_assignment(progress.assigned),
        target_assignment=_assignment(target),
        is_classic=False,
    )


def _assignment(tasks: CurrentTasks | MemberTasks) -> Response.Assignment:
    return Response.Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(tasks: Mapping[str, Iterable[int]]) -> list[Response.TaskIds]:
    return [Response.TaskIds(subtopology_id=each, partitions=sorted(tasks[each])) for each in sorted(tasks)]
