"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), with the users in the coordination store and with delegation tokens.

The client proves that it knows the password without sending it. An unknown user gets a decoy credential, and is
rejected after the same messages and the same amount of work as with a wrong password. A token login (KIP-48) uses the
extension ``tokenauth=true``, the token id as its user name, and the token's HMAC as its password.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64decode, b64encode
from functools import partial

from parley.broker.security.principal import user
from parley.broker.security.sasl.credential_source import CredentialSource, TokenLogin
from parley.broker.security.sasl.mechanism import (
    Exchange,
    Identity,
    LoginRefused,
    MakeMechanism,
    Mechanism,
    MechanismSetup,
    Reply,
)
from parley.light_dataclasses import dataclass
from parley.protocol.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    decode_name,
    is_proof_of,
    server_signature,
)

_NAME = r"[^\x00,]*"
_NONCE = r"[\x21-\x2b\x2d-\x7e]{1,1024}"  # printable, without the comma
_EXTENSIONS = r"(?:,[A-Za-z]+=[^\x00,]+)*"
_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authzid>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<ext>{_EXTENSIONS}))"
)
_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_NONCE_BYTES = 24
_MESSAGE_BYTES_MAX = 16 << 10
"""The maximum size of a message. It is limited because the first message is kept until the login ends."""


class ScramMechanism:
    """The SCRAM mechanism with one of its hash functions."""

    def __init__(self, name: str, credentials: CredentialSource) -> None:
        self._name = name
        self._credentials = credentials

    def begin(self) -> Exchange:
        return ScramExchange(self._name, self._credentials)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True, slots=True)
class _Challenge:
    """The state after the first message and its reply. ``is_known`` is False if the credential is a decoy."""

    credential: ScramCredential
    is_known: bool
    token: TokenLogin | None
    nonce: str
    binding: str
    messages: str
    """The client's first message without its header, followed by the reply, as covered by the signatures."""


class ScramExchange:
    """One login, in which the client sends two messages."""

    def __init__(self, mechanism: str, credentials: CredentialSource) -> None:
        self.user = ""
        self._mechanism = mechanism
        self._credentials = credentials
        self._challenge: _Challenge | None = None

    def evaluate(self, token: bytes) -> Reply:
        if len(token) > _MESSAGE_BYTES_MAX:
            raise LoginRefused(f"a message of more than {_MESSAGE_BYTES_MAX} bytes")
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise LoginRefused("the message is not UTF-8") from None
        return self._first(message) if self._challenge is None else self._final(message, self._challenge)

    def _first(self, message: str) -> Reply:
        match = _FIRST.fullmatch(message)
        if match is None:
            raise LoginRefused("the first message is malformed, or requests channel binding")
        try:
            self.user = decode_name(match["name"])
            authorization_id = decode_name(match["authzid"] or "")
        except ValueError as error:
            raise LoginRefused(str(error)) from None
        if authorization_id not in ("", self.user):
            raise LoginRefused(
                "the authorization id differs from the user name",
                client_message="Authentication failed: Client requested an authorization id that is different from "
                "username",
            )
        extensions = dict(each.split("=", 1) for each in match["ext"].split(",")[1:])
        token = known = None
        is_token = extensions.get("tokenauth", "").lower() == "true"
        decoy = self._credentials.decoy(
            self._mechanism, self.user, is_token=is_token
        )  # always computed, so that the time does not differ
        if is_token:
            token = self._credentials.token(self._mechanism, self.user)
            known = token.credential if token is not None else None
        else:
            known = self._credentials.scram(self._mechanism, self.user)
        credential = known or decoy
        nonce = match["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        reply = f"r={nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        binding = b64encode(match["gs2"].encode()).decode()
        messages = f"{match['bare']},{reply}"
        self._challenge = _Challenge(credential, known is not None, token, nonce, binding, messages)
        return Reply(reply.encode())

    def _final(self, message: str, challenge: _Challenge) -> Reply:
        match = _FINAL.fullmatch(message)
        if match is None:
            raise LoginRefused("the final message is malformed")
        if match["nonce"] != challenge.nonce or match["binding"] != challenge.binding:
            raise LoginRefused(
                "the final message does not match the first message, as from librdkafka before 2.6.1 (older kcat)"
            )
        try:
            proof = b64decode(match["proof"], validate=True)
        except ValueError:
            raise LoginRefused("the proof is not base64") from None
        auth_message = f"{challenge.messages},{match['bare']}".encode()
        credential = challenge.credential
        is_proven = is_proof_of(self._mechanism, credential, auth_message, proof)
        if not is_proven or not challenge.is_known:
            raise LoginRefused("wrong user or password")
        if credential.iterations < ITERATIONS_MIN:
            raise LoginRefused(
                f"the stored credential has fewer than {ITERATIONS_MIN} iterations: set the password again"
            )
        signature = b64encode(server_signature(self._mechanism, credential.server_key, auth_message))
        return Reply(b"v=" + signature, self._identity(challenge.token))

    def _identity(self, token: TokenLogin | None) -> Identity:
        if token is None:
            return Identity(user(self.user))
        return Identity(token.owner, authenticated_by_token=True, expires_at_ms=token.expires_at_ms)


def _make(name: str, setup: MechanismSetup) -> Mechanism:
    return ScramMechanism(name, setup.credentials)


make_sha_256: MakeMechanism = partial(_make, "SCRAM-SHA-256")
make_sha_512: MakeMechanism = partial(_make, "SCRAM-SHA-512")
