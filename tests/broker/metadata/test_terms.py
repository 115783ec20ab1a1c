"""Comparison of the controllers' terms in the store with the metadata that brokers have seen."""

from __future__ import annotations

import pytest

from parley.broker.metadata.terms import (
    NO_TERM,
    TERMS_KEPT,
    Term,
    contains,
    contradicts,
    terms_from_bytes,
    terms_to_bytes,
    with_term,
)

TERMS = (Term(5, 1, 40), Term(6, 2, 7), Term(9, 1, 0))


@pytest.mark.parametrize(
    ("seen", "is_contradiction"),
    [
        pytest.param(NO_TERM, False, id="a new broker"),
        pytest.param(Term(4, 3, 900), False, id="before the first term that the store remembers"),
        pytest.param(Term(5, 1, 40), False, id="the end of a term"),
        pytest.param(Term(5, 1, 39), False, id="the middle of a term"),
        pytest.param(Term(9, 1, 0), False, id="the present state"),
        pytest.param(Term(5, 1, 41), True, id="a later version than the store has of that term"),
        pytest.param(Term(6, 1, 3), True, id="another controller's term of the same epoch"),
        pytest.param(Term(7, 2, 0), True, id="a term that the store skipped"),
        pytest.param(Term(10, 2, 0), True, id="a later term"),
    ],
)
def test_a_broker_contradicts_a_store_that_lacks_epochs_the_broker_has_seen(seen: Term, is_contradiction: bool) -> None:
    assert contradicts(TERMS, seen) is is_contradiction
    assert contains(TERMS, seen) is (not is_contradiction and seen.epoch >= TERMS[0].epoch)
    assert not contradicts((), seen), "a store written before there were terms"
    assert not contains((), seen)


def test_a_term_replaces_its_own_entry_and_all_later_ones() -> None:
    assert with_term(TERMS, Term(9, 1, 3)) == (*TERMS[:2], Term(9, 1, 3))
    assert with_term(TERMS, Term(6, 3, 0)) == (TERMS[0], Term(6, 3, 0))
    many: tuple[Term, ...] = ()
    for epoch in range(TERMS_KEPT + 10):
        many = with_term(many, Term(epoch, 1, 0))
    assert (len(many), many[0].epoch) == (TERMS_KEPT, 10)


def test_terms_are_stored_as_they_are() -> None:
    assert terms_to_bytes(TERMS) == b"[[5,1,40],[6,2,7],[9,1,0]]"
    assert terms_from_bytes(terms_to_bytes(TERMS)) == TERMS
