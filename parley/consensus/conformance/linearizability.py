"""Whether a recorded concurrent history can be explained by operations that took effect one at a time.

The search of Wing and Gong, with Lowe's memory of the configurations already tried: an operation may come next if no
operation that is still to come had returned before it was called. The history is linearizable if every operation whose
effect is known can be placed that way.

An operation is a condition on the state and a change of it; reading, listing, putting, compare-and-set, deleting and
transactions are all of that form. One whose answer was lost may have been applied at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

State = frozenset[tuple[str, str]]
"""The keys that are present, with their values."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something a client did.

    :ivar called: when, on a clock that all clients share.
    :ivar returned: when the answer came; ``None`` if it did not.
    :ivar expects: by key the value it saw or made a condition; ``None`` for absence.
    :ivar writes: by key the value it put; ``None`` for a delete.
    :ivar held: True: what it expects held, and its writes were applied. False: that did not hold, and nothing was
        applied. None: nobody knows.
    """

    called: float
    returned: float | None
    expects: Mapping[str, str | None] = field(default_factory=dict)
    writes: Mapping[str, str | None] = field(default_factory=dict)
    held: bool | None = True

    def outcomes(self, state: State) -> Iterator[State]:
        """The states it can have led to from this one; none if it cannot have happened here."""
        present = dict(state)
        held = all(present.get(key) == value for key, value in self.expects.items())
        if self.held is not None and held != self.held:
            return
        if not held or not self.writes:
            yield state
            return
        for key, value in self.writes.items():
            if value is None:
                present.pop(key, None)
            else:
                present[key] = value
        yield frozenset(present.items())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of the search.

    :ivar linearizable: an order was found.
    :ivar explained: the largest number of operations that could be placed.
    :ivar stuck_at: where it went no further: operations of which none can come next.
    """

    linearizable: bool
    explained: int
    stuck_at: tuple[Operation, ...] = ()


def judge(history: Sequence[Operation], start: State = frozenset()) -> Verdict:
    """Look for an order that explains a history beginning in this state."""
    operations = sorted(history, key=lambda operation: operation.called)
    known = sum(1 << n for n, operation in enumerate(operations) if operation.returned is not None)
    todo: list[tuple[int, State]] = [(0, start)]
    seen = set(todo)
    best, stuck = -1, 0
    while todo:
        done, state = todo.pop()
        if done & known == known:
            return Verdict(True, len(operations))
        if done.bit_count() > best:
            best, stuck = done.bit_count(), done
        for n in _next(operations, done):
            for outcome in operations[n].outcomes(state):
                configuration = (done | 1 << n, outcome)
                if configuration not in seen:
                    seen.add(configuration)
                    todo.append(configuration)
    return Verdict(False, best, tuple(operations[n] for n in _next(operations, stuck)))


def _next(operations: Sequence[Operation], done: int) -> list[int]:
    """Which operations may come next: those called before any other one that is not done had returned."""
    found: list[int] = []
    first_return = float("inf")
    n = (~done & (done + 1)).bit_length() - 1
    while n < len(operations) and operations[n].called <= first_return:
        if not done >> n & 1:
            found.append(n)
            returned = operations[n].returned
            if returned is not None:
                first_return = min(first_return, returned)
        n += 1
    return found
