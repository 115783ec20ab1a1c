"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Types of resources: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group.
"""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32


class DescribeConfigsRequest(Request, key=32, versions="0-4", flexible="4+"):
    """Request the settings of topics, brokers and other resources (KIP-133).

    Versions:
        1: include_synonyms; the response has sources instead of is_default (KIP-226).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: include_documentation (KIP-569).
        4: flexible encoding (KIP-482).
    """

    class DescribeConfigsResource(Struct):
        """A resource whose settings are requested."""

        resource_type: i8
        resource_name: str  # topic, broker id, group or client metrics; empty: the defaults of all brokers
        configuration_keys: list[str] | None  # None: all

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = field("1+", default=False)
    include_documentation: bool = field("3+", default=False)


class DescribeConfigsResponse(Response, key=32, versions="0-4", flexible="4+"):
    """The settings of the requested resources.

    Versions:
        1: config_source and synonyms instead of is_default (KIP-226).
        2: sent before the client is throttled, not after (KIP-219).
        3: config_type and documentation (KIP-569).
        4: flexible encoding (KIP-482).
    """

    class DescribeConfigsResult(Struct):
        """The settings of one resource."""

        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult]

    class DescribeConfigsResourceResult(Struct):
        """A setting with its value and its sources."""

        name: str
        value: str | None  # None: sensitive, or not set
        read_only: bool
        is_default: bool = field("0", default=False)
        # 1 topic, 2 broker, 3 all brokers, 4 properties file, 5 default, 6 logger, 7 client metrics, 8 group
        config_source: i8 = field("1+", default=-1, ignorable=True)
        is_sensitive: bool
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = field("1+", default=[], ignorable=True)
        # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password
        config_type: i8 = field("3+", default=0, ignorable=True)
        documentation: str | None = field("3+", default=None, ignorable=True)

    class DescribeConfigsSynonym(Struct):
        """A possible source of the value; the one with the highest precedence comes first."""

        name: str
        value: str | None
        source: i8  # like config_source

    throttle_time_ms: i32 = 0
    results: list[DescribeConfigsResult]


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    """Replace all settings of a resource; keys that are not given return to their defaults (KIP-133).

    Versions:
        1: the client enforces throttle_time_ms itself (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class AlterConfigsResource(Struct):
        """One resource and all its settings."""

        resource_type: i8
        resource_name: str
        configs: list[AlterConfigsRequest.AlterableConfig]

    class AlterableConfig(Struct):
        """A setting with its new value."""

        name: str
        value: str | None

    resources: list[AlterConfigsResource]
    validate_only: bool = False


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    """The outcome for each resource.

    Versions:
        1: sent before the client is throttled, not after (KIP-219).
        2: flexible encoding (KIP-482).
    """

    class AlterConfigsResourceResponse(Struct):
        """The outcome for one resource."""

        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    """Change single settings of a resource and keep all others (KIP-339).

    Versions:
        1: flexible encoding (KIP-482).
    """

    class AlterConfigsResource(Struct):
        """One resource and the changes to it."""

        resource_type: i8
        resource_name: str
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig]

    class AlterableConfig(Struct):
        """A change to one setting."""

        name: str
        config_operation: i8  # 0: set; 1: delete; 2: append to a list; 3: remove from a list
        value: str | None  # None only when deleting

    resources: list[AlterConfigsResource]
    validate_only: bool = False


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    """The outcome for each resource.

    Versions:
        1: flexible encoding (KIP-482).
    """

    class AlterConfigsResourceResponse(Struct):
        """The outcome for one resource."""

        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    """Request the resources with settings that differ from the defaults (KIP-1000).

    Versions:
        1: any type of resource; before, this was ListClientMetricsResources (KIP-1142).
    """

    resource_types: list[i8] = field("1+", default=[])  # empty: all


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    """The resources with settings that differ from the defaults.

    Versions:
        1: resource_type; before, all were client metrics (KIP-1142).
    """

    class ConfigResource(Struct):
        """A resource, by its name and type."""

        resource_name: str
        resource_type: i8 = field("1+", default=16, ignorable=True)

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    config_resources: list[ConfigResource]
