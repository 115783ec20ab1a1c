"""Group work that would block the event loop: large target assignments, and matching regular expressions.

A thread works on a copy of the data that it needs. Its result is submitted as another decision. The result may be too
late: the group may have changed or moved to another coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Set
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.group_change import in_steps as consumer_target_in_steps
from parley.broker.coordinators.groups.consumer.regexes import install_matches, matching, next_turn, subscribed_regexes
from parley.broker.coordinators.groups.consumer.topics import version_of
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.streams.group_change import in_steps as streams_target_in_steps
from parley.broker.coordinators.groups.streams.streams_group import StreamsGroup
from parley.broker.network.request_context import RequestContext
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


class Visible(Protocol):
    """A function that returns the topics in ``names`` that the client of a request may describe."""

    def __call__(self, context: RequestContext, names: Iterable[str]) -> Set[str]: ...


Submit = Callable[[int, Callable[[GroupShard, int], Decision[None]]], asyncio.Future[None]]
"""A function that submits a decision to the shard of a partition of ``__consumer_offsets``."""


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """The background work of groups: runs it in threads, and submits the results to the groups' shards."""

    submit: Submit
    visible: Visible
    tasks: TaskSet
    executor: Executor | None
    """The threads; None means the event loop's default executor."""

    def assign(self, shard: GroupShard, group_id: str) -> None:
        """Start computing a target assignment in a thread, unless a thread is already computing one for this group.

        The group must be a consumer group or a streams group; otherwise, nothing happens. A failure is logged, and the
        group keeps its previous target assignment.
        """
        group = shard.consumer_group(group_id) or shard.streams_group(group_id)
        if group is not None and not group.is_assigning:
            group.is_assigning = True
            self._start(self._assign(shard, group), f"compute the target assignment of {group_id}")

    async def _assign(self, shard: GroupShard, group: ConsumerGroup | StreamsGroup) -> None:
        try:
            if isinstance(group, ConsumerGroup):
                decide, install = consumer_target_in_steps(shard, group)
            else:
                decide, install = streams_target_in_steps(group)
            await self.submit(shard.partition, partial(install, await self._in_thread(decide)))
        except KafkaError as error:
            facts = {"group": group.group_id, "error": str(error) or error.code.name}
            _log.error("a target assignment could not be computed", extra=facts)
        finally:
            group.is_assigning = False

    def match(self, shard: GroupShard, group_id: str, context: RequestContext) -> None:
        """Start matching the regular expressions of a consumer group in a thread, unless a thread is already doing so.
        Does nothing for a group of another type. A failure is logged.

        Only topics that the client of ``context`` may describe can match.
        """
        group = shard.consumer_group(group_id)
        if group is not None and not group.is_resolving:
            group.is_resolving = True
            self._start(self._match(shard, group, context), f"match regular expressions of {group_id}")

    async def _match(self, shard: GroupShard, group: ConsumerGroup, context: RequestContext) -> None:
        try:
            image = shard.image()
            turns, found = matching(subscribed_regexes(group), image.topics), None
            while found is None:
                found = await self._in_thread(partial(next_turn, turns))
            for regex, reason in found.invalid.items():
                _cannot_match(group, regex, reason)
            seen = {regex: frozenset(self.visible(context, sorted(names))) for regex, names in found.topics.items()}
            await self._install_matches(shard, group, seen, version_of(image))
        except KafkaError as error:
            facts = {"group": group.group_id, "error": str(error) or error.code.name}
            _log.error("regular expressions could not be matched", extra=facts)
        finally:
            group.is_resolving = False

    async def _install_matches(
        self, shard: GroupShard, group: ConsumerGroup, found: dict[str, frozenset[str]], version: int
    ) -> None:
        """Store all matches together. If a record is too large, store the other matches one by one: an expression whose
        record is too large keeps its previous topics.

        Raises KafkaError if the records cannot be written for another reason.
        """
        try:
            await self.submit(shard.partition, partial(install_matches, group.group_id, found, version))
            return
        except KafkaError as error:
            if not _is_too_large(error):
                raise
        for regex, topics in found.items():
            try:
                await self.submit(shard.partition, partial(install_matches, group.group_id, {regex: topics}, version))
            except KafkaError as error:
                if not _is_too_large(error):
                    raise
                _cannot_match(group, regex, str(error))
                known = group.regexes.get(regex)
                old = {regex: frozenset() if known is None else known.topics}
                await self.submit(shard.partition, partial(install_matches, group.group_id, old, version))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.start(work, name=name)


def _is_too_large(error: KafkaError) -> bool:
    return error.code is ErrorCode.MESSAGE_TOO_LARGE


def _cannot_match(group: ConsumerGroup, regex: str, reason: str) -> None:
    """Log why a regular expression matches no topics, or keeps its previous ones. The reason is logged only once for
    each expression."""
    group.unmatched_regexes &= group.regex_subscribers.keys()
    if regex not in group.unmatched_regexes:
        group.unmatched_regexes.add(regex)
        _log.error("a regular expression cannot be matched", extra={"group": group.group_id, "error": reason})
