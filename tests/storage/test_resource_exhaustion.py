"""Resource exhaustion of the process: which errors count, and what the reserves do."""

from __future__ import annotations

import errno
import os

import pytest

from parley.storage import resource_exhaustion
from parley.storage.resource_exhaustion import (
    DESCRIPTORS,
    DESCRIPTORS_LEFT,
    MEMORY,
    DescriptorReserve,
    MemoryReserve,
    note_lost_work,
    reserve_for,
    with_room,
)
from tests.support.descriptors import descriptors_left
from tests.support.own_process import in_own_process


@pytest.mark.parametrize(
    ("error", "reserve"),
    [
        (OSError(errno.EMFILE, "x"), DESCRIPTORS),
        (OSError(errno.ENFILE, "x"), DESCRIPTORS),
        (OSError(errno.ENOMEM, "x"), MEMORY),
        (OSError(errno.ENOBUFS, "x"), MEMORY),
        (MemoryError(), MEMORY),
        (RuntimeError("can't start new thread"), MEMORY),
        (RuntimeError("another"), None),
        (OSError(errno.EIO, "x"), None),
        (OSError(errno.ENOSPC, "x"), None),
        (ValueError("x"), None),
    ],
)
def test_a_shortage_is_distinguished_from_a_fault(
    error: BaseException, reserve: resource_exhaustion.Reserve | None
) -> None:
    assert reserve_for(error) is reserve


def test_the_descriptors_in_reserve_are_there_when_all_others_are_used() -> None:
    in_own_process(use_the_reserve)


def use_the_reserve() -> None:
    reserve = DescriptorReserve()
    reserve.hold(8)
    assert reserve.is_released
    assert reserve.refill()
    assert not reserve.is_released
    with descriptors_left(0):
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        reserve.make_room()
        assert reserve.is_released
        used = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        assert not reserve.refill(), "they are in use"
        for fd in used:
            os.close(fd)
        assert not reserve.refill(), "that would leave none for others"
        used = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        for fd in used:
            os.close(fd)
    assert reserve.refill()
    with descriptors_left(DESCRIPTORS_LEFT - 1):
        assert not reserve.refill(), "it is whole, and too few are left beside it"
    assert reserve.shortages == 1
    reserve.hold(0)
    assert not reserve.is_released, "nothing is held, as wanted"


def test_the_memory_in_reserve_is_given_up_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = MemoryReserve()
    reserve.hold(1 << 20)
    assert reserve.refill()
    assert not reserve.is_released
    reserve.make_room()
    assert reserve.is_released

    def none_left(size: int) -> object:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(resource_exhaustion, "_mapped", none_left)
        assert not reserve.refill()
        assert reserve.is_released
    assert reserve.refill()
    reserve.release()


def test_work_that_meets_a_shortage_is_repeated_once_there_is_room() -> None:
    closed: list[str] = []

    def close() -> None:
        closed.append("closed")

    def work(text: str) -> str:
        if not closed:
            raise OSError(errno.EMFILE, "Too many open files")
        return text

    DESCRIPTORS.call_when_short(close)
    try:
        assert with_room(work, "done") == "done"
        assert closed == ["closed"]
    finally:
        DESCRIPTORS.forget(close)
    closed.clear()
    with pytest.raises(OSError, match="Too many open files"):
        with_room(work, "not repeated for ever")
    with pytest.raises(FileNotFoundError):
        with_room(os.open, "/missing", os.O_RDONLY)
    assert not closed


def test_only_memory_that_runs_out_in_the_middle_makes_the_state_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    for reserve in (DESCRIPTORS, MEMORY):
        monkeypatch.setattr(reserve, "lost_work", None)
    assert not note_lost_work(ValueError("x"))
    assert note_lost_work(OSError(errno.EMFILE, "x"))
    assert note_lost_work(OSError(errno.ENOMEM, "x"))
    assert DESCRIPTORS.lost_work is None
    assert MEMORY.lost_work is None
    first = MemoryError("first")
    assert note_lost_work(first)
    assert note_lost_work(MemoryError("second"))
    assert MEMORY.lost_work is first
