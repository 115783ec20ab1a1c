"""The target assignment of a consumer group: the partitions that each member will own when all members have reconciled.

An assignor computes it. For a small group, the heartbeat that needs the assignment calls the assignor. For a large
group, a thread computes the assignment from a copy of the data, and the previous target assignment stays valid until
the new one is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Final

from parley.broker.coordinators.groups.consumer.assignors.assignor import GroupSpec, MemberSpec, PartitionAssignor
from parley.broker.coordinators.groups.consumer.consumer_group import ResolvedRegex
from parley.broker.coordinators.groups.consumer.member import NOTHING, Assignment, Member
from parley.broker.coordinators.groups.consumer.topics import topic_ids, topic_specs
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

LARGE: Final = 2_000
"""The number of members and partitions together from which a thread computes the assignment, because that takes
milliseconds."""


def subscribed_names(member: Member, regexes: Mapping[str, ResolvedRegex]) -> Set[str]:
    """Return the names of the topics that a member subscribes to, by name or by regular expression. A regular
    expression that is not in ``regexes`` adds no topics."""
    details = member.details
    resolved = regexes.get(details.regex) if details.regex else None
    return frozenset(details.topics) if resolved is None else resolved.topics.union(details.topics)


def group_spec(
    members: Iterable[Member],
    targets: Mapping[str, Assignment],
    regexes: Mapping[str, ResolvedRegex],
    image: MetadataImage,
) -> GroupSpec:
    """Return the input for an assignor. ``targets`` are the previous targets. The input shares no mutable data with the
    group."""
    known: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    names: set[str] = set()
    specs = {}
    for member in sorted(members, key=lambda member: member.member_id):
        details = member.details
        key = details.topics, details.regex
        if key not in known:
            subscribed = subscribed_names(member, regexes)
            names |= subscribed
            known[key] = topic_ids(image, subscribed)
        specs[member.member_id] = MemberSpec(
            details.instance_id, details.rack_id, known[key], targets.get(member.member_id, NOTHING)
        )
    return GroupSpec(specs, topic_specs(image, names))


def size_of(members: int, names: Set[str], image: MetadataImage) -> int:
    """Return the number of members plus the number of partitions of the existing topics in ``names``, which determines
    how long the computation of an assignment takes."""
    return members + sum(len(image.topics[name].partitions) for name in names if name in image.topics)


def preferred_assignor(members: Iterable[Member], assignors: Mapping[str, PartitionAssignor]) -> PartitionAssignor:
    """Return the configured assignor that most members prefer. If several are preferred equally, or no member prefers
    any, return the first of them in the order of the configuration."""
    wanted = Counter(member.details.assignor for member in members)
    first = next(iter(assignors.values()))
    known = [name for name in assignors if wanted[name]]
    return assignors[max(known, key=lambda name: wanted[name])] if known else first


def assign(assignor: PartitionAssignor, spec: GroupSpec) -> dict[str, Assignment]:
    """Return the target of every member. Raises UNKNOWN_SERVER_ERROR if the assignor fails or returns an invalid
    assignment."""
    try:
        decided = assignor.assign(spec)
    except Exception as error:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"The assignor {assignor.name} failed: {type(error).__name__}."
        ) from error
    assigned = {topic: bytearray(each.partitions) for topic, each in spec.topics.items()}
    for member_id, target in decided.items():
        member = spec.members.get(member_id)
        for topic, partitions in target.items():
            taken = assigned.get(topic)
            if member is None or taken is None or topic not in member.topics:
                raise _broken(assignor, member_id, topic)
            for partition in partitions:
                if not 0 <= partition < len(taken) or taken[partition]:
                    raise _broken(assignor, member_id, topic)
                taken[partition] = 1
    return {member_id: decided.get(member_id, NOTHING) for member_id in spec.members}


def _broken(assignor: PartitionAssignor, member_id: str, topic: UUID) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"The assignor {assignor.name} returned an invalid assignment of topic {topic} for member {member_id}.",
    )
