"""This worker's share of its group's work and, if it leads, the shares of all workers.

``Share`` is the group's ``Member``. The work that the group has assigned (``Running.allowed``) runs here
(``Running.work``), except for work that is being stopped or started. Rules:

1. Before it joins, the worker reads the configurations to the end, and stops tasks whose connector now has a different
number of tasks: that number decides which partitions a task has. The new tasks start only after all workers have
joined.
2. A worker stops revoked work, and then joins again immediately. Only then does the leader assign the work to other
workers.
3. A worker that has read less than the leader reads on before it starts anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from parley.pipeline.connect.distributed.assignor import Sharing, share_out
from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.local_work import Running
from parley.pipeline.connect.distributed.membership import Membership
from parley.pipeline.connect.distributed.protocol import CONFIG_MISMATCH, NO_WORK, Assignment, MemberState, Work
from parley.pipeline.connect.distributed.statuses import StatusWriter
from parley.pipeline.connect.herder_results import TaskId

_BEHIND_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)


class Share:
    """This worker's share of the work. ``on_leading`` is called whenever this worker is the leader of a new
    generation.
    """

    def __init__(
        self,
        url: str,
        configs: ConfigStore,
        running: Running,
        status_writer: StatusWriter,
        membership: Membership,
        *,
        max_delay_ms: int,
        sync_seconds: float,
        now_ms: Callable[[], int],
        on_leading: Callable[[], None],
    ) -> None:
        self.leader_url: str | None = None
        self.leads = False
        self.version = 0
        self.joined = asyncio.Event()
        """Set once this worker has an assignment, and until it loses its membership."""
        self.settled = asyncio.Event()
        """Set while this worker is a member and no rebalance is in progress: the leader and the assignment
        are known."""
        self._url = url
        self._configs = configs
        self._running = running
        self._status_writer = status_writer
        self._membership = membership
        self._max_delay_ms = max_delay_ms
        self._sync_seconds = sync_seconds
        self._now_ms = now_ms
        self._on_leading = on_leading
        self._sharing = Sharing(max_delay_ms)
        self._owners: dict[str, Work] = {}
        """The work of each worker, by its URL, if this worker leads."""
        self._starting: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def wanted(self) -> Work:
        """Return all work that must run on some worker."""
        state = self._configs.state
        names = frozenset(state.connectors)
        return Work(names, frozenset(task for name in names for task in state.task_ids(name)))

    def owner_url(self, of: str | TaskId) -> str | None:
        """Return the URL of the worker that runs the connector or the task; None if no worker does, or if this worker
        does not lead.
        """
        for url, work in self._owners.items():
            if of in work.tasks or of in work.connectors:
                return url
        return None

    # As the group's member.

    def member_state(self) -> MemberState:
        """Return this worker's state for the group's leader (see ``Member.member_state``)."""
        return MemberState(self._url, self._configs.state.offset, self._running.allowed)

    async def before_join(self, version: int | None) -> None:
        """Stop the work that must not run during the rebalance (see ``Member.before_join``)."""
        self.settled.clear()
        await self._read_on()
        if version == 0:
            await self._running.stop(self._running.work)
            self._running.allowed = NO_WORK
        else:
            await self._running.stop(self._running.outdated())

    def share_out(self, members: Mapping[str, MemberState], leader: str, version: int) -> Mapping[str, Assignment]:
        """Share out the connectors and tasks among the members (see ``Member.share_out``)."""
        offset = self._configs.state.offset
        url = members[leader].url
        if max(member.config_offset for member in members.values()) > offset:
            return {one: Assignment(leader, url, offset, error=CONFIG_MISMATCH) for one in members}
        wanted = self.wanted()
        if version == 0:
            shares = share_out(members, wanted)
            self._owners = {members[one].url: work for one, work in shares.items()}
            return {one: Assignment(leader, url, offset, work) for one, work in shares.items()}
        has = {one: member.has for one, member in members.items()}
        decision = self._sharing.decide(has, wanted, self._now_ms())
        self._owners = {
            members[one].url: (has[one] | decision.assigned[one]) - decision.revoked[one] for one in members
        }
        return {
            one: Assignment(
                leader, url, offset, decision.assigned[one], decision.revoked[one], delay_ms=decision.delay_ms
            )
            for one in members
        }

    async def on_assigned(self, assignment: Assignment, member_id: str, generation: int, version: int) -> None:
        """Stop the revoked work and start the assigned work (see ``Member.on_assigned``)."""
        self._running.generation = generation
        self.version = version
        self._lead(assignment, member_id)
        if assignment.error or (assignment.config_offset > self._configs.state.offset and not await self._read_on()):
            self._membership.rejoin(_BEHIND_PAUSE_S)
            return
        if version == 0:
            self._running.allowed = assignment.assigned
        else:
            self._running.allowed = (self._running.allowed - assignment.revoked) | assignment.assigned
        _log.info(
            "generation %d: this worker runs %d connectors and %d tasks",
            generation,
            *map(len, (self._running.allowed.connectors, self._running.allowed.tasks)),
        )
        if assignment.revoked:
            await self._running.stop(assignment.revoked)
            # Otherwise this worker's last states could arrive after those of the next worker.
            await self._reports_written()
            self._membership.rejoin()
        elif assignment.delay_ms > 0:
            self._membership.rejoin(assignment.delay_ms / 1000)
        self._begin(self._running.allowed - self._running.work)
        self.joined.set()
        if not assignment.revoked:
            self.settled.set()

    async def on_lost(self) -> None:
        """Stop all connectors and tasks of this worker (see ``Member.on_lost``)."""
        _log.warning("the worker has left the group: stopping all its connectors and tasks")
        self.joined.clear()
        self.settled.clear()
        self.leads, self.leader_url, self._running.allowed = False, None, NO_WORK
        self._sharing = Sharing(self._max_delay_ms)
        await self._running.stop(self._running.work)

    async def stop(self) -> None:
        """Cancel starts in progress, stop everything, and start nothing more."""
        self._is_stopping = True
        for one in self._starting:
            one.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._running.stop(self._running.work)
        await self._reports_written()

    def _lead(self, assignment: Assignment, member_id: str) -> None:
        if assignment.leader != member_id:
            self._sharing = Sharing(self._max_delay_ms)  # this state is outdated when the worker leads again
        self.leads = assignment.leader == member_id
        self.leader_url = assignment.leader_url or None
        if self.leads:
            self._on_leading()

    def _begin(self, work: Work) -> None:
        """Start work without waiting for it: a slow connector must not cost this worker its membership."""
        if not work or self._is_stopping:
            return
        task = asyncio.create_task(self._running.start(work))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _reports_written(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sync_seconds):
                await self._status_writer.drained()

    async def _read_on(self) -> bool:
        """Read the configurations to the end. Returns False if that takes too long."""
        try:
            async with asyncio.timeout(self._sync_seconds):
                await self._configs.refresh()
        except TimeoutError:
            _log.warning("the worker could not read to the end of the config topic within %g s", self._sync_seconds)
            return False
        return True
