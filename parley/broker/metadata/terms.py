"""The terms of the controllers, from which the controller detects that the coordination store was rolled back.

The store lists the latest terms: the epoch and the id of each controller, and the last metadata version of its term.
Every write by a controller also updates the controller's entry in the list. Every broker records on disk the newest
metadata that it has applied, as a ``Term``. The store contained that metadata before any broker saw it. So if the list
contradicts what a broker has seen, the store has lost writes: it was rolled back to an older state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from parley.protocol.sentinels import NO_EPOCH

TERMS_KEPT = 50


class Term(NamedTuple):
    """The term of a controller, and a metadata version in it. Later metadata compares as greater."""

    epoch: int
    controller_id: int
    version: int


NO_TERM = Term(NO_EPOCH, -1, -1)


def contains(terms: Sequence[Term], seen: Term) -> bool:
    """Return True if metadata that a broker has seen certainly belongs to the history of these terms.

    False may also mean that the list no longer reaches back to that metadata.
    """
    known = next((term for term in terms if term.epoch == seen.epoch), None)
    return known is not None and known.controller_id == seen.controller_id and known.version >= seen.version


def contradicts(terms: Sequence[Term], seen: Term) -> bool:
    """Return True if a broker has seen metadata that the store with these terms does not contain.

    ``terms`` are in ascending order. Nothing is known about metadata before the first of them.
    """
    if not terms or seen.epoch < terms[0].epoch:
        return False
    return not contains(terms, seen)


def with_term(terms: Sequence[Term], term: Term) -> tuple[Term, ...]:
    """Return the terms with ``term`` appended. It replaces all entries of the same epoch or of later epochs.

    Only the last ``TERMS_KEPT`` terms are kept.
    """
    return (*(each for each in terms if each.epoch < term.epoch), term)[-TERMS_KEPT:]


def terms_to_bytes(terms: Sequence[Term]) -> bytes:
    """Encode the terms as they are stored."""
    return json.dumps(terms, separators=(",", ":")).encode()


def terms_from_bytes(data: bytes) -> tuple[Term, ...]:
    """Return the terms that ``terms_to_bytes`` encoded. Raises ValueError or TypeError for any other data."""
    return tuple(Term(*map(int, each)) for each in json.loads(data))
