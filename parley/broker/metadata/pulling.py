"""Follows the controller: pulls what changes in the metadata, and applies it here as the controller did there.

One question after another is held open by the controller until there is news, so a change arrives within the time of
the network; between two of them the broker is known to live. What comes is applied strictly in order: a gap, or another
controller's term, is answered with a whole image. An image of an earlier term than the one known is refused: it comes
from a controller that has been replaced and does not know it.
"""

from __future__ import annotations

from parley.broker.metadata.changes import Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import changes_from_bytes
from parley.broker.metadata.image import MetadataImage
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
    """Ask the controller once and apply its answer; returns when nothing has changed for ``max_wait_ms``, too.

    With ``is_whole`` the answer is a whole image: what to ask after CORRUPT_MESSAGE.

    Raises KafkaError: NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE and REQUEST_TIMED_OUT where it does not answer,
    NOT_CONTROLLER, STALE_BROKER_EPOCH, and CORRUPT_MESSAGE where its answer makes no sense; nothing was applied then.
    """
    image = metadata.image
    answer: FetchMetadataResponse = await client.send(
        FetchMetadataRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            controller_epoch=NO_EPOCH if is_whole else image.controller_epoch,
            version=-1 if is_whole else image.version,
            max_wait_ms=max_wait_ms,
        ),
        timeout=timeout_s,
    )
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), answer.error_message or "")
    if metadata.image is image:  # else this broker has become the controller meanwhile, and knows better
        apply(metadata, answer)


def apply(metadata: Metadata, answer: FetchMetadataResponse) -> None:
    """Take over an answer without error. Raises CORRUPT_MESSAGE, and nothing is applied, where it does not fit."""
    epoch = answer.controller_epoch
    if epoch < metadata.image.controller_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"Controller epoch {epoch} is over.")
    try:
        deltas = [Delta(epoch, step.version, changes_from_bytes(step.changes)) for step in answer.steps]
    except ValueError as wrong:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(wrong)) from wrong
    if answer.is_snapshot:
        for delta in deltas:
            _replace(metadata, delta)
        return
    for delta in deltas:
        image = metadata.image
        if (epoch, delta.version) != (image.controller_epoch, image.version + 1):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Version {delta.version} does not follow {image.version}.")
        metadata.apply(delta)


def _replace(metadata: Metadata, whole: Delta) -> None:
    """Take over a whole image; subscribers hear what it changes."""
    before = metadata.image
    image = MetadataImage(before.cluster_id).apply(whole)
    metadata.replace(image, Delta(whole.controller_epoch, whole.version, image.changes_since(before)))
