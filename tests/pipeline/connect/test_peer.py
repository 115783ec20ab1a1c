"""Two ends of a connection that call each other: answers, errors, order, and what happens when one is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from pipeline.connect.errors import ConnectError
from pipeline.connect.tasks.peer import Peer, PeerLost

WAIT_S = 30.0


class End:
    """What the other end may call."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.lost = threading.Event()
        self.go_on = threading.Event()
        self.peer: Peer

    def note(self, number: int) -> None:
        if number < 0:
            raise ValueError("less than nothing")
        self.told.append(number)

    def double(self, number: int) -> int:
        if number < 0:
            raise ValueError("less than nothing")
        return 2 * number

    def wait(self) -> str:
        self.go_on.wait(WAIT_S)
        return "done"

    def ask_back(self, number: int) -> int:
        answer: int = self.peer.call("double", number)
        return answer + 1


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    pair = (End(), End())
    for end, connection in zip(pair, Pipe(), strict=True):
        end.peer = Peer(connection, end, end.lost.set)
    for end in pair:
        end.peer.start()
    yield pair
    for end in pair:
        end.go_on.set()
        end.peer.close()


def test_calls_are_answered_and_errors_come_back(ends: tuple[End, End]) -> None:
    here, there = ends
    assert here.peer.call("double", 4) == 8
    assert there.peer.call("ask_back", 4) == 9
    with pytest.raises(ConnectError, match="less than nothing"):
        here.peer.call("double", -1)


def test_what_is_told_is_done_in_order_whatever_fails(ends: tuple[End, End]) -> None:
    here, there = ends
    for number in (1, 2, -1, 3):
        here.peer.tell("note", number)
    assert here.peer.call("double", 1) == 2
    assert there.told == [1, 2, 3]


def test_a_call_that_takes_long_holds_up_no_other(ends: tuple[End, End]) -> None:
    here, there = ends
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(here.peer.call("wait")))
    waiting.start()
    assert here.peer.call("double", 1) == 2
    there.go_on.set()
    waiting.join(WAIT_S)
    assert answers == ["done"]


def test_an_end_that_is_gone_ends_all_calls(ends: tuple[End, End]) -> None:
    here, there = ends
    failures: list[Exception] = []

    def call() -> None:
        try:
            here.peer.call("wait")
        except PeerLost as error:
            failures.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    there.peer.close()
    waiting.join(WAIT_S)
    assert here.lost.wait(WAIT_S)
    assert there.lost.is_set()
    assert len(failures) == 1
    assert not here.peer.was_silent
    with pytest.raises(PeerLost):
        here.peer.tell("note", 1)
