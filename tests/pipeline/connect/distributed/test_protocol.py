"""The workers' group protocol, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.connect.distributed.protocol import (
    Assignment,
    MemberState,
    Work,
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_member,
)
from parley.pipeline.connect.herder_results import TaskId
from parley.protocol.errors import MalformedMessage

NAMES = st.text(max_size=20)
TASKS = st.builds(TaskId, NAMES, st.integers(0, 1 << 30))
WORK = st.builds(Work, st.frozensets(NAMES, max_size=4), st.frozensets(TASKS, max_size=4))
OFFSETS = st.integers(-1, 1 << 60)
ASSIGNMENTS = st.builds(Assignment, NAMES, NAMES, OFFSETS, WORK, WORK, st.integers(0, 1 << 30), st.integers(0, 1))


def test_an_assignment_is_kafkas() -> None:
    work = Work(frozenset({"c"}), frozenset({TaskId("c", 0), TaskId("c", 2)}))
    leader = b"\x00\x01m" + b"\x00\x03url" + bytes(7) + b"\x05"
    connector = b"\x00\x00\x00\x01" + b"\x00\x01c" + b"\x00\x00\x00\x03" + b"\xff\xff\xff\xff" + bytes(7) + b"\x02"
    eager = b"\x00\x00" + b"\x00\x00" + leader + connector
    assert encode_assignment(Assignment("m", "url", 5, work), 0) == eager
    incremental = b"\x00\x01" + b"\x00\x00" + leader + connector + bytes(4) + b"\x00\x00\x01\x00"
    assert encode_assignment(Assignment("m", "url", 5, work, delay_ms=256), 1) == incremental
    assert decode_assignment(eager) == Assignment("m", "url", 5, work)
    null_work = b"\x00\x01" + b"\x00\x00" + leader + b"\xff\xff\xff\xff" * 2 + bytes(4)
    assert decode_assignment(null_work) == Assignment("m", "url", 5)
    assert decode_assignment(b"") == Assignment()


def test_a_members_state_is_kafkas() -> None:
    state = MemberState("url", 7, Work(frozenset({"c"})))
    eager = b"\x00\x00" + b"\x00\x03url" + bytes(7) + b"\x07"
    assert encode_member(state, 0) == eager
    allocation = encode_assignment(Assignment(config_offset=7, assigned=state.has), 2)
    sessioned = b"\x00\x02" + eager[2:] + len(allocation).to_bytes(4, "big") + allocation
    assert encode_member(state, 2) == sessioned
    assert decode_member(eager + b"what a later version adds") == MemberState("url", 7)
    no_allocation = b"\x00\x01" + eager[2:] + b"\xff\xff\xff\xff"
    assert decode_member(no_allocation) == MemberState("url", 7)


@given(assignment=ASSIGNMENTS, version=st.integers(1, 2))
def test_assignments_come_back(assignment: Assignment, version: int) -> None:
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


@given(state=st.builds(MemberState, NAMES, OFFSETS, WORK), version=st.integers(1, 2))
def test_members_come_back(state: MemberState, version: int) -> None:
    assert decode_member(encode_member(state, version)) == state


@given(assignment=ASSIGNMENTS, data=st.data())
def test_a_truncated_assignment_is_refused(assignment: Assignment, data: st.DataObject) -> None:
    whole = encode_assignment(assignment, 1)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(MalformedMessage):
        decode_assignment(cut)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_assignment, decode_member):
        try:
            decode(data)
        except MalformedMessage:
            continue
