"""DescribeClientQuotas, AlterClientQuotas (KIP-546): the quotas of users, client ids and addresses.

Any broker can describe the quotas, as it knows them. The controller changes them. The response to a change is sent
when all live brokers have applied it, or after ``APPLIED_MAX_S``. A host is identified by its IP address. Unlike
Kafka's brokers, Parley's do not resolve host names, because an unresponsive name server would delay other requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from parley.broker.api.requested_names import in_slices
from parley.broker.controller.client_quotas import QuotaAlteration, alter_client_quotas
from parley.broker.controller.controller import Controller
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.metadata.current import Metadata
from parley.broker.network.dispatch import ON_LOOP_ELEMENTS_MAX
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.quotas.filters import filter_of
from parley.protocol.errors import KafkaError
from parley.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

APPLIED_MAX_S = 1.0
"""The maximum time, in seconds, that the response to a change waits for brokers that have not applied it yet."""


class ClientQuotasApi:
    """Handlers of requests about client quotas."""

    def __init__(self, controller: Controller, metadata: Metadata, publisher: MetadataPublisher) -> None:
        self._controller = controller
        self._metadata = metadata
        self._publisher = publisher

    def routes(self) -> dict[int, Handler]:
        return {
            DescribeClientQuotasRequest.API_KEY: self.describe,
            AlterClientQuotasRequest.API_KEY: self.alter,
        }

    async def describe(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        """Return the entities (users, client ids, addresses) that the filter selects, with their quotas. Raises
        KafkaError for an invalid filter."""
        wanted = filter_of(
            ((each.entity_type, each.match_type, each.match) for each in request.components), request.strict
        )
        stored = wanted.candidates(self._metadata.image.client_quotas)
        described = await in_slices(lambda each: _described(each) if wanted.matches(each[0]) else None, stored.items())
        entries = [each for each in described if each is not None]
        context.has_many_elements |= len(entries) > ON_LOOP_ELEMENTS_MAX
        return DescribeClientQuotasResponse(entries=entries)

    async def alter(self, context: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        """Set and remove quotas. The changes to each entity succeed or fail independently. An error of the whole
        request, for example NOT_CONTROLLER, is returned for each entity."""
        wanted = [
            QuotaAlteration(
                tuple((each.entity_type, each.entity_name) for each in entry.entity),
                tuple((each.key, None if each.remove else each.value) for each in entry.ops),
            )
            for entry in request.entries
        ]
        outcomes: list[KafkaError | None]
        try:
            outcomes = await self._controller.submit(
                partial(alter_client_quotas, wanted=wanted, validate_only=request.validate_only)
            )
            await self._publisher.until_applied(APPLIED_MAX_S)
        except KafkaError as error:
            outcomes = [error for _ in wanted]
        return AlterClientQuotasResponse(
            entries=[_outcome(entry, error) for entry, error in zip(request.entries, outcomes, strict=True)]
        )


def _described(found: tuple[QuotaEntity, Mapping[str, float]]) -> DescribeClientQuotasResponse.EntryData:
    entity, quotas = found
    response = DescribeClientQuotasResponse
    return response.EntryData(
        entity=[
            response.EntityData(entity_type=kind, entity_name=name or None) for kind, name in entity.parts().items()
        ],
        values=[response.ValueData(key=key, value=value) for key, value in sorted(quotas.items())],
    )


def _outcome(
    entry: AlterClientQuotasRequest.EntryData, error: KafkaError | None
) -> AlterClientQuotasResponse.EntryData:
    response = AlterClientQuotasResponse
    entity = [response.EntityData(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
    if error is None:
        return response.EntryData(entity=entity)
    return response.EntryData(error_code=error.code, error_message=error.message or error.code.message, entity=entity)
