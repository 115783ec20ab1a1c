"""ApiVersions: a client's first request, for the APIs and versions that the broker supports."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i16, i32, i64


class ApiVersionsRequest(Request, key=18, versions="0-4", flexible="3+"):
    """Request the APIs and versions that the broker supports (KIP-35).

    A broker that does not know the requested version responds in version 0 with UNSUPPORTED_VERSION (KIP-511).

    Versions:
        1: the response says how long the client was throttled (KIP-124).
        2: the client enforces throttle_time_ms itself (KIP-219).
        3: the name and version of the client's software (KIP-511); flexible encoding (KIP-482).
        4: the sender accepts features whose lowest version is 0 (KAFKA-17011).
    """

    # letters, digits, dots and dashes; anything else is INVALID_REQUEST
    client_software_name: str = field("3+", default="", ignorable=True)
    client_software_version: str = field("3+", default="", ignorable=True)


class ApiVersionsResponse(Response, key=18, versions="0-4", flexible="3+"):
    """The versions of each API that the broker supports, and the cluster's features.

    Its header is always version 0, because the client does not know the broker's versions yet (KIP-511).

    Versions:
        1: throttle_time_ms (KIP-124).
        2: sent before the client is throttled, not after (KIP-219).
        3: flexible encoding (KIP-482); the features of the cluster (KIP-584); zk_migration_ready (KIP-866).
        4: supported features may start at version 0, which older clients fail to read (KAFKA-17011).
    """

    class ApiVersion(Struct):
        """The supported versions of one API, both ends included."""

        api_key: i16
        min_version: i16
        max_version: i16

    class SupportedFeatureKey(Struct):
        """A feature version range that this broker supports."""

        name: str
        min_version: i16
        max_version: i16

    class FinalizedFeatureKey(Struct):
        """A feature version that the whole cluster uses."""

        name: str
        max_version_level: i16
        min_version_level: i16

    error_code: i16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: i32 = field("1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, tagged="3+", default=[], ignorable=True)
    # grows with each change; -1: unknown
    finalized_features_epoch: i64 = field("3+", tag=1, tagged="3+", default=-1, ignorable=True)
    # valid only with an epoch >= 0
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, tagged="3+", default=[], ignorable=True)
    # set by a KRaft controller during Kafka's own migration from ZooKeeper
    zk_migration_ready: bool = field("3+", tag=3, tagged="3+", default=False, ignorable=True)
