"""The topic settings that differ from the defaults, as the brokers describe them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from parley.protocol.client import Client
from parley.protocol.messages.configs import DescribeConfigsRequest
from parley.tools.cli.cluster_client import described, on_cluster
from parley.tools.cli.configs import RESOURCE_TYPES, source_name
from parley.tools.plurals import plural
from parley.tools.support_bundle.masks import MASK

_AT_ONCE: Final = 500
_NAMED_MAX: Final = 5
"""The maximum number of topics that the text about unreadable settings names. A user without rights may read none of
thousands."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings that were changed for each topic, and by reason the topics whose settings could not be read."""

    changed: dict[str, dict[str, str]] = field(default_factory=dict)
    unreadable: dict[str, list[str]] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Return for each reason a text that names the topics, or the first of them."""
        return [
            f"the settings of {plural(len(topics), 'topic')} ({', '.join(topics[:_NAMED_MAX])}"
            f"{', ...' if len(topics) > _NAMED_MAX else ''}): {reason}"
            for reason, topics in self.unreadable.items()
        ]


def changed_settings(bootstrap: str, properties: Mapping[str, str], topics: Collection[str]) -> TopicSettings:
    """Return the settings of each topic that were changed for it, with secrets masked. Omits topics without any. Raises
    ``CommandError`` if no broker responds."""

    async def ask(client: Client) -> TopicSettings:
        found = TopicSettings()
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
                if each.error_code:
                    reason = described(each.error_code, each.error_message)
                    found.unreadable.setdefault(reason, []).append(each.resource_name)
                own = {
                    one.name: MASK if one.is_sensitive else one.value or ""
                    for one in each.configs
                    if source_name(one.config_source) == "DYNAMIC_TOPIC_CONFIG"
                }
                if own:
                    found.changed[each.resource_name] = own
        return found

    return on_cluster(bootstrap, properties, ask)
