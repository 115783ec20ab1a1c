"""The states of a login."""

from __future__ import annotations

import itertools

import pytest

from parley.broker.runtime.states import IllegalStep
from parley.broker.security.principal import ANONYMOUS, user
from parley.broker.security.sasl.login import (
    _STEPS,
    IllegalRequest,
    Login,
    LoginEvent,
    LoginRules,
    LoginState,
    UnsupportedMechanism,
)
from parley.broker.security.sasl.mechanism import Exchange, Identity, LoginRefused, Reply
from parley.broker.security.session import anonymous
from tests.broker.security.sasl.credentials import WALL_MS


class Scripted:
    """A mechanism whose exchanges take ``more``, then the name of the user; ``user@ms`` expires after that time."""

    def begin(self) -> Exchange:
        return self

    def close(self) -> None:
        """Nothing to release."""

    user = "claimed"

    def evaluate(self, token: bytes) -> Reply:
        if token == b"more":
            return Reply(b"go on")
        if token == b"no":
            raise LoginRefused("wrong")
        name, _, lifetime = token.decode().partition("@")
        return Reply(b"done", Identity(user(name), expires_at_ms=WALL_MS + int(lifetime) if lifetime else None))


def login(max_reauth_ms: int = 0) -> Login:
    rules = LoginRules(
        {"A": Scripted(), "B": Scripted()}, {"A": max_reauth_ms}, receive_bytes_max=1000, refusal_delay_s=0.1
    )
    return Login(rules, anonymous("127.0.0.1", "SASL"))


def token(of: Login, text: str, now: float = 0.0) -> int:
    reply = of.evaluate(text.encode())
    assert isinstance(reply, Reply)
    return of.replied(reply, now=now, wall_ms=WALL_MS)


def logged_in(text: str = "alice", max_reauth_ms: int = 0) -> Login:
    made = login(max_reauth_ms)
    made.handshake("A", 1, 0.0)
    token(made, text)
    return made


def test_a_login_from_versions_to_tokens() -> None:
    one = login()
    completed: list[bool] = []
    one.on_complete = completed.append
    assert one.may_ask_for_versions
    one.versions()
    assert not one.may_ask_for_versions
    assert one.handshake("A", 1, 0.0)
    assert one.state is LoginState.TOKENS
    assert token(one, "more") == 0
    assert (one.state, one.user, one.mechanism) == (LoginState.TOKENS, "claimed", "A")
    assert one.session.principal == ANONYMOUS
    assert token(one, "alice") == 0
    assert one.state is LoginState.COMPLETE
    assert (one.session.principal, one.session.mechanism, one.session.expires_at) == (user("alice"), "A", None)
    assert completed == [False]
    assert not one.has_expired(1e9)


def test_version_0_of_the_handshake_announces_raw_tokens() -> None:
    one = login()
    one.handshake("B", 0, 0.0)
    assert one.state is LoginState.RAW_TOKENS
    token(one, "more")
    assert one.state is LoginState.RAW_TOKENS
    token(one, "alice")
    assert one.state is LoginState.COMPLETE


def test_a_renewal_takes_the_rules_of_the_moment() -> None:
    one = logged_in(max_reauth_ms=5000)
    now = [LoginRules({"B": Scripted()}, {}, 1000, 0.1)]
    one._current = lambda: now[0]
    with pytest.raises(UnsupportedMechanism):
        one.handshake("A", 1, 4.0)


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(UnsupportedMechanism, match="'C'"):
        login().handshake("C", 1, 0.0)


def test_requests_out_of_order_are_refused() -> None:
    with pytest.raises(IllegalRequest):
        login().evaluate(b"alice")
    one = login()
    one.handshake("A", 1, 0.0)
    with pytest.raises(IllegalRequest):
        one.handshake("A", 1, 0.0)


@pytest.mark.parametrize(
    ("text", "max_reauth_ms", "lifetime_ms"),
    [
        ("alice", 0, 0),
        ("alice", 5000, 5000),
        ("alice@300", 0, 300),
        ("alice@300", 5000, 300),
        ("alice@9000", 5000, 5000),
    ],
)
def test_a_session_ends_with_the_credential_or_the_configured_time(
    text: str, max_reauth_ms: int, lifetime_ms: int
) -> None:
    one = login(max_reauth_ms)
    one.handshake("A", 1, 0.0)
    assert token(one, text, now=100.0) == lifetime_ms
    assert one.session.expires_at == (100.0 + lifetime_ms / 1000 if lifetime_ms else None)


def test_a_credential_that_has_expired_meanwhile_ends_the_session_at_once() -> None:
    one = logged_in("alice@-5")
    assert one.has_expired(0.002)


def test_a_session_that_expires_is_renewed() -> None:
    one = logged_in(max_reauth_ms=5000)
    completed: list[bool] = []
    one.on_complete = completed.append
    assert not one.has_expired(5.0)
    assert one.has_expired(5.1)
    assert one.is_reauthentication
    assert one.handshake("A", 1, 4.0)
    token(one, "more")
    token(one, "alice", now=4.5)
    assert one.session.expires_at == 9.5
    assert completed == [True]
    assert not one.handshake("A", 1, 4.9), "at most one a second"
    assert one.handshake("A", 1, 5.1)


def test_a_session_that_does_not_expire_is_not_renewed() -> None:
    assert not logged_in().handshake("A", 1, 0.0)


def test_a_renewal_for_another_user_is_refused() -> None:
    one = logged_in(max_reauth_ms=5000)
    one.handshake("A", 1, 4.0)
    reply = one.evaluate(b"bob")
    assert isinstance(reply, Reply)
    with pytest.raises(LoginRefused) as refused:
        one.replied(reply, now=4.0, wall_ms=WALL_MS)
    assert refused.value.client_message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert one.session.principal == user("alice")


def test_a_renewal_with_another_mechanism_is_refused_with_its_token() -> None:
    one = logged_in(max_reauth_ms=5000)
    assert one.handshake("B", 1, 4.0)
    with pytest.raises(LoginRefused) as refused:
        one.evaluate(b"alice")
    assert refused.value.client_message == (
        "SASL mechanism 'B' requested by client is not supported for re-authentication of mechanism 'A'"
    )


def test_a_refusal_is_final_and_reported() -> None:
    one = login()
    reasons: list[str] = []
    one.on_refused = reasons.append
    one.refuse("why")
    assert (one.state, reasons) == (LoginState.REFUSED, ["why"])
    with pytest.raises(IllegalStep):
        one.refuse("again")


def test_every_step_that_the_table_lacks_raises() -> None:
    for state, event in itertools.product(LoginState, LoginEvent):
        one = login()
        one.state = state
        if (state, event) in _STEPS:
            one._step(event)
            assert one.state is _STEPS[state, event]
        else:
            with pytest.raises(IllegalStep):
                one._step(event)
    assert LoginState.REFUSED not in {state for state, _ in _STEPS}
