"""UpdateFeatures: raising and lowering the cluster's feature versions (KIP-584)."""

from __future__ import annotations

from parley.protocol.schema import Request, Response, Struct, field, i8, i16, i32


class UpdateFeaturesRequest(Request, key=57, versions="0-2", flexible="0+"):
    """Change the versions of features.

    Versions:
        1: upgrade_type instead of allow_downgrade; validate_only (KIP-778).
        2: all features change or none, so the response has one error only (KIP-1022).
    """

    class FeatureUpdateKey(Struct):
        """A feature and the version that it should have."""

        feature: str
        max_version_level: i16  # below 1: remove the feature
        allow_downgrade: bool = field("0", default=False)
        # 1: upgrade; 2: downgrade without loss; 3: downgrade that may lose data
        upgrade_type: i8 = field("1+", default=1)

    timeout_ms: i32 = 60000  # how long to wait for the controller
    feature_updates: list[FeatureUpdateKey]
    validate_only: bool = field("1+", default=False)


class UpdateFeaturesResponse(Response, key=57, versions="0-2", flexible="0+"):
    """The outcome for the update.

    Versions:
        1: same layout; validate_only in the request (KIP-778).
        2: no results by feature (KIP-1022).
    """

    class UpdatableFeatureResult(Struct):
        """The outcome for one feature."""

        feature: str
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: list[UpdatableFeatureResult] = field("0-1", default=[], ignorable=True)
