"""Which host runs which task: never two at a time, and not for long one that kills its host."""

from __future__ import annotations

from parley.pipeline.connect.herder import TaskId
from parley.pipeline.connect.placement import FENCE_S, TRIAL_S, Host, Placement
from parley.pipeline.connect.tasks.peer import BEAT_S, SILENCE_S, STOP_S
from parley.pipeline.connect.tasks.spec import TaskSpec

NONE: dict[str, str] = {}


def spec(number: int, incarnation: int = 1) -> TaskSpec:
    return TaskSpec(
        id=TaskId("c", number),
        tasks=100,
        incarnation=incarnation,
        is_sink=True,
        connector_config=NONE,
        task_config=NONE,
    )


def placed(placement: Placement[Host], now: float) -> list[tuple[Host, TaskId]]:
    """All that can be started now, until it has been."""
    found = []
    while (one := placement.next(now)) is not None:
        found.append((one[0], one[1].id))
    return found


def placement(hosts: int, tasks: int = 0) -> Placement[Host]:
    made = Placement[Host]()
    made.hosts += [Host() for _ in range(hosts)]
    for number in range(tasks):
        made.want(spec(number))
    return made


def test_the_times_leave_no_moment_for_two() -> None:
    assert BEAT_S * 3 < SILENCE_S
    assert FENCE_S > SILENCE_S + STOP_S


def test_tasks_go_where_there_are_fewest() -> None:
    made = placement(4, 40)
    placed(made, 0)
    assert [len(one.tasks) for one in made.hosts] == [10] * 4
    made.lost(made.hosts[0], TRIAL_S)
    made.hosts.append(Host())
    placed(made, TRIAL_S + FENCE_S)
    assert [len(one.tasks) for one in made.hosts] == [10] * 4


def test_a_lost_host_s_tasks_are_started_nowhere_for_a_while() -> None:
    made = placement(2, 2)
    placed(made, 0)
    lost = made.hosts[0]
    (task,) = lost.tasks
    at = 100.0
    made.lost(lost, at)
    assert placed(made, at + FENCE_S - 0.1) == []
    assert made.wait_s(at) == FENCE_S
    assert [one[1] for one in placed(made, at + FENCE_S)] == [task]
    assert made.wait_s(at + FENCE_S) is None


def test_who_stops_and_starts_a_lost_host_s_task_has_to_wait_as_well() -> None:
    made = placement(2, 2)
    placed(made, 0)
    lost = made.hosts[0]
    (task,) = lost.tasks
    made.lost(lost, 100)
    assert made.give_up([task]) == {}
    assert made.fence_s([task], 101) == FENCE_S - 1
    made.want(spec(task.task, incarnation=2))
    assert placed(made, 100 + FENCE_S - 0.1) == []
    assert [one[1] for one in placed(made, 100 + FENCE_S)] == [task]
    assert made.fence_s([task], 100 + FENCE_S) == 0


def test_a_task_that_was_being_stopped_when_its_host_was_lost_is_fenced_and_not_started() -> None:
    made = placement(1, 1)
    placed(made, 0)
    (host,), task = made.hosts, TaskId("c", 0)
    assert made.give_up([task]) == {host: [task]}
    made.lost(host, 50)
    made.stopped(host, [task])
    made.hosts.append(Host())
    assert made.fence_s([task], 50) == FENCE_S
    assert placed(made, 50 + FENCE_S) == []


def test_what_a_lost_host_still_says_counts_for_nothing() -> None:
    made = placement(1, 1)
    placed(made, 0)
    (lost,) = made.hosts
    assert made.owns(lost, spec(0))
    assert not made.owns(lost, spec(0, incarnation=2))
    made.lost(lost, 50)
    made.lost(lost, 60)
    made.hosts.append(Host())
    ((host, _),) = placed(made, 50 + FENCE_S)
    assert made.owns(host, spec(0))
    assert not made.owns(lost, spec(0))


def test_a_task_that_failed_is_not_started_because_its_host_is_lost() -> None:
    made = placement(1, 1)
    placed(made, 0)
    (host,) = made.hosts
    made.failed(host, spec(0))
    made.lost(host, 1)
    made.hosts.append(Host())
    assert placed(made, 1000) == []
    assert made.fence_s([TaskId("c", 0)], 1) == 0


def test_a_pause_is_remembered_wherever_the_task_is() -> None:
    made = placement(1, 1)
    task = TaskId("c", 0)
    assert made.set_paused(task, is_paused=True) is None
    placed(made, 0)
    (host,) = made.hosts
    assert host.tasks[task].is_paused
    assert made.set_paused(task, is_paused=False) is host
    made.lost(host, 50)
    assert made.set_paused(task, is_paused=True) is None
    made.hosts.append(Host())
    placed(made, 100)
    assert made.hosts[0].tasks[task].is_paused


def killed(made: Placement[Host], killer: TaskId) -> tuple[list[TaskId], int]:
    """A host is lost a second after it got the killer, as often as that goes on: who fails, after how many."""
    now, deaths = 0.0, 0
    failed: list[TaskId] = []
    for _ in range(1000):
        placed(made, now)
        host = next((one for one in made.hosts if killer in one.tasks), None)
        if host is not None:
            now, deaths = now + 1, deaths + 1
            failed += [one.id for one in made.lost(host, now)]
            made.hosts.append(Host())
        wait_s = made.wait_s(now)
        if wait_s is None:
            break
        now += wait_s
    return failed, deaths


def test_a_task_that_kills_its_host_fails_and_the_others_go_on() -> None:
    alone = placement(1)
    alone.want(spec(0))
    assert killed(alone, TaskId("c", 0)) == ([TaskId("c", 0)], 2)
    for hosts in (1, 2, 4):
        made = placement(hosts, 12)
        failed, deaths = killed(made, TaskId("c", 5))
        assert failed == [TaskId("c", 5)]
        assert deaths == 3
        assert sorted(task.task for one in made.hosts for task in one.tasks) == [0, 1, 2, 3, 4, *range(6, 12)]


def test_a_task_that_has_run_for_long_is_no_suspect() -> None:
    made = placement(1, 2)
    now = 0.0
    for _ in range(5):
        placed(made, now)
        now += TRIAL_S
        assert made.lost(made.hosts[0], now) == []
        made.hosts.append(Host())
        now += FENCE_S


def test_a_task_that_somebody_starts_again_is_no_suspect_any_more() -> None:
    made = placement(1)
    for incarnation in range(1, 4):
        made.give_up([TaskId("c", 0)])
        made.want(spec(0, incarnation))
        placed(made, 1000 * incarnation)
        assert made.lost(made.hosts[0], 1000 * incarnation + 1) == []
        made.hosts.append(Host())


def test_tasks_wait_for_a_host_once_their_fence_is_over() -> None:
    made = placement(1, 2)
    assert made.without_host(0) == []
    placed(made, 0)
    made.lost(made.hosts[0], 100)
    assert made.without_host(100 + FENCE_S / 2) == []
    made.want(spec(2))
    assert [one.id.task for one in made.without_host(100 + FENCE_S / 2)] == [2]
    assert {one.id.task for one in made.without_host(100 + FENCE_S)} == {0, 1, 2}
    made.hosts.append(Host())
    assert made.without_host(100 + FENCE_S) == []
