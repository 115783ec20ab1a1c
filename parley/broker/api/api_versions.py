"""ApiVersions: the APIs and versions that this broker supports (KIP-35), and the cluster's features (KIP-584).

The broker advertises exactly the APIs that have a handler. The dispatcher responds to unsupported versions of
ApiVersions itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from parley.broker.network.dispatch import Handler, RequestContext
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

TRANSACTION_VERSION = "transaction.version"
"""The feature by which clients know that each transaction has an epoch of its own (KIP-890)."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""The legal form of client software names and versions (KIP-511)."""

ACCEPTS_ZERO = 4
"""The first version of ApiVersions whose senders can read a feature that begins at version 0."""

_SUPPORTED = [ApiVersionsResponse.SupportedFeatureKey(name=TRANSACTION_VERSION, min_version=0, max_version=2)]
_FINALIZED = [
    ApiVersionsResponse.FinalizedFeatureKey(name=TRANSACTION_VERSION, max_version_level=2, min_version_level=2)
]


class ApiVersionsApi:
    """Handler of ApiVersions, a client's first request."""

    def __init__(self, routed: Callable[[], Iterable[int]]) -> None:
        """``routed`` returns the keys of the APIs that have a handler; it is called at the first request."""
        self._routed = routed
        self._keys: list[ApiVersionsResponse.ApiVersion] | None = None

    def routes(self) -> dict[int, Handler]:
        return {ApiVersionsRequest.API_KEY: self.api_versions}

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """List the APIs, or return INVALID_REQUEST if the name of the client's software is illegal."""
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        if self._keys is None:
            self._keys = [_api_version(key) for key in sorted(self._routed())]
        return ApiVersionsResponse(
            api_keys=self._keys,
            supported_features=_SUPPORTED if context.api_version >= ACCEPTS_ZERO else [],
            finalized_features_epoch=0,
            finalized_features=_FINALIZED,
        )


def _api_version(key: int) -> ApiVersionsResponse.ApiVersion:
    versions = APIS[key].request.VERSIONS
    return ApiVersionsResponse.ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max)
