"""Names of mirrored topics, and which topics are mirrored, as specified by KIP-382."""

from __future__ import annotations

import pytest

from parley.pipeline.mirror.naming import BadPattern, ReplicationPolicy, Selection, TopicChoice

DEFAULT = ReplicationPolicy()
IDENTITY = ReplicationPolicy(identity_of="A")


@pytest.mark.parametrize(
    ("topic", "source", "upstream", "original"),
    [
        ("orders", None, None, "orders"),
        ("A.orders", "A", "orders", "orders"),
        ("B.A.orders", "B", "A.orders", "orders"),
        ("A.", None, None, "A."),
        (".x", "", "x", "x"),
    ],
)
def test_a_name_tells_where_records_come_from(
    topic: str, source: str | None, upstream: str | None, original: str
) -> None:
    assert (DEFAULT.source(topic), DEFAULT.upstream(topic), DEFAULT.original(topic)) == (source, upstream, original)


def test_the_identity_policy_renames_heartbeats_only() -> None:
    assert IDENTITY.remote("A", "orders") == "orders"
    assert IDENTITY.remote("A", "heartbeats") == "A.heartbeats"
    assert IDENTITY.source("orders") == "A"
    assert IDENTITY.source("B.heartbeats") == "B"
    assert IDENTITY.original("a.b") == "a.b"


def test_internal_topics_have_kafkas_names() -> None:
    assert DEFAULT.offset_syncs("B") == "mm2-offset-syncs.B.internal"
    assert DEFAULT.checkpoints("A") == "A.checkpoints.internal"
    other = ReplicationPolicy("_", "_")
    assert other.offset_syncs("B") == "mm2-offset-syncs_B_internal"
    assert other.checkpoints("A") == "A_checkpoints_internal"
    assert other.remote("A", "t") == "A_t"


def test_topics_from_the_target_are_not_mirrored_back() -> None:
    to_a = TopicChoice(DEFAULT, Selection(".*"), "A")
    assert to_a.of(["orders", "A.orders", "C.A.orders", "C.orders"]) == ["C.orders", "orders"]


def test_internal_topics_and_excluded_ones_stay() -> None:
    choice = TopicChoice(DEFAULT, Selection(".*", r".*\.replica, secret"), "B")
    there = ["__consumer_offsets", "mm2-offsets.A.internal", "Z.checkpoints.internal", ".hidden", "x.replica", "secret",
             "connect-internal", "my.internal", "t"]  # fmt: skip
    assert choice.of(there) == ["connect-internal", "my.internal", "t"]


def test_heartbeats_are_mirrored_for_any_choice_of_topics() -> None:
    choice = TopicChoice(DEFAULT, Selection("orders"), "B")
    assert choice.of(["heartbeats", "C.heartbeats", "B.heartbeats", "orders", "others"]) == [
        "C.heartbeats", "heartbeats", "orders",
    ]  # fmt: skip
    assert TopicChoice(DEFAULT, Selection("orders"), "B", heartbeats=False).of(["heartbeats"]) == []


def test_a_pattern_matches_whole_names() -> None:
    chosen = Selection("a, b.*|c")
    assert [name for name in ("a", "ab", "b", "bx", "c", "xc", "") if name in chosen] == ["a", "b", "bx", "c"]
    assert "" not in Selection("")
    assert "a" not in Selection(" ")


def test_flags_hold_for_their_expression() -> None:
    chosen = Selection("a, (?i)b.*|c")
    assert [name for name in ("a", "A", "bx", "Bx", "C") if name in chosen] == ["a", "bx", "Bx", "C"]


@pytest.mark.parametrize("pattern", ["[a-z&&[^b]]", "[[a]", r"\Qa\E", "(?<name>a)"])
def test_patterns_with_another_meaning_in_java_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern, match="not a regular expression"):
        Selection(pattern)


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(BadPattern, match=r"'\(' is not a regular expression"):
        Selection("ok, (")
