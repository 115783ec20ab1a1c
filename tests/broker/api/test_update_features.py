"""UpdateFeatures, through any broker of a cluster, and what ApiVersions shows of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from parley import Broker, Cluster
from parley.broker.metadata.feature_levels import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.features import UpdateFeaturesRequest, UpdateFeaturesResponse

TV = "transaction.version"
SAFE = 2


async def update(
    client: Client, level: int, *, version: int = 2, feature: str = TV, validate_only: bool = False, down: bool = True
) -> UpdateFeaturesResponse:
    key = UpdateFeaturesRequest.FeatureUpdateKey(feature=feature, max_version_level=level)
    if version:
        key.upgrade_type = SAFE if down else 1
    else:
        key.allow_downgrade = down
    request = UpdateFeaturesRequest(feature_updates=[key], validate_only=validate_only)
    response: UpdateFeaturesResponse = await client.send(request, version=version)
    return response


async def shown(client: Client, version: int = 4) -> tuple[int, dict[str, tuple[int, int]]]:
    """Return the epoch and the levels in a response to ApiVersions."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = await client.send(request, version=version)
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features}
    assert levels.pop(GROUP_VERSION) == (1, 1)
    assert levels.pop(SHARE_VERSION) == (1, 1)
    assert levels.pop(STREAMS_VERSION) == (1, 1)
    return response.finalized_features_epoch, levels


async def until_shown(client: Client, expected: tuple[int, dict[str, tuple[int, int]]]) -> None:
    """Wait until the broker has applied a change: the response to the change waits for it only for a while."""
    async with asyncio.timeout(60):
        while await shown(client) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_every_broker_shows_the_level_that_was_chosen_through_any() -> None:
    async with Cluster(brokers=2) as cluster:
        addresses = cluster.bootstrap_servers.split(",")
        async with Client(addresses[0]) as first, Client(addresses[1]) as second:
            for epoch, client in enumerate((first, second), 1):
                level = 2 - epoch
                assert (await update(client, level)).error_code == ErrorCode.NONE
                expected = (epoch, {TV: (level, level)} if level else {})
                await until_shown(first, expected)
                await until_shown(second, expected)
            refused = await update(second, 3, down=False)
            assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
            assert refused.error_message is not None
            assert "the following feature had an error: Invalid update version 3 for feature" in refused.error_message
            assert await shown(first) == (2, {})


async def test_older_versions_of_the_request_and_restarts(tmp_path: Path) -> None:
    settings = {"coordination.url": f"local://{tmp_path}/store", "log.dirs": str(tmp_path / "data")}
    with Broker(settings) as broker:
        async with Client(broker.bootstrap_servers) as client:
            assert await shown(client, 3) == (0, {TV: (2, 2)})
            checked = await update(client, 1, version=1, validate_only=True)
            assert [(each.feature, each.error_code) for each in checked.results] == [(TV, ErrorCode.NONE)]
            assert await shown(client) == (0, {TV: (2, 2)})
            assert (await update(client, 1, version=0, down=False)).error_code == ErrorCode.INVALID_UPDATE_VERSION
            lowered = await update(client, 1, version=0)
            assert (lowered.error_code, len(lowered.results)) == (ErrorCode.NONE, 1)
            assert (await update(client, 1)).results == []
    with Broker(settings) as broker:
        async with Client(broker.bootstrap_servers) as client:
            assert await shown(client) == (1, {TV: (1, 1)})
