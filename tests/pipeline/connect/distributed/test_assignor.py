"""The assignment of connectors and tasks to workers."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.connect.distributed.assignor import Decision, Sharing, share_out
from parley.pipeline.connect.distributed.protocol import NO_WORK, Work
from parley.pipeline.connect.herder_results import TaskId

DELAY_MS = 1000
ROUNDS_MAX = 10


def wanted(connectors: int, tasks: int) -> Work:
    names = [f"c{number}" for number in range(connectors)]
    return Work(frozenset(names), frozenset(TaskId(name, number) for name in names for number in range(tasks)))


def after(has: Mapping[str, Work], decision: Decision) -> dict[str, Work]:
    return {one: (has[one] - decision.revoked[one]) | decision.assigned[one] for one in has}


def settled(sharing: Sharing, has: Mapping[str, Work], work: Work, now_ms: int) -> dict[str, Work]:
    """Return the assignments once they no longer change."""
    for _ in range(ROUNDS_MAX):
        decision = sharing.decide(has, work, now_ms)
        has = after(has, decision)
        now_ms += decision.delay_ms
        if not any(decision.revoked.values()) and not decision.delay_ms:
            return dict(has)
    raise AssertionError("it is never done")


def assert_fair(has: Mapping[str, Work], work: Work) -> None:
    assert Work.union(has.values()) == work
    assert sum(map(len, has.values())) == len(work)  # nothing runs twice
    for count in ([len(one.connectors) for one in has.values()], [len(one.tasks) for one in has.values()]):
        assert max(count) - min(count) <= 1


@given(members=st.integers(1, 5), connectors=st.integers(0, 5), tasks=st.integers(0, 5))
def test_everything_is_reassigned(members: int, connectors: int, tasks: int) -> None:
    work = wanted(connectors, tasks)
    shares = share_out([f"m{number}" for number in range(members)], work)
    assert Work.union(shares.values()) == work
    sizes = [len(one) for one in shares.values()]
    assert sum(sizes) == len(work)
    assert max(sizes) - min(sizes) <= 1


@given(
    members=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    connectors=st.integers(0, 5),
    tasks=st.integers(0, 5),
)
def test_members_come_and_go(members: list[int], connectors: int, tasks: int) -> None:
    sharing, work, now_ms = Sharing(DELAY_MS), wanted(connectors, tasks), 0
    has: dict[str, Work] = {}
    for count in members:
        has = {name: has.get(name, NO_WORK) for name in (f"m{number}" for number in range(count))}
        now_ms += 10 * DELAY_MS
        has = settled(sharing, has, work, now_ms)
        assert_fair(has, work)


def test_work_that_stays_with_its_worker_is_not_stopped() -> None:
    sharing = Sharing(DELAY_MS)
    has = settled(sharing, {"a": NO_WORK, "b": NO_WORK}, wanted(2, 2), 0)
    decision = sharing.decide(has, wanted(3, 2), 1)
    assert not any(decision.revoked.values())
    assert Work.union(decision.assigned.values()) == wanted(3, 2) - wanted(2, 2)


def test_deleted_work_is_revoked() -> None:
    sharing = Sharing(DELAY_MS)
    has = settled(sharing, {"a": NO_WORK, "b": NO_WORK}, wanted(2, 2), 0)
    decision = sharing.decide(has, wanted(1, 2), 1)
    assert Work.union(decision.revoked.values()) == wanted(2, 2) - wanted(1, 2)
    assert not any(decision.assigned.values())


def test_work_of_a_member_that_is_gone_is_held_back_for_it() -> None:
    sharing = Sharing(DELAY_MS)
    has = settled(sharing, {"a": NO_WORK, "b": NO_WORK}, wanted(2, 2), 0)
    lost = has["b"]
    gone = sharing.decide({"a": has["a"]}, wanted(2, 2), 100)
    assert (gone.assigned, gone.revoked, gone.delay_ms) == ({"a": NO_WORK}, {"a": NO_WORK}, DELAY_MS)
    back = {"a": has["a"], "b2": NO_WORK}
    waiting = sharing.decide(back, wanted(2, 2), 400)
    assert (waiting.assigned, waiting.delay_ms) == ({"a": NO_WORK, "b2": NO_WORK}, DELAY_MS - 300)
    due = sharing.decide(back, wanted(2, 2), 100 + DELAY_MS)
    assert (due.assigned, due.delay_ms) == ({"a": NO_WORK, "b2": lost}, 0)


def test_work_of_a_member_that_stays_away_goes_to_the_others() -> None:
    sharing = Sharing(DELAY_MS)
    has = settled(sharing, {"a": NO_WORK, "b": NO_WORK}, wanted(2, 2), 0)
    has = settled(sharing, {"a": has["a"]}, wanted(2, 2), 100)
    assert has == {"a": wanted(2, 2)}


def test_new_work_is_not_held_back() -> None:
    sharing = Sharing(DELAY_MS)
    has = settled(sharing, {"a": NO_WORK, "b": NO_WORK}, wanted(1, 2), 0)
    decision = sharing.decide({"a": has["a"]}, wanted(2, 2), 1)
    assert decision.assigned["a"] == wanted(2, 2) - wanted(1, 2)
    assert decision.delay_ms > 0


def test_work_that_two_workers_run_is_first_stopped_by_both() -> None:
    sharing, work = Sharing(DELAY_MS), wanted(1, 1)
    both = {"a": work, "b": work}
    decision = sharing.decide(both, work, 0)
    assert decision.revoked == both
    assert not any(decision.assigned.values())
    assert_fair(settled(sharing, after(both, decision), work, 1), work)
