"""Regular expressions that members subscribe to, in the syntax of RE2.

A thread matches them against all topics, in short turns, so that other groups get their turns in between. All
expressions of a group are matched together, so that only one rebalance follows. They are matched again when members
subscribe to new ones, when topics are created or deleted, and periodically, but at most once per ``AGAIN_AFTER_MS``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import Final

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup, ResolvedRegex
from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.topics import metadata_hash
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.re2_patterns import compiled
from parley.broker.network.request_context import RequestContext
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

AGAIN_AFTER_MS: Final = 10_000
"""The minimum time between two attempts to match a group's expressions, as in Kafka."""

FIELD: Final = "SubscribedTopicRegex"
"""The field of a heartbeat that contains the expression."""

REGEXES_MAX: Final = 100
"""The maximum number of expressions of a group, because the matching topics of each are kept."""

TURN_MAX: Final = 1 << 20
"""The maximum work in one turn of the groups' thread: characters of an expression times characters of topic names.

The slowest known expression of ``REGEX_MAX`` characters, with 185 named groups, takes 8 ms of CPU time for one name of
245 characters, and 80 s for 10,000 such names.
"""


@dataclass(frozen=True, slots=True)
class RegexUpdate:
    """The effect of a heartbeat on the regular expressions of a group."""

    has_changed: bool = False
    """True if the member now subscribes to another expression."""
    is_resolved: bool = False
    """True if the group can rebalance immediately, because the topics of the new expression are already known, or the
    member no longer subscribes to an expression."""


_NO_UPDATE: Final = RegexUpdate()


@dataclass(frozen=True, slots=True)
class Matches:
    """The topics that match each expression (none if it is invalid), and the reason for each invalid expression."""

    topics: dict[str, frozenset[str]]
    invalid: dict[str, str]


def matching(regexes: Iterable[str], names: Iterable[str]) -> Generator[None, None, Matches]:
    """Match each expression against whole topic names, and return the topics that match. Yields after each turn.

    A stored expression can be invalid if another version of the broker, with other limits, stored it. Raises
    UNKNOWN_SERVER_ERROR if RE2 is not installed.
    """
    every = list(names)
    found = Matches({}, {})
    work = 0
    for regex in regexes:
        try:
            matches = compiled(regex, FIELD).fullmatch
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise
            found.topics[regex], found.invalid[regex] = frozenset(), str(error)
            continue
        topics = []
        for name in every:
            if work >= TURN_MAX:
                work = 0
                yield
            work += len(regex) * len(name)
            if matches(name) is not None:
                topics.append(name)
        found.topics[regex] = frozenset(topics)
    return found


def next_turn(turns: Generator[None, None, Matches]) -> Matches | None:
    """Run the next turn of ``matching``. Returns its result if this was the last turn, otherwise None."""
    try:
        next(turns)
    except StopIteration as end:
        found: Matches = end.value
        return found
    return None


def update_regex(context: RequestContext, before: str | None, now: str | None, change: GroupChange) -> RegexUpdate:
    """Record the expression that a member subscribes to, and match all expressions of the group again if that is due.

    ``before`` and ``now`` are the member's expressions before and after the heartbeat. Raises
    INVALID_REGULAR_EXPRESSION if the new expression is invalid, or if the group has too many expressions. Raises
    UNKNOWN_SERVER_ERROR if RE2 is not installed.
    """
    if before == now and not change.group.regex_subscribers:
        return _NO_UPDATE
    update = _NO_UPDATE
    is_new = False
    if before != now:
        if before and not change.subscribers_of(before):
            change.remove_regex(before)
        if now:
            is_new = change.subscribers_of(now) == 1
            if is_new:
                _check_count(change)
                compiled(now, FIELD)
            update = RegexUpdate(True, now in change.regexes)
        else:
            update = RegexUpdate(True, bool(before))
    _match_again_if_due(context, is_new, change)
    return update


def _subscribed(change: GroupChange) -> set[str]:
    subscribed = {regex for regex in change.group.regex_subscribers if change.subscribers_of(regex)}
    return subscribed | {member.details.regex for member in change.changed_members() if member.details.regex}


def _check_count(change: GroupChange) -> None:
    if len(_subscribed(change)) > REGEXES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The members of the group already subscribe to {REGEXES_MAX} regular expressions, which is the maximum. "
            "Use one of them.",
        )


def _match_again_if_due(context: RequestContext, is_new: bool, change: GroupChange) -> None:
    group = change.group
    subscribed = _subscribed(change)
    if not subscribed or group.is_resolving:
        return
    known = group.regexes.values()
    last_ms = max(group.match_tried_ms, min((resolved.timestamp_ms for resolved in known), default=0))
    if last_ms > change.now_ms:  # the clock of the previous coordinator is ahead of this broker's
        last_ms = 0
    if change.now_ms <= last_ms + AGAIN_AFTER_MS:
        return
    version = min((resolved.version for resolved in known), default=0)
    is_due = (
        is_new
        or not subscribed <= change.regexes.keys()
        or version < change.shard.topics_version()
        or change.now_ms > last_ms + change.shard.config().group_consumer_regex_refresh_interval_ms
    )
    if is_due:
        change.afterwards(partial(_begin_match, context, change.shard, change.group_id, change.now_ms))


def _begin_match(context: RequestContext, shard: GroupShard, group_id: str, now_ms: int) -> None:
    group = shard.consumer_group(group_id)
    if group is not None:
        group.match_tried_ms = now_ms
        shard.match_in_thread(group_id, context)


def _end_match(shard: GroupShard, group_id: str) -> None:
    group = shard.consumer_group(group_id)
    if group is not None:
        group.match_tried_ms = 0


def install_matches(
    group_id: str, found: Mapping[str, frozenset[str]], version: int, shard: GroupShard, now_ms: int
) -> Decision[None]:
    """Store the topics that match the expressions of a group, and start another epoch if they have changed.

    An expression that was matched for the first time counts as a change even if it matches no topic: the member may
    have subscribed to other topics before, which other members must get now. Skips expressions to which no member
    subscribes anymore.
    """
    group = shard.consumer_group(group_id)
    if group is None:
        return Decision(None)
    change = GroupChange(shard, group, now_ms)
    has_changed = False
    for regex, topics in found.items():
        if regex not in group.regex_subscribers:
            continue
        known = group.regexes.get(regex)
        has_changed = has_changed or known is None or known.topics != topics
        change.put_regex(regex, ResolvedRegex(topics, version, now_ms))
    now_hash = metadata_hash(shard.image(), change.subscribed_topics())
    if has_changed or now_hash != group.metadata_hash:
        change.bump(now_hash)
    change.afterwards(partial(_end_match, shard, group_id))
    return change.decision(None)


def subscribed_regexes(group: ConsumerGroup) -> list[str]:
    """Return the expressions that members of a group subscribe to."""
    return sorted(group.regex_subscribers)
