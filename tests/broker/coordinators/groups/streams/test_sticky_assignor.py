"""The assignor of streams groups: every task once, balanced, sticky, and standby tasks only on other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.broker.coordinators.groups.streams.sticky_assignor import MemberSpec, SubtopologySpec, assign
from parley.broker.coordinators.groups.streams.tasks import NO_TARGET, MemberTasks, ids_of
from tests.support.proportion import examples

Processes = Mapping[str, str]
SUBTOPOLOGIES = st.dictionaries(
    st.sampled_from("012"), st.builds(SubtopologySpec, st.integers(1, 7), st.booleans()), min_size=1
)
PROCESSES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["p", "q", "r"]), min_size=1)


def assigned(
    processes: Processes, subtopologies: Mapping[str, SubtopologySpec], replicas: int, before: Mapping[str, MemberTasks]
) -> dict[str, MemberTasks]:
    members = {each: MemberSpec(processes[each], before.get(each, NO_TARGET)) for each in sorted(processes)}
    return assign(members, subtopologies, replicas)


def check(
    found: Mapping[str, MemberTasks],
    processes: Processes,
    subtopologies: Mapping[str, SubtopologySpec],
    replicas: int,
) -> None:
    wanted = {(name, index) for name, spec in subtopologies.items() for index in range(spec.tasks)}
    active = Counter(task for each in found.values() for task in ids_of(each.active))
    assert active == Counter(wanted), "each task is active once"
    copies = Counter(
        (processes[member], task)
        for member, each in found.items()
        for tasks in (each.active, each.standby)
        for task in ids_of(tasks)
    )
    assert max(copies.values()) == 1, "a program has a task in one form only"
    standby = Counter(task for each in found.values() for task in ids_of(each.standby))
    programs = len(set(processes.values()))
    stateful = {task for task in wanted if subtopologies[task[0]].is_stateful}
    assert standby == Counter(dict.fromkeys(stateful, min(replicas, programs - 1))), "as many copies as fit"


def counts(found: Mapping[str, MemberTasks]) -> list[int]:
    return [len(list(ids_of(each.active))) for each in found.values()]


@given(SUBTOPOLOGIES, PROCESSES, PROCESSES, st.integers(0, 2))
@settings(max_examples=examples(400), deadline=None)
def test_every_task_has_one_owner_and_copies_elsewhere(
    subtopologies: dict[str, SubtopologySpec], first: Processes, second: Processes, replicas: int
) -> None:
    found = assigned(first, subtopologies, replicas, {})
    check(found, first, subtopologies, replicas)
    again = assigned(first, subtopologies, replicas, found)
    check(again, first, subtopologies, replicas)
    if replicas == 0:
        assert again == found, "without a reason, nothing moves"
    check(assigned(second, subtopologies, replicas, found), second, subtopologies, replicas)


@given(SUBTOPOLOGIES, st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=examples(200), deadline=None)
def test_programs_of_one_thread_get_equally_many_tasks_and_keep_most_of_theirs(
    subtopologies: dict[str, SubtopologySpec], before: int, after: int
) -> None:
    many = sum(spec.tasks for spec in subtopologies.values())
    old = {f"m{each}": f"p{each}" for each in range(before)}
    new = {f"m{each}": f"p{each}" for each in range(after)}
    first = assigned(old, subtopologies, 0, {})
    second = assigned(new, subtopologies, 0, first)
    for found, members in ((first, before), (second, after)):
        assert max(counts(found)) - min(counts(found)) <= 1 or max(counts(found)) <= -(-many // members)
    quota = -(-many // after)
    for member in new.keys() & old.keys():
        had, has = set(ids_of(first[member].active)), set(ids_of(second[member].active))
        assert len(had & has) >= min(len(had), many // after), f"{member} keeps its share"
        assert len(has) <= quota


def test_a_program_with_a_copy_takes_over() -> None:
    subtopologies = {"0": SubtopologySpec(3, True)}
    processes = {"a": "p", "b": "q", "c": "r"}
    first = assigned(processes, subtopologies, 1, {})
    gone = set(ids_of(first["a"].active))
    second = assigned({"b": "q", "c": "r"}, subtopologies, 1, first)
    for member in "bc":
        new = set(ids_of(second[member].active)) - set(ids_of(first[member].active))
        assert new & gone <= set(ids_of(first[member].standby)), "the state need not be read again"


def test_without_members_nothing_is_assigned() -> None:
    assert assign({}, {"0": SubtopologySpec(3, True)}, 1) == {}


def test_a_standby_task_stays_with_its_member() -> None:
    before = {"a": MemberTasks(active={"0": frozenset({0})}), "d": MemberTasks(standby={"0": frozenset({0})})}
    found = assigned({each: each for each in "abcd"}, {"0": SubtopologySpec(1, True)}, 1, before)
    assert {member: each for member, each in found.items() if each != NO_TARGET} == before


def test_of_several_copies_that_could_stay_that_of_the_last_subtopology_stays() -> None:
    """As in Kafka. The shares are then used up, so the other copy gets another member."""
    before = {
        "a": MemberTasks(standby={"0": frozenset({0})}),
        "b": MemberTasks(active={"0": frozenset({0})}, standby={"1": frozenset({0})}),
    }
    subtopologies = {"0": SubtopologySpec(1, True), "1": SubtopologySpec(1, True)}
    found = assigned({each: each for each in "abc"}, subtopologies, 1, before)
    assert {member: set(ids_of(each.standby)) for member, each in found.items()} == {
        "a": set(),
        "b": {("1", 0)},
        "c": {("0", 0)},
    }
