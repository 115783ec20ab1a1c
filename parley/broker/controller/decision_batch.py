"""Chooses which waiting decisions the controller commits together.

The store and every broker look up a changed topic in the image that results from the whole batch. So a batch must not
contain two changes to a topic if the later change contradicts the earlier one:

* A topic grows at most once in a batch.
* A batch that changes a topic does not delete it.
* A batch that deletes a topic does not create another topic with the same name. If the writes were interrupted halfway,
  the store would contain the key of one topic and the partitions of the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import takewhile
from typing import Any

from parley.broker.controller.decision import Decide, Decision
from parley.broker.metadata.changes import Change, PartitionChanged, PartitionsAdded, TopicCreated, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DecisionRequest:
    """A decision that a caller has submitted."""

    decide: Decide[Any]
    reply: asyncio.Future[Any]
    patience: asyncio.TimerHandle | None = None
    """The timer that fails the request if the store does not respond; None if the caller waits indefinitely."""
    is_withdrawn: bool = False
    """True once the caller has stopped waiting. A decision that has not been made by then is dropped."""
    is_slow: bool = False
    """True if the decision looks at all partitions. It must be a pure function, because it runs in a thread."""

    def fail(self, error: KafkaError) -> None:
        """Raise ``error`` in the caller of ``submit``, unless the caller already has its reply."""
        if not self.reply.done():
            self.reply.set_exception(error)

    def withdraw(self, error: KafkaError) -> None:
        """Raise ``error`` in the caller of ``submit``, and drop the decision if it has not been made yet."""
        self.is_withdrawn = True
        self.fail(error)

    def finish(self, outcome: Any) -> None:
        """Return ``outcome`` to the caller of ``submit``, or raise it there if it is an exception. Does nothing if the
        caller already has its reply."""
        if self.reply.done():
            return
        if isinstance(outcome, Exception):
            self.reply.set_exception(outcome)
        else:
            self.reply.set_result(outcome)


@dataclass(slots=True)
class DecisionBatch:
    """Decisions that are committed together: their changes, and the result or error of each request."""

    changes: list[Change] = field(default_factory=list)
    outcomes: list[tuple[DecisionRequest, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _TopicsInBatch:
    """The topics that a batch affects, by the kind of change."""

    changed: set[str] = field(default_factory=set)
    grown: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    def add(self, change: Change) -> None:
        """Record a change that the batch now contains."""
        match change:
            case TopicCreated(topic):
                self.changed.add(topic.name)
            case PartitionChanged(name):
                self.changed.add(name)
            case PartitionsAdded(name):
                self.changed.add(name)
                self.grown.add(name)
            case TopicDeleted(name):
                self.deleted.add(name)

    def excludes(self, change: Change) -> bool:
        """Return True if the change must wait for the next batch."""
        match change:
            case TopicCreated(topic):
                return topic.name in self.deleted
            case PartitionsAdded(name):
                return name in self.grown
            case TopicDeleted(name):
                return name in self.changed
        return False


def next_batch(requests: Sequence[DecisionRequest]) -> Sequence[DecisionRequest]:
    """Return the first requests that may share a batch: those before the first slow request, or one slow request."""
    if requests[0].is_slow:
        return requests[:1]
    return list(takewhile(lambda request: not request.is_slow, requests))


def decide_batch(image: MetadataImage, requests: Iterable[DecisionRequest]) -> tuple[DecisionBatch, MetadataImage]:
    """Decide on the requests in order, stopping at the first request that must wait for the next batch.

    Returns the batch and the resulting image. Each decision sees the changes of the decisions before it.
    """
    batch = DecisionBatch()
    topics = _TopicsInBatch()
    for request in requests:
        try:
            decision: Decision[Any] = request.decide(image)
        except Exception as error:
            if not isinstance(error, KafkaError):
                _log.exception("a decision failed")
            batch.outcomes.append((request, error))
            continue
        if any(map(topics.excludes, decision.changes)):
            break
        for change in decision.changes:
            topics.add(change)
        if decision.changes:
            image = image.with_changes(decision.changes)
            batch.changes += decision.changes
        batch.outcomes.append((request, decision.result))
    return batch, image
