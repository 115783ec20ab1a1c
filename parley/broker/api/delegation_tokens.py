"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (KIP-48, KIP-373).

The broker that receives a request makes the decision, because it knows the client. The controller stores the token
(StoreDelegationToken, an API that only Parley has), unless the stored token changed in the meantime. The response is
sent when the receiving broker has applied the change.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_bytes
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.controller.controller import Controller
from parley.broker.controller.delegation_tokens import store_token
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import to_json, token_from_json, token_to_json
from parley.broker.network.peers import Peers
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.authorization import Authorization
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.delegation_tokens.token_decisions import (
    TokenLimits,
    check_may_ask,
    expiring,
    new_token,
    renewed,
)
from parley.broker.security.login_credentials import token_hmac, token_key
from parley.broker.security.operations import Operation
from parley.broker.security.principal import USER, Principal
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import StoreDelegationTokenRequest, StoreDelegationTokenResponse
from parley.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

ELECTED_MAX_S: Final = 5.0
"""The maximum time, in seconds, that a request waits for a new controller to be elected."""
APPLIED_MAX_S: Final = 1.0
"""The maximum time, in seconds, that the response to a change waits for this broker to apply it."""
ID_BYTES: Final = 16
REQUESTER_SINCE: Final = 3
"""The first version of the token APIs whose responses contain the principal that requested the token (KIP-373)."""

_DescribedToken = DescribeDelegationTokenResponse.DescribedDelegationToken


class DelegationTokensApi:
    """Handlers of the delegation token APIs."""

    def __init__(
        self,
        controller: Controller,
        metadata: Metadata,
        authorization: Authorization,
        publisher: MetadataPublisher,
        peers: Peers,
        config: BrokerConfig,
        wall_ms: Callable[[], int],
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._authorization = authorization
        self._publisher = publisher
        self._peers = peers
        self._key = token_key(config)
        self._limits = TokenLimits(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        self._max_per_requester = config.delegation_token_max_per_requester
        self._wall_ms = wall_ms
        self._secrets: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def routes(self) -> dict[int, Handler]:
        return {
            CreateDelegationTokenRequest.API_KEY: self.create,
            RenewDelegationTokenRequest.API_KEY: self.renew,
            ExpireDelegationTokenRequest.API_KEY: self.expire,
            DescribeDelegationTokenRequest.API_KEY: self.describe,
            StoreDelegationTokenRequest.API_KEY: self.store,
        }

    # --- Requests of clients ---

    async def create(
        self, context: RequestContext, request: CreateDelegationTokenRequest
    ) -> CreateDelegationTokenResponse:
        """Create a token for the client or, if the client has CreateTokens on it, for another owner. After an error,
        the response contains an error code, and -1 for all times."""
        requester = owner = context.principal
        if request.owner_principal_name:
            owner = Principal(request.owner_principal_type or USER, request.owner_principal_name)
        try:
            key = self._checked_key(context)
            if owner != requester and not self._authorization.may(
                context, Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
            ):
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
            renewers = [Principal(each.principal_type, each.principal_name) for each in request.renewers]
            token_id = _new_id()
            now_ms = self._wall_ms()
            token = new_token(token_id, owner, requester, renewers, request.max_lifetime_ms, now_ms, self._limits)
            await self._store(token_id, None, token)
        except KafkaError as error:
            return _created(context.api_version, owner, requester, None, b"", error.code)
        hmac = token_hmac(key, token_id)
        return _created(context.api_version, owner, requester, token, hmac, ErrorCode.NONE)

    async def renew(
        self, context: RequestContext, request: RenewDelegationTokenRequest
    ) -> RenewDelegationTokenResponse:
        """Extend the expiry of a token. Returns the new time of expiry, or an error code and -1."""
        try:
            self._checked_key(context)
            before = self._find(bytes(request.hmac))
            after = renewed(before, context.principal, request.renew_period_ms, self._wall_ms(), self._limits)
            await self._store(after.token_id, before, after)
        except KafkaError as error:
            return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
        return RenewDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=after.expires_ms)

    async def expire(
        self, context: RequestContext, request: ExpireDelegationTokenRequest
    ) -> ExpireDelegationTokenResponse:
        """Make a token expire earlier, or remove it. Returns the new time of expiry, or an error code and -1."""
        try:
            self._checked_key(context)
            before = self._find(bytes(request.hmac))
            after, expires_ms = expiring(before, context.principal, request.expiry_time_period_ms, self._wall_ms())
            assert before is not None
            await self._store(before.token_id, before, after)
        except KafkaError as error:
            return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
        return ExpireDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=expires_ms)

    def describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> DescribeDelegationTokenResponse:
        """Return the tokens that the client may see. If the request names principals, return only the tokens whose
        owner, requester or renewer is one of them. After an error, the response contains only an error code."""
        try:
            key = self._checked_key(context)
        except KafkaError as error:
            return DescribeDelegationTokenResponse(error_code=error.code, tokens=[])
        owners = request.owners
        wanted = None if owners is None else {Principal(each.principal_type, each.principal_name) for each in owners}
        return DescribeDelegationTokenResponse(
            error_code=ErrorCode.NONE,
            tokens=[
                _described(context.api_version, token, token_hmac(key, token.token_id))
                for token in self._metadata.image.delegation_tokens.values()
                if (wanted is None or token.concerns_any(wanted)) and self._may_see(context, token)
            ],
        )

    def _may_see(self, context: RequestContext, token: DelegationToken) -> bool:
        may = self._authorization.may
        return (
            token.concerns(context.principal)
            or may(context, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, is_probe=True)
            or may(context, Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner), is_probe=True)
        )

    def _checked_key(self, context: RequestContext) -> bytes:
        check_may_ask(context.session, has_key=self._key is not None)
        assert self._key is not None
        return self._key

    def _find(self, hmac: bytes) -> DelegationToken | None:
        """Return the token with this HMAC, or None if it does not exist."""
        tokens = self._metadata.image.delegation_tokens
        if self._secrets.keys() != tokens.keys():
            assert self._key is not None
            self._secrets = {each: self._secrets.get(each) or token_hmac(self._key, each) for each in tokens}
            self._ids = {secret: token_id for token_id, secret in self._secrets.items()}
        return tokens.get(self._ids.get(hmac, ""))

    # --- What the controller stores ---

    async def _store(self, token_id: str, before: DelegationToken | None, after: DelegationToken | None) -> None:
        """Have the controller replace the token ``before`` with ``after``. ``before`` is None if the token is new, and
        ``after`` is None if it is removed.

        Returns when this broker has applied the change, or after ``APPLIED_MAX_S``. Raises KafkaError if the stored
        token is no longer ``before``, or if no controller can be reached.
        """

        def local() -> Awaitable[StoreDelegationTokenResponse] | None:
            return self._replace(token_id, before, after) if self._controller.is_active else None

        request = StoreDelegationTokenRequest(token_id=token_id, before=_encoded(before), after=_encoded(after))
        response: StoreDelegationTokenResponse = await self._peers.ask_elected_controller(
            request, local, patience_s=ELECTED_MAX_S
        )
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
        await self._metadata.until(lambda image: image.delegation_tokens.get(token_id) == after, APPLIED_MAX_S)

    async def store(
        self, context: RequestContext, request: StoreDelegationTokenRequest
    ) -> StoreDelegationTokenResponse:
        """Store another broker's change to a token: its creation, a new expiry, or its removal.

        Errors are in the response, for example DELEGATION_TOKEN_NOT_FOUND if the stored token has changed. Raises
        KafkaError (INVALID_REQUEST) if a token in the request is malformed.
        """
        return await self._replace(request.token_id, _decoded(request.before), _decoded(request.after))

    async def _replace(
        self, token_id: str, before: DelegationToken | None, after: DelegationToken | None
    ) -> StoreDelegationTokenResponse:
        try:
            decide = partial(
                store_token, token_id=token_id, before=before, after=after, max_per_requester=self._max_per_requester
            )
            await self._controller.submit(decide)
            await self._publisher.until_applied(APPLIED_MAX_S)
        except KafkaError as error:
            return StoreDelegationTokenResponse(error_code=error.code, error_message=error.message)
        return StoreDelegationTokenResponse()


def _new_id() -> str:
    """Return a random id in Kafka's format. It has no leading dash, because command-line tools would treat it as an
    option."""
    while True:
        text = urlsafe_b64encode(token_bytes(ID_BYTES)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _encoded(token: DelegationToken | None) -> bytes | None:
    return None if token is None else to_json(token_to_json(token))


def _decoded(data: bytes | None) -> DelegationToken | None:
    """Decode a token; None stays None. Raises KafkaError (INVALID_REQUEST) if the bytes are not a token."""
    if data is None:
        return None
    try:
        return token_from_json(json.loads(bytes(data)))
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Malformed delegation token.") from wrong


def _created(
    version: int, owner: Principal, requester: Principal, token: DelegationToken | None, hmac: bytes, code: ErrorCode
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind if version >= REQUESTER_SINCE else "",
        token_requester_principal_name=requester.name if version >= REQUESTER_SINCE else "",
        issue_timestamp_ms=-1 if token is None else token.issued_ms,
        expiry_timestamp_ms=-1 if token is None else token.expires_ms,
        max_timestamp_ms=-1 if token is None else token.max_ms,
        token_id="" if token is None else token.token_id,
        hmac=hmac,
    )


def _described(version: int, token: DelegationToken, hmac: bytes) -> _DescribedToken:
    make = DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer
    return _DescribedToken(
        principal_type=token.owner.kind,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.kind if version >= REQUESTER_SINCE else "",
        token_requester_principal_name=token.requester.name if version >= REQUESTER_SINCE else "",
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac,
        renewers=[make(principal_type=each.kind, principal_name=each.name) for each in token.renewers],
    )
