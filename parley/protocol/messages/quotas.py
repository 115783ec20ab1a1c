"""DescribeClientQuotas and AlterClientQuotas: client quotas (KIP-546)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, f64, i8, i16, i32


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    """Request the quotas of users, client ids and addresses.

    Versions:
        1: flexible encoding (KIP-482).
    """

    class ComponentData(Struct):
        """A component of the filter: a type of entity, and the names that match."""

        entity_type: str  # user, client-id or ip
        match_type: i8  # 0: this name; 1: the default; 2: any name
        match: str | None  # None unless match_type is 0

    components: list[ComponentData]
    strict: bool  # True: leave out entities with components that are not listed


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    """The entities found and their quotas.

    Versions:
        1: flexible encoding (KIP-482).
    """

    class EntryData(Struct):
        """An entity and its quotas."""

        entity: list[DescribeClientQuotasResponse.EntityData]
        values: list[DescribeClientQuotasResponse.ValueData]

    class EntityData(Struct):
        """A component of the entity: its type and its name."""

        entity_type: str
        entity_name: str | None  # None: the default

    class ValueData(Struct):
        """A quota of the entity."""

        key: str  # producer_byte_rate, consumer_byte_rate, request_percentage, ...
        value: f64

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    entries: list[EntryData] | None  # None on error


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    """Set and remove quotas.

    Versions:
        1: flexible encoding (KIP-482).
    """

    class EntryData(Struct):
        """An entity and the changes to its quotas."""

        entity: list[AlterClientQuotasRequest.EntityData]
        ops: list[AlterClientQuotasRequest.OpData]

    class EntityData(Struct):
        """A component of the entity: its type and its name."""

        entity_type: str
        entity_name: str | None  # None: the default

    class OpData(Struct):
        """A quota to set or to remove."""

        key: str
        value: f64
        remove: bool  # True: remove the quota; the value is ignored

    entries: list[EntryData]
    validate_only: bool = False


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    """The outcome for each entity.

    Versions:
        1: flexible encoding (KIP-482).
    """

    class EntryData(Struct):
        """The outcome for one entity."""

        error_code: i16 = 0
        error_message: str | None = None
        entity: list[AlterClientQuotasResponse.EntityData]

    class EntityData(Struct):
        """A component of the entity: its type and its name."""

        entity_type: str
        entity_name: str | None  # None: the default

    throttle_time_ms: i32 = 0
    entries: list[EntryData]
