"""DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554): the users that log in with SCRAM.

Responses never contain a credential, only the mechanisms and the iterations.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from secrets import token_bytes

from parley.broker.controller.controller import Controller
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.scram_users import (
    MECHANISMS,
    SECRET_BYTES,
    ScramAlteration,
    ScramDeletion,
    ScramUpsertion,
    alter_scram_users,
)
from parley.broker.metadata.current import Metadata
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

APPLIED_MAX_S = 1.0
"""The maximum time, in seconds, that the response to a change waits for brokers that have not applied it yet."""

_NUMBERS = {name: number for number, name in MECHANISMS.items()}
_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


class ScramUsersApi:
    """Handlers of requests about SCRAM credentials."""

    def __init__(self, controller: Controller, metadata: Metadata, publisher: MetadataPublisher) -> None:
        self._controller = controller
        self._metadata = metadata
        self._publisher = publisher

    def routes(self) -> dict[int, Handler]:
        return {
            DescribeUserScramCredentialsRequest.API_KEY: self.describe,
            AlterUserScramCredentialsRequest.API_KEY: self.alter,
        }

    def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Return the mechanisms, and their iterations, of the requested users, or of all users. A requested user
        without credentials gets RESOURCE_NOT_FOUND, and one that is named twice DUPLICATE_RESOURCE."""
        users = self._metadata.image.scram_users
        counts = Counter(user.name for user in request.users) if request.users else dict.fromkeys(sorted(users), 1)
        return DescribeUserScramCredentialsResponse(
            results=[self._described(name, count) for name, count in counts.items()]
        )

    def _described(self, user: str, count: int) -> _Described:
        if count > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            return _Described(
                user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=text, credential_infos=[]
            )
        credentials = self._metadata.image.scram_users.get(user)
        if credentials is None:
            text = f"Attempt to describe a user credential that does not exist: {user}"
            return _Described(
                user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=text, credential_infos=[]
            )
        make = DescribeUserScramCredentialsResponse.CredentialInfo
        return _Described(
            user=user,
            credential_infos=[
                make(mechanism=_NUMBERS[mechanism], iterations=credential.iterations)
                for mechanism, credential in sorted(credentials.items())
            ],
        )

    async def alter(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        """Set and delete credentials. The changes to each user succeed or fail independently. An error of the whole
        request, for example NOT_CONTROLLER, is returned for each user."""
        wanted: list[ScramAlteration] = [ScramDeletion(each.name, each.mechanism) for each in request.deletions]
        wanted += [
            ScramUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ]
        outcomes: dict[str, KafkaError | None]
        try:
            outcomes = await self._controller.submit(
                partial(alter_scram_users, wanted=wanted, new_secret=partial(token_bytes, SECRET_BYTES))
            )
            await self._publisher.until_applied(APPLIED_MAX_S)
        except KafkaError as error:
            outcomes = dict.fromkeys((each.user for each in wanted), error)
        result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        return AlterUserScramCredentialsResponse(
            results=[
                result(user=user)
                if error is None
                else result(user=user, error_code=error.code, error_message=error.message or error.code.message)
                for user, error in outcomes.items()
            ]
        )
