"""The ledger of transactions in a simulation, and the invariants that it checks.

* **AtomicVisibility**: if a transaction was committed, every record of it is read by the end, and its offsets are the
  group's offsets. If its outcome is unknown, either all of this holds or none.
* **NoAbortedRead**: a reader of committed records reads no record of a transaction before its commit was requested, and
  no record of an aborted transaction.
* **FencedZombie**: once a newer instance of a producer has its epoch, no request of an older instance succeeds. No
  instance is fenced unless there is a newer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from parley.protocol.errors import ErrorCode
from parley.tools.simulation.client_invariants import Violations
from parley.tools.simulation.event_history import History


class State(Enum):
    """The state of a transaction, as its producer knows it."""

    OPEN = auto()
    COMMITTING = auto()
    """The commit was requested. This is the final state if the producer dies before the response."""
    COMMITTED = auto()
    ABORTED = auto()
    """The abort was requested, or the producer ended without requesting a commit. In the second case, the next instance
    of the producer aborts the transaction."""


@dataclass(slots=True)
class Transaction:
    """A transaction, numbered within its transactional id, and the values of its records."""

    transactional_id: str
    number: int
    values: list[str] = field(default_factory=list)
    state: State = State.OPEN

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"


class TransactionLedger:
    """The transactions that producers report, and the records of them that readers report. Contradictions are reported
    as violations."""

    def __init__(self, history: History, violations: Violations) -> None:
        self._history = history
        self._violations = violations
        self._transactions: list[Transaction] = []
        self._of_value: dict[str, Transaction] = {}
        self._read: dict[str, None] = {}
        self._requested: dict[str, int] = {}
        self._in_charge: dict[str, int] = {}

    @property
    def committed(self) -> int:
        """The number of transactions whose commit was acknowledged."""
        return sum(each.state is State.COMMITTED for each in self._transactions)

    # --- Reports of producers ---

    def takes_over(self, transactional_id: str, instance: int) -> None:
        """Record that an instance is about to request its producer id and epoch."""
        self._requested[transactional_id] = instance

    def takes_charge(self, transactional_id: str, instance: int) -> None:
        """Record that an instance has received its producer id and epoch. From now on no request of an older instance
        may succeed."""
        self._history.note(transactional_id, f"instance {instance} is in charge")
        self._in_charge[transactional_id] = instance

    def is_zombie(self, transactional_id: str, instance: int) -> bool:
        """Return True if a newer instance is in charge."""
        return self._in_charge.get(transactional_id, 0) > instance

    def began(self, transactional_id: str, number: int) -> Transaction:
        """Record that a transaction begins."""
        begun = Transaction(transactional_id, number)
        self._transactions.append(begun)
        return begun

    def sent(self, transaction: Transaction, topic: str, partition: int, values: list[str]) -> None:
        """Record that records of a transaction are sent."""
        transaction.values += values
        self._of_value |= dict.fromkeys(values, transaction)
        self._history.note(transaction.transactional_id, f"sends {topic}-{partition} {' '.join(values)}")

    def ends(self, transaction: Transaction, *, commit: bool) -> None:
        """Record that the end of a transaction is about to be requested."""
        self._history.note(transaction.transactional_id, f"{'commits' if commit else 'aborts'} {transaction.number}")
        transaction.state = State.COMMITTING if commit else State.ABORTED

    def ended(self, transaction: Transaction) -> None:
        """Record that the requested end was acknowledged."""
        self._history.note(transaction.transactional_id, f"  ended {transaction.number}")
        if transaction.state is State.COMMITTING:
            transaction.state = State.COMMITTED

    def abandoned(self, transaction: Transaction) -> None:
        """Record that the producer was fenced or has died. The transaction will be aborted, unless a commit was
        requested."""
        if transaction.state is State.OPEN:
            transaction.state = State.ABORTED

    def served_zombie(self, transactional_id: str, instance: int, what: str) -> None:
        """Report that a request succeeded although its instance was already a zombie when it sent the request."""
        text = f"{what} of instance {instance} of {transactional_id} succeeded after a newer one was in charge"
        self._violations.report("FencedZombie", text)

    def refused(self, transactional_id: str, instance: int, what: str, code: ErrorCode) -> None:
        """Record that a request failed with an error that only a newer instance may cause. Reports a violation if there
        is none."""
        self._history.note(transactional_id, f"  {what} of instance {instance}: {code.name}")
        if self._requested.get(transactional_id, 0) <= instance:
            text = f"{what} of instance {instance} of {transactional_id}, the newest one, failed with {code.name}"
            self._violations.report("FencedZombie", text)

    # --- Reports of readers ---

    def read(self, who: str, value: str) -> None:
        """Record that a reader of committed records has read a value. Reports a violation if the transaction that wrote
        it is open or aborted. Values without a transaction are ignored."""
        transaction = self._of_value.get(value)
        if transaction is not None:
            self._read[value] = None
            if transaction.state in (State.OPEN, State.ABORTED):
                text = f"{who} read {value} of {transaction}, which is {transaction.state.name.lower()}"
                self._violations.report("NoAbortedRead", text)

    # --- The end of the run ---

    def judge(self, offsets: dict[str, int]) -> None:
        """Report each committed transaction of which a record was not read, each transaction of unknown outcome of
        which only a part was read, and each group whose offset is not from the newest transaction that was read.
        ``offsets`` contains, by transactional id, the number of the transaction whose offset its group has
        committed."""
        for each in self._transactions:
            missing = [value for value in each.values if value not in self._read]
            text = f"{each} is {each.state.name.lower()}, and these of its records are not read: {' '.join(missing)}"
            is_torn = each.state is State.COMMITTING and 0 < len(missing) < len(each.values)
            if is_torn or (each.state is State.COMMITTED and missing):
                self._violations.report("AtomicVisibility", text)
        for transactional_id, number in offsets.items():
            newest = max(self._visible(transactional_id), default=-1)
            if number != newest:
                text = f"the newest transaction of {transactional_id} is {newest}, but the offsets are of {number}"
                self._violations.report("AtomicVisibility", text)

    def _visible(self, transactional_id: str) -> Iterator[int]:
        """Yield the numbers of the transactions of a transactional id that readers have seen."""
        for each in self._transactions:
            if each.transactional_id == transactional_id and any(value in self._read for value in each.values):
                yield each.number
