"""The kinds of timers that a group can set, as they appear in the keys of timers."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class TimerKind(StrEnum):
    """The first element of a timer's key. The group id follows, and then, for a timer of one member, the member id.
    ``SHARE_TOPICS`` alone is the key of a timer of the whole shard."""

    SESSION = "session"
    PENDING = "pending"
    REBALANCE = "rebalance"
    SYNC = "sync"

    ASSIGN = "assign"
    MEMBER_SESSION = "member-session"
    MEMBER_REBALANCE = "member-rebalance"
    MEMBER_JOIN = "member-join"
    MEMBER_SYNC = "member-sync"

    SHARE_SESSION = "share-session"
    SHARE_ASSIGN = "share-assign"
    SHARE_TOPICS = "share-topics"

    STREAMS_SESSION = "streams-session"
    STREAMS_REBALANCE = "streams-rebalance"
    STREAMS_DELAY = "streams-delay"


OF_CONSUMER_MEMBER: Final = (
    TimerKind.MEMBER_SESSION,
    TimerKind.MEMBER_REBALANCE,
    TimerKind.MEMBER_JOIN,
    TimerKind.MEMBER_SYNC,
)
"""The timers that a member of a consumer group may have."""
