"""Two ends of a connection that call each other: answers, errors, order, and what happens when one is gone."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.tasks import sealed as seals
from parley.pipeline.connect.tasks.peer import SILENCE_S, Peer, PeerLost
from parley.pipeline.connect.tasks.sealed import Sealed, Stranger, sealed

WAIT_S = 30.0
KEY = b"k" * 32
BOTH, NEITHER = (True, True), (False, False)


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


def greeted(
    worker: Connection, host: Connection, keys: tuple[bytes, bytes] = (KEY, KEY), *, encrypted: tuple[bool, bool] = BOTH
) -> tuple[Sealed, Sealed]:
    """Both ends, once they have greeted each other."""
    with ThreadPoolExecutor(1) as other:
        there = other.submit(sealed, host, keys[1], is_worker=False, can_encrypt=encrypted[1])
        return sealed(worker, keys[0], is_worker=True, can_encrypt=encrypted[0]), there.result()


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    pair = (End(), End())
    for end, connection in zip(pair, greeted(*Pipe()), strict=True):
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
    assert not here.peer.is_leased
    with pytest.raises(PeerLost):
        here.peer.tell("note", 1)


# What cannot be sent.


class Unreadable:
    """It can be sent, but not be read."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return _fail, ()


def _fail() -> None:
    raise ValueError("cannot be read")


def test_what_cannot_be_pickled_or_read_fails_its_call_and_no_other(ends: tuple[End, End]) -> None:
    here, there = ends
    there.answer = lambda: threading.Lock()  # type: ignore[attr-defined]
    there.unreadable = Unreadable  # type: ignore[attr-defined]
    with pytest.raises(ConnectError, match="pickle"):
        here.peer.call("double", threading.Lock())
    with pytest.raises(ConnectError, match="pickle"):
        here.peer.tell("note", threading.Lock())
    with pytest.raises(ConnectError, match="pickle"):
        here.peer.call("answer")
    with pytest.raises(ConnectError, match="cannot be read"):
        here.peer.call("unreadable")
    with pytest.raises(ConnectError, match="cannot be read"):
        here.peer.call("double", Unreadable())
    here.peer.tell("note", Unreadable())
    assert here.peer.call("double", 21) == 42


# Silence.


class Clock:
    """A clock that somebody else sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def leased(end: End) -> bool:
    return end.peer.is_leased


def test_who_was_stopped_for_a_while_knows_before_it_reads_anything() -> None:
    clock, end, other = Clock(), End(), End()
    host, worker = greeted(*Pipe())
    end.peer = Peer(host, end, end.lost.set, now_s=clock)
    other.peer = Peer(worker, other, other.lost.set)
    assert leased(end)
    clock.now_s += SILENCE_S
    other.peer.start()  # beats that were sent meanwhile wait to be read, and those of long ago are sent back
    other.peer.tell("note", 1)
    assert not leased(end)
    end.peer.start()
    assert end.lost.wait(WAIT_S)
    assert end.told == []
    other.peer.close()


@pytest.mark.slow
def test_a_beat_counts_from_when_it_was_sent() -> None:
    clock, end = Clock(), End()
    near, far = greeted(*Pipe())
    end.peer = Peer(near, end, end.lost.set, now_s=clock)
    end.peer.start()
    kind, sent_s, _ = far.recv()
    assert (kind, sent_s) == ("beat", 1000.0)
    clock.now_s = 1000 + SILENCE_S - 0.1
    far.send(("heard", sent_s, b""))  # a late answer is one of long ago
    far.send(("call", (0, "double"), pickle.dumps((1,))))
    while (answer := far.recv())[0] != "done":
        sent_s = answer[1]
    assert leased(end)
    clock.now_s = 1000 + SILENCE_S
    assert not leased(end)
    assert end.lost.wait(WAIT_S)


def test_nobody_waits_for_a_connection_that_takes_nothing() -> None:
    end = End()
    near, far = greeted(*Pipe())
    end.peer = Peer(near, end, end.lost.set)
    end.peer.start()
    for _ in range(100):
        end.peer.tell("note", b"x" * 100_000)
    end.peer.close()
    assert end.lost.is_set()
    far.close()


# What others could put in.


class Harm:
    """Read, it would do something."""

    was_read = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return _harm, ()


def _harm() -> None:
    Harm.was_read = True


def test_nothing_is_read_of_who_does_not_know_the_key() -> None:
    worker, host = Pipe()
    with pytest.raises((Stranger, EOFError, OSError)):
        greeted(worker, host, (KEY, b"another"))
    assert worker.closed
    worker, stranger = Pipe()
    for said in (b"\0" + b"n" * 32, pickle.dumps(Harm())[:40]):
        stranger.send_bytes(said)
    with pytest.raises(Stranger):
        sealed(worker, KEY, is_worker=True)
    worker, stranger = Pipe()
    stranger.send_bytes(b"n" * 34)
    with pytest.raises(OSError, match="bad message length"):
        sealed(worker, KEY, is_worker=True)
    assert not Harm.was_read


def test_who_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "GREETING_S", 1)
    worker, stranger = Pipe()
    with pytest.raises(BlockingIOError):
        sealed(worker, KEY, is_worker=True)
    assert worker.closed
    stranger.close()


def hand_on(one: Connection, other: Connection) -> None:
    for _ in range(2):
        other.send_bytes(one.recv_bytes())


def relayed(encrypted: tuple[bool, bool]) -> tuple[Sealed, Sealed, Connection, Connection]:
    """Worker and host, and a third party's connections to them. The third party has relayed their greetings."""
    worker_end, near = Pipe()
    far, host_end = Pipe()
    with ThreadPoolExecutor(2) as relays:
        for one, other in ((near, far), (far, near)):
            relays.submit(hand_on, one, other)
        return *greeted(worker_end, host_end, encrypted=encrypted), near, far


@pytest.mark.parametrize("encrypted", [BOTH, NEITHER], ids=["encrypted", "authenticated"])
@pytest.mark.parametrize("change", ["made up", "changed", "repeated", "sent back", "left out"])
def test_messages_that_were_tampered_with_end_the_connection(change: str, encrypted: tuple[bool, bool]) -> None:
    worker, host, near, far = relayed(encrypted)
    for number in (1, 2):
        worker.send(("tell", "note", number))
    first, second = near.recv_bytes(), near.recv_bytes()
    match change:
        case "made up":
            far.send_bytes(b"s" * 32 + pickle.dumps(Harm()))
        case "changed":
            far.send_bytes(first[:-3] + b"X" + first[-2:])
        case "repeated":
            far.send_bytes(first)
            assert host.recv() == ("tell", "note", 1)
            far.send_bytes(first)
        case "sent back":
            near.send_bytes(first)
            host = worker
        case "left out":
            far.send_bytes(second)
    with pytest.raises(Stranger):
        host.recv()
    assert not Harm.was_read


@pytest.mark.parametrize("encrypted", [BOTH, (True, False), (False, True), NEITHER])
def test_messages_are_encrypted_if_both_ends_can(encrypted: tuple[bool, bool]) -> None:
    worker, host, near, far = relayed(encrypted)
    assert worker.is_encrypted == host.is_encrypted == all(encrypted)
    worker.send({"password": "marked"})
    message = near.recv_bytes()
    assert (b"marked" in message) is not all(encrypted)
    far.send_bytes(message)
    assert host.recv() == {"password": "marked"}


def test_a_third_party_cannot_prevent_the_encryption() -> None:
    worker_end, near = Pipe()
    far, host_end = Pipe()

    def downgrade(one: Connection, other: Connection) -> None:
        other.send_bytes(b"\0" + one.recv_bytes()[1:])
        hand_on(one, other)

    with ThreadPoolExecutor(4) as threads:
        for one, other in ((near, far), (far, near)):
            threads.submit(downgrade, one, other)
        ends = [
            threads.submit(sealed, end, KEY, is_worker=end is worker_end, can_encrypt=True)
            for end in (worker_end, host_end)
        ]
        errors = [end.exception(WAIT_S) for end in ends]
        near.close()
        far.close()
    assert any(isinstance(error, Stranger) for error in errors)
    assert all(errors)
