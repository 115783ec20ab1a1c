"""The errors of coordination stores, and what a caller must do on each.

Absence is a value (``None``, ``False``, an empty page); an error is an exception. The classes say what to do:
``Retriable`` (the same call may succeed later), ``PreconditionFailed`` (read again and decide again), ``Lost`` (stop
acting in the lost role), ``LimitExceeded`` and ``Permanent`` (do not repeat the call). docs/coordination.md, "Errors",
has the whole tree. Wrong arguments (an illegal key, two operations on one key) are programming errors: ``ValueError``.
"""

from __future__ import annotations


class IllegalStep(AssertionError):
    """An event that is not legal in the current state: a defect in the program, not a fault of the store."""

    def __init__(self, what: str, event: str, state: str) -> None:
        super().__init__(f"{what}: {event} is not legal in the state {state}")


class CoordinationError(Exception):
    """The root of all errors that a backend or a recipe raises."""


class Retriable(CoordinationError):
    """The store did not respond as hoped; the same call may succeed later."""


class Unavailable(Retriable):
    """The call was not applied. Repeat it after a pause; the backend reconnects on its own."""


class MaybeApplied(Retriable):
    """A write was sent, but its response was lost. Read the keys back before repeating it.

    The recipes do so by themselves: they put a nonce into every value. A recipe raises this only if reading back does
    not show the outcome either (the store stayed away, or another client has overwritten the key since).
    """


class PreconditionFailed(CoordinationError):
    """Nothing was applied, because a key was not as expected."""

    def __init__(self, key: str, message: str = "") -> None:
        super().__init__(message or key)
        self.key = key
        """The key of the first check, in the order given, that did not hold."""


class AlreadyExists(PreconditionFailed):
    """The key was expected to be absent and is not."""


class NotFound(PreconditionFailed):
    """The key was expected to be present and is not."""


class Conflict(PreconditionFailed):
    """The key was expected at a revision, but is at another one or absent."""


class Lost(CoordinationError):
    """The caller has lost its role and must stop acting in it."""


class SessionLost(Lost):
    """The session is over; nothing was applied. The store deletes its keys within its expiry bound."""


class LeadershipLost(Lost):
    """The leadership is over: the leader was deposed, has resigned or has lost its session."""


class Fenced(Lost):
    """A guarded write was refused because its guard no longer holds; nothing was applied."""

    def __init__(self, key: str, message: str = "") -> None:
        super().__init__(message or f"the guard {key} does not hold any more")
        self.key = key
        """The key of the guard."""


class Moved(Lost):
    """The cluster has moved to another store. Nothing was applied here, and nothing will be."""


class LimitExceeded(CoordinationError):
    """The call is beyond the store's limits; nothing was applied and nothing was split."""


class TooLarge(LimitExceeded):
    """A key, a value or a whole transaction is too large."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size} bytes; this store takes {limit}")
        self.size = size
        """The size of what the caller sent, in bytes."""
        self.limit = limit
        """The limit of the store, in bytes."""


class TooManyOps(LimitExceeded):
    """A transaction has too many checks and operations."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"the transaction has {count} checks and operations; this store takes {limit} at once")
        self.count = count
        """The number in the transaction."""
        self.limit = limit
        """The number that the store takes in one transaction."""


class Permanent(CoordinationError):
    """Repeating the call does not help."""


class Unauthorized(Permanent):
    """The store rejects the credentials, or they do not allow this call."""


class Unsupported(Permanent):
    """The server lacks a needed feature (too old, or switched off). Raised by ``open`` only."""


class Closed(Permanent):
    """The backend, session or watch was closed by its owner."""


class BadConfig(Permanent):
    """An address or an option is malformed or cannot work; the message names it, and what is allowed."""


class WrongStore(Permanent):
    """The store is not the one expected. Never go on as if it were empty: its state is elsewhere or gone."""

    def __init__(self, message: str, *, found: str | None = None) -> None:
        super().__init__(message)
        self.found = found
        """If ``open`` raises it: the identity of the store at the address, ``None`` if the store is empty."""


class EmptyStore(WrongStore):
    """A store was expected, and there is none at the address: it was wiped, or the address is wrong."""


class DeletedStore(WrongStore):
    """The store that was opened is no longer at its address."""


class DamagedStore(WrongStore):
    """A store is there, and what it contains cannot be read: its files are damaged or were replaced."""


class CannotMove(Permanent):
    """A move to another store was given up; the message says why. The old store is in charge as before."""
