"""ApiVersions: which APIs and versions this broker speaks (KIP-35), and the cluster's features (KIP-584).

Exactly what is routed is advertised. An unsupported version of this request itself is answered by the dispatcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from parley.broker.network.dispatch import Handler, RequestContext
from parley.protocol.errors import ErrorCode
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""What the names of client software may consist of (KIP-511)."""


class ApiVersionsApi:
    """Answers what a client asks first."""

    def __init__(self, routed: Callable[[], Iterable[int]]) -> None:
        """``routed`` names the API keys served, once all are known."""
        self._routed = routed
        self._keys: list[ApiVersionsResponse.ApiVersion] | None = None

    def routes(self) -> dict[int, Handler]:
        return {ApiVersionsRequest.API_KEY: self.api_versions}

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """List the APIs; INVALID_REQUEST if the client's software has an illegal name."""
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        if self._keys is None:
            self._keys = [_api_version(key) for key in sorted(self._routed())]
        return ApiVersionsResponse(api_keys=self._keys, finalized_features_epoch=0)


def _api_version(key: int) -> ApiVersionsResponse.ApiVersion:
    versions = APIS[key].request.VERSIONS
    return ApiVersionsResponse.ApiVersion(api_key=key, min_version=versions.min, max_version=versions.max)
