"""Configuration definitions: typed values, all errors, and the JSON of validate."""

from __future__ import annotations

from typing import Any

import pytest

from parley.pipeline.connect.config import ConfigDef, ConfigType, Importance, Password, at_least, one_of
from parley.pipeline.connect.distributed.settings import DISTRIBUTED, has_transactional_leader
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.rest import models
from parley.pipeline.connect.validation import validated
from parley.pipeline.connect.worker_config import WorkerConfig

DEFINED = (
    ConfigDef()
    .define("url", ConfigType.STRING, importance=Importance.HIGH, doc="Where.", group="Place", display_name="The URL")
    .define("retries", ConfigType.INT, 3, validator=at_least(0))
    .define("mode", ConfigType.STRING, "fast", validator=one_of("fast", "slow"))
    .define("names", ConfigType.LIST, [])
    .define("secret", ConfigType.PASSWORD, None)
    .define("on", ConfigType.BOOLEAN, False)
    .define("ratio", ConfigType.DOUBLE, 0.5)
)


def test_texts_become_typed_values() -> None:
    given = {"url": " u ", "retries": "7", "names": "a, b", "secret": "s3", "on": "TRUE", "other": "x"}
    assert DEFINED.parse(given) == {
        "url": "u", "retries": 7, "mode": "fast", "names": ["a", "b"], "secret": Password("s3"), "on": True,
        "ratio": 0.5,
    }  # fmt: skip
    assert "s3" not in f"{Password('s3')} {Password('s3')!r}"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, 'Missing required configuration "url" which has no default value.'),
        ({"url": "u", "retries": "-1"}, "Invalid value -1 for configuration retries: Value must be at least 0"),
        ({"url": "u", "retries": "x"}, "Invalid value x for configuration retries: Not a number of type INT"),
        ({"url": "u", "retries": "2147483648"}, "Not a number of type INT"),
        ({"url": "u", "mode": "odd"}, "Invalid value odd for configuration mode: String must be one of: fast, slow"),
        ({"url": "u", "on": "yes"}, "Expected value to be either true or false"),
        ({"url": "u", "ratio": "much"}, "Not a number of type DOUBLE"),
    ],
)
def test_a_config_error_names_the_problem(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        DEFINED.parse(given)
    assert problem in str(raised.value)
    assert [error for one in DEFINED.validate(given) for error in one.errors] == [str(raised.value)]


def test_the_json_of_validate() -> None:
    infos = DEFINED.infos("c", DEFINED.validate({"retries": "x", "secret": "s3"}))
    found = models.ConfigInfos.model_validate(infos).model_dump(mode="json")
    assert (found["name"], found["error_count"], found["groups"]) == ("c", 2, ["Place"])
    url, retries, *_ = found["configs"]
    assert url == {
        "definition": {
            "name": "url", "type": "STRING", "required": True, "default_value": None, "importance": "HIGH",
            "documentation": "Where.", "group": "Place", "order_in_group": 1, "width": "NONE",
            "display_name": "The URL", "dependents": [],
            "order": 1,
        },
        "value": {
            "name": "url", "value": None, "recommended_values": [], "visible": True,
            "errors": ['Missing required configuration "url" which has no default value.'],
        },
    }  # fmt: skip
    assert retries["definition"]["default_value"] == "3"
    assert "s3" not in str(found)


def problems(**config: str) -> dict[str, list[str]]:
    """Return the errors in the configuration of a connector of `sample`, by key."""
    given: dict[str, Any] = {"name": "n", "connector.class": "tests.pipeline.connect.sample.Notes", "folder": "f"}
    given |= {key.replace("_", "."): value for key, value in config.items()}
    infos = validated(given["connector.class"], given, Plugins(), worker={"group.id": "workers"})
    return {one.value.name: one.value.errors for one in infos.configs if one.value.errors}


def test_a_connectors_configuration_is_looked_through_as_a_whole() -> None:
    assert problems(topics="t") == {}
    assert problems(topics="t", tasks_max="0").keys() == {"tasks.max"}
    assert "Must configure one of topics or topics.regex" in problems()["topics"][0]
    assert "mutually exclusive" in problems(topics="t", topics_regex="u")["topics"][0]
    both = problems()
    assert both["topics"] == both["topics.regex"]
    assert problems(topics="a,a") == {"topics": ["Configuration 'topics' values must not be duplicated."]}
    assert problems(topics="a,,b") == {"topics": ["Configuration 'topics' values must not be empty."]}
    assert problems(topics_regex="(").keys() == {"topics.regex"}
    dead = "errors_deadletterqueue_topic_name"
    assert "may not be included in the list of topics" in problems(topics="t", **{dead: "t"})["topics"][0]
    assert "may not be matched by the regex" in problems(topics_regex="t.*", **{dead: "t1"})["topics.regex"][0]
    assert "could not be found" in problems(topics="t", value_converter="org.example.Absent")["value.converter"][0]
    wrong = problems(topics="t", transforms="a,b", transforms_a_type="RegexRouter", transforms_a_regex="x",
                     transforms_b_type="Filter", transforms_b_predicate="absent")  # fmt: skip
    assert wrong.keys() == {"transforms.a.replacement", "transforms.b.predicate"}
    assert problems(topics="t", transforms="a", transforms_a_type="RegexRouter", transforms_a_regex="(",
                    transforms_a_replacement="x").keys() == {"transforms.a.regex"}  # fmt: skip
    assert problems(topics_regex="[a-z&&[^b]]+").keys() == {
        "topics.regex"
    }  # Java's syntax: Python interprets it as another set
    twice = problems(topics="t", transforms="a,a")
    assert twice["transforms"] == ["Invalid value [a, a] for configuration transforms: Duplicate alias provided."]
    absent = problems(topics="t", transforms="a", transforms_a_type="no.such", predicates="p")
    assert absent.keys() == {"transforms.a.type", "predicates.p.type"}
    json = "org.apache.kafka.connect.json.JsonConverter"
    maybe = problems(topics="t", value_converter=json, value_converter_schemas_enable="maybe")
    assert maybe.keys() == {"value.converter.schemas.enable"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [("a\nb\x7f", "had the following ASCII chars: 10, 127"), ("", "String may not be empty"), ("workers", None)],
)
def test_names_of_connectors(name: str, problem: str | None) -> None:
    found = problems(topics="t", name=name)
    assert found.keys() == ({"name"} if problem else set())
    assert problem is None or problem in found["name"][0]


def test_no_sink_reads_in_the_group_of_the_workers() -> None:
    conflict = "Consumer group workers conflicts with Connect worker group workers"
    assert problems(topics="t", consumer_override_group_id="workers") == {"consumer.override.group.id": [conflict]}
    named = validated("FileStreamSink", {"name": "s", "topics": "t"}, Plugins(), worker={"group.id": "connect-s"})
    assert any("Consumer group for sink connector named s conflicts with" in one for one in named.problems())


ENABLED = {"exactly.once.source.support": "ENABLED"}
SAMPLE = "tests.pipeline.connect.sample"


@pytest.mark.parametrize(
    ("config", "worker", "problem"),
    [
        ({"file": "f"}, ENABLED, None),
        ({"file": "f"}, {}, "This worker does not have exactly-once source support enabled."),
        ({"file": "f"}, {"exactly.once.source.support": "preparing"}, "This worker does not have exactly-once"),
        ({}, ENABLED, "The connector does not support exactly-once semantics with the provided configuration."),
        (
            {"connector.class": f"{SAMPLE}.Counter"},
            ENABLED,
            "The connector does not implement the API required for preflight validation of exactly-once source support",
        ),
        ({"connector.class": f"{SAMPLE}.Unsure"}, ENABLED, "An unexpected error occurred during validation: unsure"),
        ({"exactly.once.support": "some"}, ENABLED, "String must be one of (case insensitive): REQUIRED, REQUESTED"),
    ],
)
def test_exactly_once_is_required_of_worker_and_connector(
    config: dict[str, str], worker: dict[str, str], problem: str | None
) -> None:
    given = {"name": "n", "connector.class": "FileStreamSource", "topic": "t", "count": "1"}
    given["exactly.once.support"] = "Required"
    assert_problem("exactly.once.support", problem, {**given, **config}, worker)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"transaction.boundary": "INTERVAL"}, None),
        ({"transaction.boundary": "connector", "connector.class": f"{SAMPLE}.Bounded"}, None),
        (
            {"transaction.boundary": "connector"},
            "The connector does not support connector-defined transaction boundaries with the given configuration. "
            "Please reconfigure it to use a different transaction boundary definition.",
        ),
        (
            {"transaction.boundary": "connector", "connector.class": f"{SAMPLE}.Unsure"},
            "An unexpected error occurred during validation: unsure",
        ),
        ({"transaction.boundary": "never"}, "String must be one of (case insensitive): INTERVAL, POLL, CONNECTOR"),
    ],
)
def test_boundaries_of_transactions(config: dict[str, str], problem: str | None) -> None:
    given = {"name": "n", "connector.class": "FileStreamSource", "topic": "t", "count": "1"}
    assert_problem("transaction.boundary", problem, {**given, **config}, ENABLED)


def assert_problem(key: str, problem: str | None, config: dict[str, str], worker: dict[str, str]) -> None:
    """Assert that this is the only problem of the configuration, and has this key; None means that there is none."""
    infos = validated(config["connector.class"], config, Plugins(), worker=worker)
    wrong = [(one.value.name, text) for one in infos.configs for text in one.value.errors]
    if problem is None:
        assert wrong == []
    else:
        [(name, text)] = wrong
        assert name == key
        assert problem in text


def test_keys_of_exactly_once() -> None:
    config = {"name": "n", "connector.class": "FileStreamSource", "topic": "t"}
    for key, value, problem in (
        ("transaction.boundary.interval.ms", "-1", "Value must be at least 0"),
        ("offsets.storage.topic", "", "String must be non-empty"),
    ):
        assert_problem(key, problem, {**config, key: value}, {})
    told = {"group.id": "g", "key.converter": "c", "value.converter": "c"}
    told |= {f"{what}.storage.topic": what for what in ("config", "offset", "status")}
    for mode, leads, writes in (("disabled", False, False), ("PREPARING", True, False), ("Enabled", True, True)):
        worker = WorkerConfig.parse({**told, "exactly.once.source.support": mode}, DISTRIBUTED)
        assert (has_transactional_leader(worker), worker.exactly_once_sources) == (leads, writes)
    with pytest.raises(ConfigError, match="DISABLED, PREPARING, ENABLED"):
        WorkerConfig.parse({**told, "exactly.once.source.support": "on"}, DISTRIBUTED)


def test_a_class_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"matches no\.such\.Class, available connectors are: .*FileStreamSink"):
        validated("no.such.Class", {}, Plugins())


def test_the_converters_of_the_worker_are_the_defaults() -> None:
    config = {"name": "n", "connector.class": "FileStreamSource", "topic": "t"}
    infos = validated("FileStreamSource", config, Plugins(), worker={"key.converter": "StringConverter"})
    [key] = [one for one in infos.configs if one.value.name == "key.converter"]
    assert key.definition is not None
    assert (key.value.value, key.definition.default) == ("StringConverter", "StringConverter")


def test_the_worker_says_which_client_settings_connectors_may_have() -> None:
    name = "consumer.override.max.poll.records"
    config = {"name": "n", "connector.class": "tests.pipeline.connect.sample.Notes", "folder": "f", "topics": "t"}
    for policy, allowed in (("All", True), ("None", False), ("Principal", False)):
        infos = validated(config["connector.class"], {**config, name: "5"}, Plugins(), policy=policy)
        assert (infos.error_count == 0) is allowed
