"""Any order of events: no task runs twice, epochs rise, the log equals the shard's state, and finally all tasks run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup, StreamsGroupState, TaskOwners
from parley.broker.coordinators.groups.streams.tasks import TaskId, ids_of
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from tests.broker.coordinators.groups.consumer.bench import with_topics
from tests.broker.coordinators.groups.streams.bench import COUNTS, GROUP, StreamsBench, Tasks, said
from tests.support.proportion import examples

MEMBERS = [f"m{each}" for each in range(4)]
GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


@dataclass
class Thread:
    """A member as it sees itself: which tasks it runs."""

    member_id: str
    epoch: int = 0
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)

    @property
    def is_in(self) -> bool:
        return self.epoch > 0

    def forget(self) -> None:
        self.epoch, self.active, self.standby = 0, {}, {}

    def learn(self, response: StreamsGroupHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        if response.active_tasks is not None:
            self.active, self.standby = said(response.active_tasks) or {}, said(response.standby_tasks) or {}


class StreamsGroupsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = StreamsBench(with_topics(a=3, r=3, store=3))
        self.threads = {each: Thread(each) for each in MEMBERS}
        self.epoch = 0

    @property
    def group(self) -> StreamsGroup | None:
        return self.bench.shard.streams_group(GROUP)

    # --- Members ---

    @rule(name=st.sampled_from(MEMBERS), process=st.sampled_from("pq"), is_lost=st.booleans())
    def join(self, name: str, process: str, is_lost: bool) -> None:
        thread = self.threads[name]
        thread.forget()
        response = self.bench.join(name, COUNTS, process)
        if not is_lost:
            thread.learn(response)

    @precondition(lambda self: any(each.is_in for each in self.threads.values()))
    @rule(data=st.data(), is_lost=st.booleans(), is_short=st.booleans())
    def beat(self, data: st.DataObject, is_lost: bool, is_short: bool) -> None:
        """Send a heartbeat, with or without the tasks that the member has. Its response may be lost."""
        thread = data.draw(st.sampled_from([each for each in self.threads.values() if each.is_in]))
        self.send(thread, is_lost=is_lost, is_short=is_short)

    def send(self, thread: Thread, *, is_lost: bool = False, is_short: bool = False) -> None:
        try:
            if is_short:
                response = self.bench.heartbeat(thread.member_id, thread.epoch)
            else:
                response = self.bench.owning(thread.member_id, thread.epoch, thread.active, thread.standby)
        except KafkaError as error:
            if error.code not in GONE:
                raise
            thread.forget()
        else:
            if not is_lost:
                thread.learn(response)

    @precondition(lambda self: any(each.is_in for each in self.threads.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        thread = data.draw(st.sampled_from([each for each in self.threads.values() if each.is_in]))
        thread.forget()
        group = self.group
        if group is not None and thread.member_id in group.members:
            self.bench.leave(thread.member_id)

    @precondition(lambda self: self.bench.timers)
    @rule(data=st.data())
    def let_a_timer_be_due(self, data: st.DataObject) -> None:
        """A member that is removed has stopped before: its own timeout is shorter."""
        name = data.draw(st.sampled_from(sorted(self.bench.timers, key=str)))
        assert isinstance(name, tuple)
        self.threads[str(name[2])].forget()
        self.bench.fire(name)

    # --- The cluster ---

    @rule(partitions=st.integers(2, 4), is_whole=st.booleans())
    def change_topics(self, partitions: int, is_whole: bool) -> None:
        """Only a topic that is made again has fewer partitions. Its internal topics may be made later."""
        internal = {"r": partitions, "store": partitions} if is_whole else {}
        configs = self.bench.image.configs
        self.bench.change_topics(a=partitions, **internal)
        self.bench.image = replace(self.bench.image, configs=configs)
        for thread in self.threads.values():  # tasks that no longer exist end by themselves
            known = {name: [index for index in each if index < partitions] for name, each in thread.active.items()}
            copies = {name: [index for index in each if index < partitions] for name, each in thread.standby.items()}
            thread.active, thread.standby = known, copies

    @rule(replicas=st.integers(0, 2))
    def change_settings(self, replicas: int) -> None:
        entries = {"streams.num.standby.replicas": str(replicas)}
        configs = {ConfigResource(ResourceType.GROUP, GROUP): entries}
        self.bench.image = replace(self.bench.image, configs=configs)

    @rule()
    def fail_over(self) -> None:
        self.bench.reload()

    # --- What always holds ---

    @invariant()
    def no_task_is_run_twice(self) -> None:
        running: dict[TaskId, str] = {}
        for thread in self.threads.values():
            for task in ids_of(thread.active):
                assert task not in running, f"{task} is run by {running.get(task)} and {thread.member_id}"
                running[task] = thread.member_id

    @invariant()
    def epochs_rise(self) -> None:
        group = self.group
        if group is not None:
            assert group.epoch >= self.epoch
            assert all(member.progress.epoch <= group.epoch for member in group.members.values())
            self.epoch = group.epoch

    @invariant()
    def the_log_says_what_the_shard_has(self) -> None:
        replayed = self.bench.replayed().streams_group(GROUP)
        group = self.group
        assert (group is None) == (replayed is None)
        if group is not None and replayed is not None:
            for name in ("epoch", "target_epoch", "metadata_hash", "validated_epoch", "topology", "members", "targets"):
                assert getattr(group, name) == getattr(replayed, name), name

    @invariant()
    def the_owners_are_those_of_the_members(self) -> None:
        group = self.group
        if group is None:
            return
        owners = TaskOwners()
        for member in group.members.values():
            owners.add(member.details.process_id, member.progress.assigned)
            owners.add(member.details.process_id, member.progress.revoking)
        assert set(group.owners.active) == set(owners.active)

    def teardown(self) -> None:
        """At the end, every task has a member."""
        self.bench.change_topics(a=3, r=3, store=3)
        for thread in self.threads.values():
            thread.active = {name: [index for index in each if index < 3] for name, each in thread.active.items()}
            thread.standby = {name: [index for index in each if index < 3] for name, each in thread.standby.items()}
        for _ in range(12):
            for thread in self.threads.values():
                if thread.is_in:
                    self.send(thread)
                else:
                    thread.learn(self.bench.join(thread.member_id, COUNTS, f"p{thread.member_id}"))
        group = self.group
        assert group is not None
        assert group.state() is StreamsGroupState.STABLE
        running = sorted(task for thread in self.threads.values() for task in ids_of(thread.active))
        assert running == [(name, index) for name in "01" for index in range(3)]


StreamsGroupsMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=30, deadline=None)
TestStreamsGroups = StreamsGroupsMachine.TestCase
