"""Transforms that send records to another topic, or drop them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from parley.pipeline.connect.config import HIGH, STRING, ConfigDef
from parley.pipeline.connect.errors import ConfigError, DataError
from parley.pipeline.connect.java_notation import JavaDateFormat, java_pattern, java_regex, java_replacement
from parley.pipeline.connect.logical_types import from_millis
from parley.pipeline.connect.records import ConnectRecord
from parley.pipeline.connect.transforms import Transform

R = TypeVar("R", bound=ConnectRecord)


class RegexRouter(Transform):
    """Renames topics whose whole name matches a regular expression."""

    config_def = (
        ConfigDef()
        .define("regex", STRING, importance=HIGH, validator=java_regex)
        .doc("Regular expression to use for matching.")
        .define("replacement", STRING, importance=HIGH)
        .doc("Replacement string. $1 stands for the first group.")
    )

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._regex = java_pattern(self.config["regex"], "regex")
        self._replacement = java_replacement(self.config["replacement"])
        try:
            self._regex.sub(self._replacement, "", count=1)
        except (re.error, IndexError) as error:
            raise ConfigError(
                f"Invalid value {self.config['replacement']} for configuration replacement: {error}"
            ) from None

    def apply(self, record: R) -> R | None:
        found = self._regex.fullmatch(record.topic)
        return record if found is None else replace(record, topic=found.expand(self._replacement))


class TimestampRouter(Transform):
    """Sets a record's topic to a name made from the topic and the record's timestamp (UTC)."""

    config_def = (
        ConfigDef()
        .define("topic.format", STRING, "${topic}-${timestamp}", HIGH)
        .doc("The name of the topic. It may contain ${topic} and ${timestamp}.")
        .define("timestamp.format", STRING, "yyyyMMdd", HIGH)
        .doc("The format of the timestamp, a pattern of Java's SimpleDateFormat.")
    )

    def configure(self, props: Mapping[str, Any]) -> None:
        super().configure(props)
        self._format = JavaDateFormat(self.config["timestamp.format"])

    def apply(self, record: R) -> R | None:
        if record.timestamp is None:
            raise DataError(f"Timestamp missing on record: {record!r}")
        moment = self._format.format(from_millis(record.timestamp))
        form: str = self.config["topic.format"]
        return replace(record, topic=form.replace("${topic}", record.topic).replace("${timestamp}", moment))


class Filter(Transform):
    """Drops every record. Use it with a predicate."""

    def apply(self, record: R) -> R | None:
        return None
