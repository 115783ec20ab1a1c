"""Pulls metadata changes from the controller and applies them on this broker.

The controller holds each FetchMetadata request open until there is a change, so a change arrives within a network round
trip. Each request also shows that this broker is alive. Changes are applied strictly in order. A new controller's first
changes lead from its last image of an earlier term to its own first one: a broker with the same last image applies
them. After a gap, or with another image, the response contains a whole image. A broker rejects an image of an earlier
term than the one it knows: it comes from a controller that does not know that it has been replaced.

The death of a broker changes thousands of partitions, in many deltas. Each delta is applied in a separate turn of the
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_from_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term, contains
from parley.broker.runtime.turns import next_turn
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest, FetchMetadataResponse
from parley.protocol.sentinels import NO_EPOCH


async def pull(
    client: Client,
    metadata: Metadata,
    *,
    broker_id: int,
    broker_epoch: int,
    is_whole: bool,
    max_wait_ms: int,
    timeout_s: float,
) -> None:
    """Send one FetchMetadata request to the controller, and apply the response.

    Also returns if nothing has changed for ``max_wait_ms``. With ``is_whole`` the controller sends a whole image. Send
    such a request after CORRUPT_MESSAGE.

    Raises KafkaError: NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE or REQUEST_TIMED_OUT if the controller does not respond;
    NOT_CONTROLLER if the other broker is not the controller any more; STALE_BROKER_EPOCH if this broker must register
    again; CORRUPT_MESSAGE if the response, or the rest of it, does not fit the current image.
    """
    image = metadata.image
    response: FetchMetadataResponse = await client.send(
        FetchMetadataRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            controller_epoch=NO_EPOCH if is_whole else image.controller_epoch,
            version=-1 if is_whole else image.version,
            max_wait_ms=max_wait_ms,
        ),
        timeout=timeout_s,
    )
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
    if metadata.image is image:  # otherwise this broker has meanwhile become the controller
        await apply(metadata, response)


async def apply(metadata: Metadata, response: FetchMetadataResponse) -> None:
    """Apply a response that has no error code. Stop if this broker becomes the controller in the meantime.

    Raises CORRUPT_MESSAGE if the response, or the rest of it, does not fit the image, and NOT_CONTROLLER if the
    response is from an earlier term than the image.
    """
    epoch = response.controller_epoch
    if epoch < metadata.image.controller_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"The term of controller epoch {epoch} is over.")
    earlier = [Term(term.controller_epoch, term.controller_id, term.version) for term in response.earlier_terms]
    if response.is_whole:
        await _replace(metadata, response, earlier)
        return
    image = metadata.image
    for number, step in enumerate(response.steps):
        if number:
            await next_turn()
            if metadata.image is not image:
                return
        delta = _delta(epoch, step)
        _check_follows(Term(epoch, response.controller_id, delta.version), image.term, earlier)
        metadata.apply(delta)
        image = metadata.image


def _check_follows(after: Term, before: Term, earlier_terms: Sequence[Term]) -> None:
    """Raise CORRUPT_MESSAGE unless a delta to ``after`` may be applied to ``before``: it is the next version of the
    same term, or starts a later term that continues the history of ``before``."""
    if after.epoch > before.epoch:
        follows = contains(earlier_terms, before)
    else:
        follows = after == before._replace(version=before.version + 1)
    if not follows:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Version {after.version} does not follow {before.version}.")


def _delta(epoch: int, step: FetchMetadataResponse.Step) -> Delta:
    try:
        return Delta(epoch, step.version, changes_from_bytes(step.changes))
    except ValueError as wrong:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(wrong)) from wrong


async def _replace(metadata: Metadata, response: FetchMetadataResponse, earlier_terms: Sequence[Term]) -> None:
    """Replace the image with a whole image from the controller and the changes after it. Subscribers receive the
    difference between the two images. They do not see the whole image alone, which may be older than the state that
    this broker knew before its restart.

    ``earlier_terms`` are the terms before the new image's term, as far back as the store lists them. Do nothing if this
    broker becomes the controller in the meantime.
    """
    before, epoch = metadata.image, response.controller_epoch
    image = MetadataImage(before.cluster_id)
    for number, step in enumerate(response.steps):
        delta = _delta(epoch, step)
        if number:
            await next_turn()
            _check_follows(Term(epoch, response.controller_id, delta.version), image.term, ())
        image = image.apply(delta)
    if response.steps and metadata.image is before:
        continues = contains((*earlier_terms, image.term), before.term)
        metadata.replace(image, Delta(epoch, image.version, image.changes_since(before), continues))
