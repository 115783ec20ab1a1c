"""Messages do not print their secrets."""

from __future__ import annotations

from typing import Any

import pytest

from parley.protocol.messages.delegation_tokens import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from parley.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse
from parley.protocol.messages.scram import AlterUserScramCredentialsRequest

SECRET = b"a secret"


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (SaslAuthenticateRequest, "auth_bytes"),
        (SaslAuthenticateResponse, "auth_bytes"),
        (AlterUserScramCredentialsRequest.ScramCredentialUpsertion, "salted_password"),
        (CreateDelegationTokenResponse, "hmac"),
        (DescribeDelegationTokenResponse.DescribedDelegationToken, "hmac"),
        (RenewDelegationTokenRequest, "hmac"),
        (ExpireDelegationTokenRequest, "hmac"),
    ],
)
def test_a_secret_is_hidden(kind: Any, field: str) -> None:
    message = kind.blank()
    setattr(message, field, SECRET)
    assert "a secret" not in repr([message])
    assert f"{field}=[hidden]" in repr(message)
