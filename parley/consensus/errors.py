"""The errors of coordination stores, and what a caller must do on each.

Absence is a value (``None``, ``False``, an empty page); an error is an exception. The classes say what to do:
``Retriable`` (the same call may succeed later), ``PreconditionFailed`` (read again and decide again), ``Lost`` (stop
acting in the lost role), ``LimitExceeded`` and ``Permanent`` (do not repeat the call). docs/coordination.md, "Errors",
shows the whole tree. Wrong arguments (an illegal key, two operations on one key) are programming errors:
``ValueError``.
"""

from __future__ import annotations


class IllegalStep(AssertionError):
    """Raised for an event that is illegal in the current state. The cause is a defect of the program, not of the
    store."""

    def __init__(self, what: str, event: str, state: str) -> None:
        super().__init__(f"{what}: {event} is not legal in the state {state}")


class CoordinationError(Exception):
    """The base class of all errors that a backend or a recipe raises."""


class Retriable(CoordinationError):
    """The store did not respond as expected; the same call may succeed later."""


class Unavailable(Retriable):
    """The call was not applied. Repeat it after a pause; the backend reconnects by itself."""


class UsedByOlderVersion(Unavailable):
    """The embedded store must be upgraded, but a process of an older version has it open. Stop those processes."""


class MaybeApplied(Retriable):
    """A write was sent, but its response was lost. Read the keys back before repeating the write.

    The recipes do so by themselves, using a nonce in every value. A recipe raises this only if reading back does not
    reveal the outcome either, because the store remained unreachable or another client has since overwritten the key.
    """


class PreconditionFailed(CoordinationError):
    """Nothing was applied, because a key was not as expected."""

    def __init__(self, key: str, message: str = "") -> None:
        super().__init__(message or key)
        self.key = key
        """The key of the first check, in the order given, that did not hold."""


class AlreadyExists(PreconditionFailed):
    """The key was expected to be absent but is present."""


class NotFound(PreconditionFailed):
    """The key was expected to be present but is absent."""


class Conflict(PreconditionFailed):
    """The key was expected at one revision, but is at another one or absent."""


class Lost(CoordinationError):
    """The caller has lost its role and must stop acting in it."""


class SessionLost(Lost):
    """The session has ended; nothing was applied. The store deletes its keys within its expiry bound."""


class LeadershipLost(Lost):
    """The leadership has ended: the leader was deposed, has resigned or has lost its session."""


class Fenced(Lost):
    """A guarded write was rejected because its guard no longer holds; nothing was applied."""

    def __init__(self, key: str, message: str = "") -> None:
        super().__init__(message or f"the guard {key} no longer holds")
        self.key = key
        """The key of the guard."""


class Moved(Lost):
    """The cluster has moved to another store. Nothing was applied here, and nothing will ever be."""


class LimitExceeded(CoordinationError):
    """The call exceeds a limit of the store; nothing was applied and nothing was split."""


class TooLarge(LimitExceeded):
    """A key, a value or a whole transaction is too large."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} is {size} bytes; this store accepts at most {limit}")
        self.size = size
        """The size of the key, the value or the transaction, in bytes."""
        self.limit = limit
        """The limit of the store, in bytes."""


class TooManyOps(LimitExceeded):
    """A transaction has too many checks and operations."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"the transaction has {count} checks and operations; this store accepts at most {limit}")
        self.count = count
        """The number of checks and operations in the transaction."""
        self.limit = limit
        """The maximum number that the store accepts in one transaction."""


class Permanent(CoordinationError):
    """The call cannot succeed, and repeating it does not help: an operator or programmer must remove the cause."""


class Unauthorized(Permanent):
    """The store rejects the credentials, or they do not allow this call."""


class Unsupported(Permanent):
    """The server lacks a required feature, because it is too old or the feature is disabled. Raised only by
    ``open``."""


class Closed(Permanent):
    """The backend, session or watch was closed by its owner."""


class BadConfig(Permanent):
    """An address or an option is malformed or cannot work. The message names it, and says what is allowed."""


class WrongStore(Permanent):
    """The store is not the expected one. Never continue as if it were empty: its state is elsewhere or lost."""

    def __init__(self, message: str, *, found: str | None = None) -> None:
        super().__init__(message)
        self.found = found
        """The identity of the store at the address, or None if it is empty. Set if ``open`` raises the error."""


class OlderStore(WrongStore):
    """The store lacks changes that this client has seen: it was rolled back to an older state. All sessions and watches
    of this client have ended. A client that can deal with an older state may open the store again."""


class EmptyStore(WrongStore):
    """A store was expected, but there is none at the address: it was wiped, or the address is wrong."""


class DeletedStore(WrongStore):
    """The store that was opened is no longer at its address."""


class DamagedStore(WrongStore):
    """The store exists, but cannot be read: its files are damaged or were replaced."""


class CannotMove(Permanent):
    """A move to another store was abandoned; the message gives the reason. The old store is still in charge."""
