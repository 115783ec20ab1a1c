"""The topic settings of a support bundle, from brokers that let the user read only some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from parley.protocol.errors import ErrorCode
from parley.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
from parley.tools.cli.configs import RESOURCE_TYPES
from parley.tools.support_bundle import topic_settings

DYNAMIC_TOPIC_CONFIG = 1


class FewRights:
    """A client whose user may only read the settings of topic ``a``."""

    async def send(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            throttle_time_ms=0, results=[self._of(each.resource_name) for each in request.resources]
        )

    def _of(self, name: str) -> DescribeConfigsResponse.DescribeConfigsResult:
        setting = DescribeConfigsResponse.DescribeConfigsResourceResult(
            name="retention.ms", value="77", read_only=False, config_source=DYNAMIC_TOPIC_CONFIG, is_sensitive=False
        )
        return DescribeConfigsResponse.DescribeConfigsResult(
            error_code=ErrorCode.NONE if name == "a" else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=None,
            resource_type=RESOURCE_TYPES["topic"],
            resource_name=name,
            configs=[setting] if name == "a" else [],
        )


def test_topics_whose_settings_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_cluster(bootstrap: str, properties: object, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(ask(FewRights()))

    monkeypatch.setattr(topic_settings, "on_cluster", on_cluster)
    found = topic_settings.changed_settings("", {}, "abc")
    assert found.changed == {"a": {"retention.ms": "77"}}
    (text,) = found.missing()
    assert text.startswith("the settings of 2 topics (b, c): ")
    assert "(TOPIC_AUTHORIZATION_FAILED)" in text
    (text,) = topic_settings.changed_settings("", {}, "bcdefgh").missing()
    assert text.startswith("the settings of 7 topics (b, c, d, e, f, ...): ")
