"""Looks up a member by its id, in a group of any type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from parley.protocol.errors import ErrorCode, KafkaError

M_co = TypeVar("M_co", covariant=True)


class HasMembers(Protocol[M_co]):
    """A group of any type: its id, and its members by member id."""

    @property
    def group_id(self) -> str: ...

    @property
    def members(self) -> Mapping[str, M_co]: ...


def require_member(group: HasMembers[M_co], member_id: str) -> M_co:
    """Return the member with this id. Raises UNKNOWN_MEMBER_ID if there is none."""
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return member
