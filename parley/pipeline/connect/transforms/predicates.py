"""The predicates that Kafka ships (KIP-585)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.pipeline.connect.config import MEDIUM, STRING, ConfigDef, non_empty
from parley.pipeline.connect.java_notation import java_pattern, java_regex
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import Predicate


def _whole_name(name: str, value: Any) -> None:
    non_empty(name, value)
    java_regex(name, value)


class TopicNameMatches(Predicate):
    """Matches a record if its whole topic name matches a regular expression."""

    config_def = (
        ConfigDef()
        .define("pattern", STRING, importance=MEDIUM, validator=_whole_name)
        .doc("A regular expression for matching against the name of a record's topic.")
    )

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._pattern = java_pattern(self.config["pattern"], "pattern")

    def test(self, record: ConnectRecord) -> bool:
        return self._pattern.fullmatch(record.topic) is not None


class HasHeaderKey(Predicate):
    """Matches a record if it has a header with the given name."""

    config_def = ConfigDef().define("name", STRING, importance=MEDIUM, validator=non_empty).doc("The header name.")

    def test(self, record: ConnectRecord) -> bool:
        return record.header(self.config["name"]) is not None


class RecordIsTombstone(Predicate):
    """Matches a record if it has no value."""

    def test(self, record: ConnectRecord) -> bool:
        return record.value is None
