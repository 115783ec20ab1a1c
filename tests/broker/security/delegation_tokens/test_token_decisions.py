"""Decisions about delegation tokens, by Kafka's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.security.delegation_tokens.token_decisions import (
    TokenLimits,
    check_may_ask,
    expiring,
    is_expired,
    new_token,
    renewed,
)
from parley.broker.security.principal import ANONYMOUS, Principal, user
from parley.broker.security.session import ClientSession
from parley.protocol.errors import ErrorCode, KafkaError

ALICE, BOB, CAROL = user("alice"), user("bob"), user("carol")
LIMITS = TokenLimits(lifetime_ms=1000, expiry_ms=100)
TOKEN = new_token("id", ALICE, CAROL, [BOB], -1, 50, LIMITS)


def test_a_new_token_expires_by_the_configuration_or_earlier() -> None:
    assert (TOKEN.issued_ms, TOKEN.expires_ms, TOKEN.max_ms) == (50, 150, 1050)
    short = new_token("id", ALICE, ALICE, [], 10, 50, LIMITS)
    assert (short.expires_ms, short.max_ms) == (60, 60)
    assert new_token("id", ALICE, ALICE, [], 5000, 50, LIMITS).max_ms == 1050


@pytest.mark.parametrize("renewers", [[Principal("Group", "g")], [Principal("Group", "")], [Principal("", "")] * 101])
def test_a_renewer_is_a_user(renewers: list[Principal]) -> None:
    with pytest.raises(KafkaError) as refused:
        new_token("id", ALICE, ALICE, renewers, -1, 50, LIMITS)
    assert refused.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize(
    ("owner", "renewers"),
    [(ALICE, [BOB] * 101), (ALICE, [user("")]), (ALICE, [user("b" * 1025)]), (user("a" * 1025), [])],
)
def test_a_token_is_small(owner: Principal, renewers: list[Principal]) -> None:
    with pytest.raises(KafkaError) as refused:
        new_token("id", owner, ALICE, renewers, -1, 50, LIMITS)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@given(st.sampled_from([ALICE, BOB, CAROL]), st.integers(-5, 2000), st.integers(50, 1200))
def test_a_renewal_never_passes_the_maximum(principal: Principal, period_ms: int, now_ms: int) -> None:
    token = replace(TOKEN, expires_ms=1050)
    if now_ms > 1050 or principal == CAROL:
        with pytest.raises(KafkaError) as refused:
            renewed(token, principal, period_ms, now_ms, LIMITS)
        expired, mismatch = ErrorCode.DELEGATION_TOKEN_EXPIRED, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert refused.value.code is (expired if now_ms > 1050 else mismatch)
        return
    after = renewed(token, principal, period_ms, now_ms, LIMITS)
    assert after.expires_ms == min(1050, now_ms + (min(period_ms, 100) if period_ms > 0 else 100))


def test_a_negative_period_removes_the_token_even_if_it_has_expired() -> None:
    assert expiring(TOKEN, BOB, -1, 5000) == (None, 5000)
    after, expires_ms = expiring(TOKEN, ALICE, 20, 60)
    assert after == replace(TOKEN, expires_ms=80)
    assert expires_ms == 80
    assert is_expired(replace(TOKEN, expires_ms=80), 81)


@pytest.mark.parametrize(
    ("principal", "period_ms", "now_ms", "code"),
    [
        (CAROL, -1, 60, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (ALICE, 20, 151, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_expiring_is_refused(principal: Principal, period_ms: int, now_ms: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        expiring(TOKEN, principal, period_ms, now_ms)
    assert refused.value.code is code


def test_an_unknown_token_is_not_found() -> None:
    with pytest.raises(KafkaError) as refused:
        renewed(None, ALICE, -1, 60, LIMITS)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with pytest.raises(KafkaError) as refused:
        expiring(None, ALICE, -1, 60)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_only_authenticated_clients_may_ask_and_not_those_with_a_token() -> None:
    alice = ClientSession(ALICE, "h", "L", "PLAIN")
    check_may_ask(alice, has_key=True)
    for client in (ClientSession(ANONYMOUS, "h", "L"), replace(alice, authenticated_by_token=True)):
        with pytest.raises(KafkaError) as refused:
            check_may_ask(client, has_key=True)
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    with pytest.raises(KafkaError) as refused:
        check_may_ask(alice, has_key=False)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
