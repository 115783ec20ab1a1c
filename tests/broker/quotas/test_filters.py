"""Filters of DescribeClientQuotas."""

from __future__ import annotations

import pytest

from parley.broker.quotas.entities import DEFAULT, QuotaEntity
from parley.broker.quotas.filters import MatchType, filter_of
from parley.protocol.errors import ErrorCode, KafkaError

EXACT, DEFAULTS, ANY = MatchType.EXACT, MatchType.DEFAULT, MatchType.SPECIFIED
Components = list[tuple[str, int, str | None]]

ENTITIES = {
    "alice": QuotaEntity("alice"),
    "alice app": QuotaEntity("alice", "app"),
    "alice *": QuotaEntity("alice", DEFAULT),
    "*": QuotaEntity(DEFAULT),
    "* app": QuotaEntity(DEFAULT, "app"),
    "- app": QuotaEntity(client_id="app"),
    "ip": QuotaEntity(ip="10.0.0.1"),
    "ip *": QuotaEntity(ip=DEFAULT),
}


def selected(components: Components, *, strict: bool) -> set[str]:
    wanted = filter_of(components, strict)
    found = {name for name, entity in ENTITIES.items() if wanted.matches(entity)}
    assert wanted.select({entity: {} for entity in ENTITIES.values()}).keys() == {ENTITIES[name] for name in found}
    return found


@pytest.mark.parametrize(
    ("components", "loose", "strict"),
    [
        ([], set(ENTITIES), set()),
        ([("user", EXACT, "alice")], {"alice", "alice app", "alice *"}, {"alice"}),
        ([("user", DEFAULTS, None)], {"*", "* app"}, {"*"}),
        ([("user", ANY, None)], {"alice", "alice app", "alice *", "*", "* app"}, {"alice", "*"}),
        ([("client-id", EXACT, "app")], {"alice app", "* app", "- app"}, {"- app"}),
        ([("user", EXACT, "alice"), ("client-id", DEFAULTS, None)], {"alice *"}, {"alice *"}),
        ([("user", ANY, None), ("client-id", ANY, None)], {"alice app", "alice *", "* app"}, None),
        ([("user", EXACT, "bob")], set(), set()),
        ([("ip", EXACT, "::ffff:10.0.0.1")], {"ip"}, {"ip"}),
        ([("ip", EXACT, "localhost")], set(), set()),
        ([("ip", ANY, None)], {"ip", "ip *"}, None),
    ],
)
def test_a_filter_selects_entities(components: Components, loose: set[str], strict: set[str] | None) -> None:
    assert selected(components, strict=False) == loose
    assert selected(components, strict=True) == (loose if strict is None else strict)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", DEFAULTS, None)], ErrorCode.INVALID_REQUEST),
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "")], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULTS, "alice")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "alice")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_impossible_filters_are_refused(components: Components, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        filter_of(components, strict=False)
    assert refused.value.code is code
