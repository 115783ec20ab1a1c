"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Any broker can describe topics and groups. Only the broker itself can describe its own configuration, because no other
broker knows the properties that it was started with. The controller makes the changes. The levels of loggers
(BROKER_LOGGER, KIP-412) belong to the broker's process and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from parley.broker.api.requested_names import in_slices, more_than_once, named_twice
from parley.broker.config import BrokerConfig
from parley.broker.config.describe import (
    Entry,
    Synonym,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import ConfigChange, ConfigOutcome, check_number_of_entries
from parley.broker.logging.levels import describe_loggers, set_logger_levels
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import check_topic_name
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

R = TypeVar("R")
ResourceKey: TypeAlias = tuple[int, str]
"""The type and name of a resource, as in requests."""

RESOURCES_PER_SLICE = 10
"""The number of resources described before the event loop serves other requests. Each has dozens of entries."""


class ConfigsApi:
    """Handlers of requests about the configurations of topics, brokers, groups and loggers."""

    def __init__(
        self, broker_id: int, administration: Administration, metadata: Metadata, config: DynamicConfig
    ) -> None:
        self._broker_id = broker_id
        self._administration = administration
        self._metadata = metadata
        self._config = config
        self._entries_of: tuple[BrokerConfig | None, Sequence[Entry]] = (None, ())
        """The configuration from which this broker's entries were last created, and these entries."""

    def routes(self) -> dict[int, Handler]:
        return {
            DescribeConfigsRequest.API_KEY: self.describe_configs,
            AlterConfigsRequest.API_KEY: self.alter_configs,
            IncrementalAlterConfigsRequest.API_KEY: self.incremental_alter_configs,
            ListConfigResourcesRequest.API_KEY: self.list_config_resources,
        }

    # --- Reading ---

    async def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        """Return the requested entries of each resource, with the source and the synonyms of each value. A resource
        that cannot be described gets an error code instead, for example INVALID_REQUEST for another broker."""
        described = partial(self._described, request, context.api_version)
        wanted = _keys_wanted(request).items()
        return DescribeConfigsResponse(results=await in_slices(described, wanted, RESOURCES_PER_SLICE))

    def _described(
        self, request: DescribeConfigsRequest, version: int, requested: tuple[tuple[int, str], set[str] | None]
    ) -> DescribeConfigsResponse.DescribeConfigsResult:
        (kind, name), names = requested
        try:
            entries = self._entries(_resource(kind, name))
        except KafkaError as error:
            return DescribeConfigsResponse.DescribeConfigsResult(
                error_code=error.code,
                error_message=error.message or error.code.message,
                resource_type=kind,
                resource_name=name,
                configs=[],
            )
        return DescribeConfigsResponse.DescribeConfigsResult(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=kind,
            resource_name=name,
            configs=[_entry(entry, request, version) for entry in entries if names is None or entry.name in names],
        )

    def _entries(self, resource: ConfigResource) -> Sequence[Entry]:
        config = self._config()
        if resource.type is ResourceType.TOPIC:
            check_topic_name(resource.name)
            if resource.name not in self._metadata.image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{resource.name}' does not exist.")
            return describe_topic(config, self._metadata.image.config(ResourceType.TOPIC, resource.name))
        if resource.type is ResourceType.GROUP:
            if not resource.name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            return describe_group(config, self._metadata.image.config(ResourceType.GROUP, resource.name))
        if resource.type is ResourceType.BROKER and resource.name == "":
            return describe_cluster_default(config, self._config.unreadable)
        self._check_is_this_broker(resource)
        return self._broker_entries(config) if resource.type is ResourceType.BROKER else describe_loggers()

    def _broker_entries(self, config: BrokerConfig) -> Sequence[Entry]:
        """Return the entries of this broker. They are cached until the configuration changes: there are hundreds, and
        creating them would block the event loop for several milliseconds."""
        if self._entries_of[0] is not config:
            self._entries_of = (config, describe_broker(config, self._config.unreadable))
        return self._entries_of[1]

    def _check_is_this_broker(self, resource: ConfigResource) -> None:
        if resource.type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Resources of type {resource.type.name} have no configuration."
            )
        if resource.name != str(self._broker_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._broker_id}, but received '{resource.name}': ask that broker.",
            )

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """List the topics, the brokers, and the groups with a configuration (KIP-1142), or only the types that the
        request names. Version 0 is about client metrics, which Parley does not have.

        The error code is UNSUPPORTED_VERSION if the request names an unknown type.
        """
        image = self._metadata.image
        found = {
            ResourceType.TOPIC: list(image.topics),
            ResourceType.BROKER: [str(broker_id) for broker_id in image.brokers],
            ResourceType.BROKER_LOGGER: [str(broker_id) for broker_id in image.brokers],
            ResourceType.CLIENT_METRICS: [],
            ResourceType.GROUP: [each.name for each in image.configs if each.type is ResourceType.GROUP],
        }
        requested = set(request.resource_types) if context.api_version >= 1 else {ResourceType.CLIENT_METRICS.value}
        if requested - {kind.value for kind in found}:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
        return ListConfigResourcesResponse(
            error_code=ErrorCode.NONE,
            config_resources=[
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
                for kind, names in found.items()
                if not requested or kind in requested
                for name in names
            ],
        )

    # --- Changing ---

    async def alter_configs(self, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """Replace all entries of each resource. Entries that the request does not name are deleted (KIP-133). The
        change to each resource succeeds or fails independently."""
        outcomes = await self._alter(request, replacement)
        return AlterConfigsResponse(responses=_results(AlterConfigsResponse.AlterConfigsResourceResponse, outcomes))

    async def incremental_alter_configs(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        """Change some entries of each resource (KIP-339). The change to each resource succeeds or fails
        independently."""
        outcomes = await self._alter(request, incremental_change)
        return IncrementalAlterConfigsResponse(
            responses=_results(IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, outcomes)
        )

    async def _alter(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        change_of: Callable[[Any], ConfigChange],
    ) -> dict[ResourceKey, KafkaError | None]:
        """Make the changes. Returns the error of each resource, or None if it was changed, in the order of the request.

        ``change_of`` reads the change to one resource from the request. It raises KafkaError if the change is invalid.
        """
        keys = [(requested.resource_type, requested.resource_name) for requested in request.resources]
        twice = named_twice(keys)
        outcomes: dict[ResourceKey, KafkaError | None] = dict.fromkeys(keys)
        wanted = []
        for key, requested in zip(keys, request.resources, strict=True):
            try:
                if key in twice:
                    raise more_than_once("resource")
                change = change_of(requested)
                if change.resource.type is ResourceType.BROKER_LOGGER:
                    self._check_is_this_broker(change.resource)
                    set_logger_levels(change.changes, validate_only=request.validate_only)
                else:
                    wanted.append(change)
            except KafkaError as error:
                outcomes[key] = error
        return outcomes | await self._submit(wanted, validate_only=request.validate_only)

    async def _submit(self, wanted: list[ConfigChange], *, validate_only: bool) -> dict[ResourceKey, KafkaError | None]:
        if not wanted:
            return {}
        try:
            outcomes = await self._administration.alter_configs(wanted, validate_only=validate_only)
        except KafkaError as error:
            outcomes = [ConfigOutcome(change.resource, error) for change in wanted]
        return {(outcome.resource.type.value, outcome.resource.name): outcome.error for outcome in outcomes}


def replacement(requested: AlterConfigsRequest.AlterConfigsResource) -> ConfigChange:
    """Return the change that replaces all entries of a resource. Raises KafkaError if the request is invalid."""
    check_number_of_entries(len(requested.configs))
    resource = _resource(requested.resource_type, requested.resource_name)
    if resource.type is ResourceType.BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Logger levels cannot be replaced as a whole: use IncrementalAlterConfigs."
        )
    values = {config.name: config.value for config in requested.configs if config.value is not None}
    if len(values) != len(requested.configs):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "Null values and duplicate keys are not supported.")
    return ConfigChange(resource, replacement=values)


def incremental_change(requested: IncrementalAlterConfigsRequest.AlterConfigsResource) -> ConfigChange:
    """Return the requested change to some entries of a resource. Raises KafkaError if the request is invalid."""
    return ConfigChange(_resource(requested.resource_type, requested.resource_name), changes=_entry_changes(requested))


def _results(make: Callable[..., R], outcomes: dict[ResourceKey, KafkaError | None]) -> list[R]:
    """Return the result of each resource. ``make`` is the result class of one of the two responses."""
    return [
        make(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message or error.code.message,
            resource_type=kind,
            resource_name=name,
        )
        for (kind, name), error in outcomes.items()
    ]


def _resource(kind: int, name: str) -> ConfigResource:
    try:
        return ConfigResource(ResourceType(kind), name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}.") from None


def _keys_wanted(request: DescribeConfigsRequest) -> dict[ResourceKey, set[str] | None]:
    """Return the keys to describe, by resource. None means all keys."""
    wanted: dict[ResourceKey, set[str] | None] = {}
    for requested in request.resources:
        resource = (requested.resource_type, requested.resource_name)
        keys = wanted.setdefault(resource, set())
        # Kafka's clients before version 1, and some later ones, send an empty list to request all keys.
        if not requested.configuration_keys:
            wanted[resource] = None
        elif keys is not None:
            keys.update(requested.configuration_keys)
    return wanted


def _entry_changes(requested: IncrementalAlterConfigsRequest.AlterConfigsResource) -> list[EntryChange]:
    check_number_of_entries(len(requested.configs))
    names = [config.name for config in requested.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    try:
        return [EntryChange(c.name, Operation(c.config_operation), c.value) for c in requested.configs]
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown operation on a configuration entry.") from None


def _entry(
    entry: Entry, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    result = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[_synonym(synonym) for synonym in entry.synonyms] if request.include_synonyms else [],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
    if version == 0:
        result.is_default = entry.is_default
    return result


def _synonym(synonym: Synonym) -> DescribeConfigsResponse.DescribeConfigsSynonym:
    return DescribeConfigsResponse.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
