"""UpdateFeatures (KIP-584): operators change the levels of the cluster's features. ApiVersions reports them."""

from __future__ import annotations

from functools import partial

from parley.broker.controller.controller import Controller
from parley.broker.controller.feature_updates import FeatureUpdate, UpgradeType, update_features
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse

APPLIED_MAX_S = 1.0
"""The maximum time, in seconds, that the response to a change waits for brokers that have not applied it yet."""

RESULTS_MAX_VERSION = 1
"""The last version of UpdateFeatures whose response contains a result for each feature."""


class UpdateFeaturesApi:
    """Handler of UpdateFeatures, on the controller."""

    def __init__(self, controller: Controller, publisher: MetadataPublisher) -> None:
        self._controller = controller
        self._publisher = publisher

    def routes(self) -> dict[int, Handler]:
        return {UpdateFeaturesRequest.API_KEY: self.update_features}

    async def update_features(self, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        """Change the levels of all requested features, or of none. With ``validate_only``, only check whether this is
        possible.

        The error code is INVALID_UPDATE_VERSION if one of the changes is impossible. Raises KafkaError for any other
        error, for example NOT_CONTROLLER.
        """
        is_oldest = context.api_version == 0
        updates = [
            FeatureUpdate(each.feature, each.max_version_level, _oldest_type(each) if is_oldest else each.upgrade_type)
            for each in request.feature_updates
        ]
        try:
            await self._controller.submit(
                partial(update_features, updates=updates, validate_only=request.validate_only)
            )
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
                raise
            text = f"The update failed for all features since the following feature had an error: {error.message}"
            return UpdateFeaturesResponse(error_code=error.code, error_message=text)
        if not request.validate_only:
            await self._publisher.until_applied(APPLIED_MAX_S)
        named = updates if context.api_version <= RESULTS_MAX_VERSION else ()
        return UpdateFeaturesResponse(
            results=[UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.feature) for update in named]
        )


def _oldest_type(update: UpdateFeaturesRequest.FeatureUpdateKey) -> UpgradeType:
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
