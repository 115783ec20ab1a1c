"""The topic settings that differ from the defaults, as the brokers describe them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from parley.protocol.client import Client
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.configs import RESOURCE_TYPES, source_name
from parley.tools.support_bundle.masks import MASK

_AT_ONCE: Final = 500


def changed_settings(
    bootstrap: str, properties: Mapping[str, str], topics: Collection[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of each topic that were changed for it, with secrets masked. Omits topics without any. Raises
    ``CommandError`` if no broker responds."""

    async def ask(client: Client) -> dict[str, dict[str, str]]:
        found = {}
        names = sorted(topics)
        for begin in range(0, len(names), _AT_ONCE):
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=RESOURCE_TYPES["topic"], resource_name=name, configuration_keys=None
                )
                for name in names[begin : begin + _AT_ONCE]
            ]
            answer = await client.send(DescribeConfigsRequest(resources=resources))
            for each in answer.results:
                own = {
                    one.name: MASK if one.is_sensitive else one.value or ""
                    for one in each.configs
                    if source_name(one.config_source) == "DYNAMIC_TOPIC_CONFIG"
                }
                if own:
                    found[each.resource_name] = own
        return found

    return on_cluster(bootstrap, properties, ask)
