"""FetchMetadata: the other brokers fetch changes to the metadata from the controller."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from parley.broker.controller.metadata_publisher import MetadataProgress, MetadataPublisher
from parley.broker.membership.controller_silence import ControllerSilence
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.terms import Term
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest, FetchMetadataResponse
from parley.protocol.sentinels import NO_EPOCH

CROSSES_TERMS: Final = 2
"""The first version of FetchMetadata whose senders can apply changes across a change of controller: the changes between
the last image of a term and the first image of the next term."""
CHANGES_AFTER_WHOLE: Final = 3
"""The first version of FetchMetadata whose senders apply the changes that follow a whole image in the same response."""


class FetchMetadataApi:
    """Handler of FetchMetadata: responds with the changes immediately, or as soon as there are any."""

    def __init__(
        self, metadata: Metadata, publisher: MetadataPublisher, waiting: Purgatory, silence: ControllerSilence
    ) -> None:
        """``silence`` measures the time since this broker last heard from the controller."""
        self.metadata = metadata
        self._silence = silence
        self.publisher = publisher
        self._waiting = waiting

    def routes(self) -> dict[int, Handler]:
        return {FetchMetadataRequest.API_KEY: self.fetch_metadata}

    def fetch_metadata(
        self, context: RequestContext, request: FetchMetadataRequest
    ) -> FetchMetadataResponse | Awaitable[FetchMetadataResponse]:
        """Record that the sender is alive, and respond when there are changes or the maximum wait has expired.

        The error code is NOT_CONTROLLER if this broker is not the controller, or STALE_BROKER_EPOCH if the sender has
        registered again with a newer epoch.
        """
        publisher = self.publisher
        if not publisher.is_open:
            response = _failed(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER.message)
            response.controller_epoch = self._silence.epoch
            response.silent_ms = int(self._silence.duration_s * 1000)
            return response
        known = self.metadata.image.brokers.get(request.broker_id)
        if known is not None and known.epoch > request.broker_epoch >= 0:
            return _failed(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Broker {request.broker_id} is registered with epoch {known.epoch}, not {request.broker_epoch}.",
            )
        # A request with another epoch does not prove that the registered broker is alive.
        if known is not None and known.epoch == request.broker_epoch:
            publisher.note_fetch(
                request.broker_id,
                MetadataProgress(request.broker_epoch, context.received_at, request.controller_epoch, request.version),
            )
        publisher.keep_deltas()
        wait = _Wait(self, request, context.api_version)
        if publisher.has_update_since(request.controller_epoch, request.version):
            return self._with_whole(wait) if publisher.needs_whole(*wait.known) else wait.response()
        self._waiting.watch(wait, (publisher,), request.max_wait_ms / 1000)
        return wait

    async def _with_whole(self, wait: _Wait) -> FetchMetadataResponse:
        await self.publisher.encode_whole()
        return wait.response()


class _Wait(Delayed[FetchMetadataResponse]):
    """A request that waits for a change to the metadata."""

    def __init__(self, api: FetchMetadataApi, request: FetchMetadataRequest, version: int) -> None:
        super().__init__()
        self._api = api
        self._request = request
        self._version = version

    @property
    def known(self) -> tuple[int, int]:
        """The controller epoch and the version of the sender's image.

        The epoch is ``NO_EPOCH`` if the sender needs a whole image, because its version of this API has no changes
        across terms.
        """
        epoch = self._request.controller_epoch
        is_usable = self._version >= CROSSES_TERMS or epoch == self._api.metadata.image.controller_epoch
        return epoch if is_usable else NO_EPOCH, self._request.version

    def on_change(self, key: object, amount: int) -> bool:
        self.complete(self.response())
        return True

    def expired(self) -> None:
        self.complete(self.response())

    def response(self) -> FetchMetadataResponse:
        """Return the response with the changes so far, which may be none, or with NOT_CONTROLLER if the term has
        ended."""
        publisher, request = self._api.publisher, self._request
        if not publisher.is_open:
            return _failed(ErrorCode.NOT_CONTROLLER, "This broker is no longer the controller of the cluster.")
        image = self._api.metadata.image
        response = FetchMetadataResponse(controller_id=image.controller_id, controller_epoch=image.controller_epoch)
        if publisher.has_update_since(request.controller_epoch, request.version):
            news = publisher.update_since(*self.known)
            response.is_whole = news.is_whole
            steps = news.steps[:1] if news.is_whole and self._version < CHANGES_AFTER_WHOLE else news.steps
            response.steps = [FetchMetadataResponse.Step(version=s.version, changes=s.changes) for s in steps]
            response.earlier_terms = [_term(term) for term in news.earlier_terms]
        return response


def _term(term: Term) -> FetchMetadataResponse.Term:
    return FetchMetadataResponse.Term(
        controller_epoch=term.epoch, controller_id=term.controller_id, version=term.version
    )


def _failed(code: ErrorCode, message: str) -> FetchMetadataResponse:
    return FetchMetadataResponse(error_code=code, error_message=message)
