"""ApiVersions: the APIs and versions that this broker supports (KIP-35), and the cluster's features (KIP-584).

The broker advertises exactly the APIs that have a handler. The dispatcher
(``parley.broker.network.dispatch``) refuses unsupported versions of all APIs, including this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from parley.broker.metadata.feature_levels import LEVELS, FeatureLevels
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""The valid format of client software names and versions (KIP-511)."""

ACCEPTS_ZERO = 4
"""The first version of ApiVersions whose senders support features with a minimum version of 0."""

_SUPPORTED = [
    ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
    for name, (low, high) in LEVELS.items()
]


class ApiVersionsApi:
    """Handler of ApiVersions, a client's first request."""

    def __init__(
        self, routed: Callable[[], Iterable[int]], features: Callable[[], FeatureLevels] = FeatureLevels
    ) -> None:
        """``routed`` returns the keys of the APIs that have a handler. It is called on the first request.

        ``features`` returns the levels of the cluster's features.
        """
        self._routed = routed
        self._features = features
        self._keys: list[ApiVersionsResponse.ApiVersion] | None = None

    def routes(self) -> dict[int, Handler]:
        return {ApiVersionsRequest.API_KEY: self.api_versions}

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Return the supported APIs with their versions, and the cluster's features.

        From version 3 on, the error code is INVALID_REQUEST if the client's software name or version is malformed
        (KIP-511).
        """
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        if self._keys is None:
            self._keys = [_api_version(key) for key in sorted(self._routed())]
        levels = self._features()
        return ApiVersionsResponse(
            api_keys=self._keys,
            supported_features=_SUPPORTED if context.api_version >= ACCEPTS_ZERO else [],
            finalized_features_epoch=levels.epoch,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in levels.finalized().items()
            ],
        )


def _api_version(key: int) -> ApiVersionsResponse.ApiVersion:
    versions = APIS[key].request.VERSIONS
    return ApiVersionsResponse.ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max)
