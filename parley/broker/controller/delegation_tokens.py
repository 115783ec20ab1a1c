"""Decisions of the controller about delegation tokens: store what a broker has decided, and remove expired tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decision
from parley.broker.metadata.changes import DelegationTokenReplaced
from parley.broker.metadata.feature_support import SECURITY, check_all_support
from parley.broker.metadata.image import MetadataImage
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.delegation_tokens.token_decisions import is_expired
from parley.protocol.errors import ErrorCode, KafkaError

REMOVED_MAX = 1000
"""The maximum number of tokens that one decision removes, so that later decisions do not wait long. This is Kafka's
limit."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The form of token ids. They are part of the store's keys."""


def store_token(
    image: MetadataImage,
    token_id: str,
    before: DelegationToken | None,
    after: DelegationToken | None,
    max_per_requester: int,
) -> Decision[None]:
    """Create, change or remove a token, if the stored token is still ``before``.

    If ``before`` is None, no token with this id may exist; if ``after`` is None, the token is removed. Raises
    POLICY_VIOLATION if the principal that creates the token already has ``max_per_requester`` tokens,
    UNSUPPORTED_VERSION if a broker of the cluster cannot read tokens, and INVALID_REQUEST for a malformed id. Raises
    DELEGATION_TOKEN_NOT_FOUND if the token changed in the meantime: the client can repeat its request.
    """
    check_all_support(SECURITY, image)
    if not _ID.fullmatch(token_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Malformed token id: no broker creates tokens with such an id.")
    if image.delegation_tokens.get(token_id) != before:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "The token was changed concurrently. Try again.")
    if before is None and after is not None:
        present = sum(token.requester == after.requester for token in image.delegation_tokens.values())
        if present >= max_per_requester:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{after.requester} already has {present} delegation tokens (delegation.token.max.per.requester).",
            )
    return Decision((DelegationTokenReplaced(token_id, after),), None)


def remove_expired(image: MetadataImage, now_ms: int) -> Decision[bool]:
    """Remove expired tokens, at most ``REMOVED_MAX``. Returns True if there are more of them."""
    expired = [token_id for token_id, token in image.delegation_tokens.items() if is_expired(token, now_ms)]
    changes = tuple(DelegationTokenReplaced(token_id, None) for token_id in expired[:REMOVED_MAX])
    return Decision(changes, len(expired) > REMOVED_MAX)


async def remove_expired_periodically(
    controller: Controller, config: Callable[[], BrokerConfig], wall_ms: Callable[[], int]
) -> None:
    """Remove expired tokens every ``delegation.token.expiry.check.interval.ms``.

    Runs until it is cancelled. Raises NOT_CONTROLLER when the term ends.
    """
    while True:
        await asyncio.sleep(config().delegation_token_expiry_check_interval_ms / 1000)
        while await controller.submit(partial(remove_expired, now_ms=wall_ms()), waits_for_store=True):
            pass
