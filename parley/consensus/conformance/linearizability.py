"""Decides whether a recorded concurrent history is linearizable, that is, whether its operations could have taken
effect one at a time.

This is the search of Wing and Gong, with Lowe's cache of configurations. An operation may come next if it was called
before any other remaining operation returned. The history is linearizable if every operation with a known outcome can
be placed in this way.

An operation consists of a condition on the state and a change in the state: reads, listings, puts, compare-and-set,
deletes and transactions all have this form. If its response was lost, it may take effect at any time after its call, or
never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

State = frozenset[tuple[str, str]]
"""The keys that are present, with their values."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a client: its times, what it expected, what it wrote, and its outcome."""

    called: float
    """The time of the call, on a clock that all clients share."""
    returned: float | None
    """The time of the response; ``None`` if it was lost."""
    expects: Mapping[str, str | None] = field(default_factory=dict)
    """The value that it read or required, by key; None for absence."""
    writes: Mapping[str, str | None] = field(default_factory=dict)
    """The value that it put, by key; None for a delete."""
    held: bool | None = True
    """True: its expectations held, and its writes were applied. False: they did not hold, and nothing was applied.
    None: the outcome is unknown."""

    def outcomes(self, state: State) -> Iterator[State]:
        """Yield the states that the operation can produce from this one; none if it cannot have happened in this
        state."""
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
    """The result of ``judge``: whether the operations could have taken effect one at a time, in some order."""

    linearizable: bool
    """True if an order was found."""
    explained: int
    """The largest number of operations that could be put in order."""
    stuck_at: tuple[Operation, ...] = ()
    """The operations that could come next according to their times alone; none of them fits the state."""


def judge(history: Sequence[Operation], start: State = frozenset()) -> Verdict:
    """Search for an order of the operations that explains the history, if the state was ``start`` at its beginning."""
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
    """Return the operations that may come next: those called before any other remaining operation returned."""
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
