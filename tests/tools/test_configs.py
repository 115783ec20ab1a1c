"""``parley configs``: settings of topics, brokers and files are shown and changed, and mistakes are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import Broker
from parley.tools.cli.configs import Entity, parse_entities, parse_settings
from parley.tools.cli.invocation import CommandError
from tests.tools.conftest import Parley


def test_settings_of_a_topic(on_broker: Parley, topic: str) -> None:
    done = on_broker(
        "configs", "--alter", "--topic", topic, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]"
    )
    assert (done.code, done.out) == (0, f"Completed updating config for topic {topic}.\n")
    shown = on_broker("configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert shown.lines[0] == f"Dynamic configs for topic {topic} are:"
    assert shown.lines[1].startswith(
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
    )
    assert shown.lines[2].startswith(
        "  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000"
    )

    on_broker("configs", "--alter", "--topic", topic, "--delete-config", "retention.ms,cleanup.policy")
    assert len(on_broker("configs", "--describe", "--topic", topic).lines) == 1
    everything = on_broker("configs", "--describe", "--topic", topic, "--all")
    assert everything.lines[0] == f"All configs for topic {topic} are:"
    assert len(everything.lines) > 25


def test_settings_without_effect_are_set_with_a_warning(on_broker: Parley, topic: str) -> None:
    done = on_broker("configs", "--alter", "--broker-defaults", "--add-config", "num.network.threads=6")
    assert done.code == 0
    assert "Warning: num.network.threads has no effect: A broker is served by one event loop." in done.err
    for added, warning in (
        ("remote.storage.enable=true", "Warning: remote.storage.enable has no effect: Tiered storage is not supported"),
        ("cleanup.policy=compact", ""),
        ("retention.ms=60000", ""),
    ):
        done = on_broker("configs", "--alter", "--topic", topic, "--add-config", added)
        assert (done.code, warning in done.err, bool(done.err)) == (0, True, bool(warning))


def test_removing_a_setting_that_is_not_set_succeeds(on_broker: Parley, topic: str) -> None:
    words = ("--alter", "--topic", topic, "--delete-config", "retention.ms", "--force")
    assert on_broker("configs", *words).out == f"Completed updating config for topic {topic}.\n"
    assert on_broker("configs", "--alter", "--broker-defaults", "--delete-config", "log.cleaner.threads").code == 0
    assert on_broker("configs", "--alter", "--broker-defaults", "--delete-config", "nonsense").code == 1


def test_settings_of_a_file(on_broker: Parley, topic: str, tmp_path: Path) -> None:
    (tmp_path / "more.properties").write_text("retention.ms=7000\n# a comment\n")
    done = on_broker("configs", "--alter", "--topic", topic, "--add-config-file", str(tmp_path / "more.properties"))
    assert done.code == 0
    (shown,) = json.loads(on_broker("configs", "--describe", "--topic", topic, "--json").out)
    assert [(one["name"], one["value"], one["source"]) for one in shown["configs"]] == [
        ("retention.ms", "7000", "DYNAMIC_TOPIC_CONFIG")
    ]


def test_settings_of_brokers(on_broker: Parley) -> None:
    done = on_broker("configs", "--alter", "--broker-defaults", "--add-config", "log.cleaner.threads=2")
    assert done.out == "Completed updating default config for brokers in the cluster.\n"
    assert on_broker("configs", "--alter", "--broker", "1", "--add-config", "log.cleaner.threads=3").code == 0
    shown = on_broker("configs", "--describe", "--entity-type", "brokers")
    assert "Dynamic configs for broker 1 are:" in shown.lines
    assert "Default configs for brokers in the cluster are:" in shown.lines
    own = next(line for line in shown.lines if line.startswith("  log.cleaner.threads=3 "))
    assert "DYNAMIC_BROKER_CONFIG:log.cleaner.threads=3, DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.threads=2" in own
    for words in (("--broker", "1"), ("--broker-defaults",)):
        assert on_broker("configs", "--alter", *words, "--delete-config", "log.cleaner.threads").code == 0


@pytest.mark.slow
def test_a_password_that_cannot_be_decrypted_is_shown(parley: Parley, tmp_path: Path) -> None:
    key = "listener.name.plaintext.ssl.key.password"
    settings = {"broker.id": "1", "log.dirs": f"{tmp_path}/logs", "coordination.url": f"local://{tmp_path}/store"}
    for secret in ("first", "second"):
        with Broker({**settings, "password.encoder.secret": secret}) as broker:
            address = ("--bootstrap-server", broker.bootstrap_servers, "--broker", "1")
            if secret == "first":
                assert parley("configs", "--alter", *address, "--add-config", f"{key}=marked").code == 0
            shown = parley("configs", "--describe", *address)
        assert shown.lines[1] == f"  {key}=null sensitive=true synonyms={{DYNAMIC_BROKER_CONFIG:{key}=null}}"
        assert ("cannot be decrypted. Set it again" in shown.err) is (secret == "second")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--alter", "--topic", "{topic}", "--add-config", "foo=1"), "INVALID_CONFIG"),
        (("--alter", "--topic", "{topic}", "--add-config", "retention.ms=x"), "INVALID_CONFIG"),
        (("--describe", "--broker", "1", "--config", "f"), "--config is for users, clients and ips"),
        (("--alter", "--topic", "{topic}"), "--alter needs --add-config or --delete-config"),
        (("--alter", "--entity-type", "topics", "--add-config", "a=b"), "--entity-name"),
        (("--describe", "--topic", "nowhere"), "does not exist"),
        (("--describe",), "Name exactly one type of entity"),
        (("--describe", "--entity-type", "topics", "--entity-default"), "Topics have no default configuration"),
        (("--describe", "--user", "nobody"), "neither quotas nor SCRAM credentials of user-principal 'nobody'"),
        (("--describe", "--client-defaults"), "no quotas of the default client-id"),
        (("--alter", "--user", "a", "--add-config", "retention.ms=1"), "A user has no setting retention.ms"),
        (("--alter", "--ip", "::1", "--add-config", "producer_byte_rate=1"), "connection_creation_rate"),
        (("--alter", "--client", "a", "--add-config", "SCRAM-SHA-256=[password=p]"), "no setting SCRAM-SHA-256"),
        (("--alter", "--user", "a", "--client", "b", "--delete-config", "SCRAM-SHA-256"), "A user with a client has"),
        (("--alter", "--user-defaults", "--add-config", "SCRAM-SHA-256=[password=p]"), "A default has no SCRAM"),
        (("--alter", "--user", "a", "--add-config", "SCRAM-SHA-256=[password=p],producer_byte_rate=1"), "two commands"),
        (("--alter", "--user", "a", "--add-config", "producer_byte_rate=fast"), "Cannot parse quota"),
        (("--alter", "--user", "a", "--add-config", "producer_byte_rate=0"), "must be greater than 0"),
        (("--alter", "--user", "a", "--delete-config", "producer_byte_rate"), "Invalid config(s): producer_byte_rate"),
        (("--alter", "--ip", "no host", "--add-config", "connection_creation_rate=1"), "no host is not a valid IP"),
        (("--alter", "--entity-type", "users", "--add-config", "producer_byte_rate=1"), "name it with --entity-name"),
        (("--alter", "--user", "a", "--add-config", "SCRAM-SHA-256=[iterations=1,password=p]"), "4096 to 16384"),
        (("--alter", "--user", "a", "--add-config", "SCRAM-SHA-256=[password=]"), "takes [password=...]"),
        (
            ("--describe", "--topic", "t", "--coordination-url", "memory:"),
            "--coordination-url is for users, clients and ips",
        ),
        (("--describe", "--broker", "x"), "numeric id"),
        (("--describe", "--broker", "0"), "The broker '0' doesn't exist and doesn't have dynamic config."),
        (("--describe", "--broker-logger", "0"), "The broker-logger '0' doesn't exist"),
        (("--alter", "--broker", "0", "--add-config", "log.cleaner.threads=2"), "The broker '0' doesn't exist"),
        (("--alter", "--topic", "{topic}", "--delete-config", "nonsense,retention.ms"), "Invalid config(s): nonsense"),
        (("--alter", "--broker", "1", "--delete-config", "nonsense"), "Invalid config(s): nonsense"),
    ],
)
def test_impossible_requests_are_reported(on_broker: Parley, topic: str, words: tuple[str, ...], reason: str) -> None:
    typed = on_broker("configs", *(word.format(topic=topic) for word in words))
    assert typed.code == 1
    assert reason in typed.err


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=[1,2],b=3", {"a": "1,2", "b": "3"}),
        ("a=,b=[]", {"a": "", "b": ""}),
        ("a=x=y", {"a": "x=y"}),
        ("", {}),
    ],
)
def test_parse_settings(text: str, settings: dict[str, str]) -> None:
    assert parse_settings(text) == settings


@pytest.mark.parametrize("text", ["a", "a,b=1", "a=[1,2", "a=[1]2", "=1"])
def test_parse_invalid_settings(text: str) -> None:
    with pytest.raises(CommandError):
        parse_settings(text)


_words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1)


@given(st.dictionaries(_words, st.lists(_words, max_size=3)))
def test_parsing_reverses_formatting(settings: dict[str, list[str]]) -> None:
    text = ",".join(f"{key}=[{','.join(values)}]" for key, values in settings.items())
    assert parse_settings(text) == {key: ",".join(values) for key, values in settings.items()}


def test_parse_entities() -> None:
    none: dict[str, str | None] = {"topic": None, "broker": None}
    assert parse_entities(["topics"], ["t"], none) == (Entity("topic", "t"),)
    assert parse_entities(["brokers"], [""], none) == (Entity("broker", ""),)
    assert parse_entities(["topics"], [], none) == (Entity("topic", None),)
    assert parse_entities([], [], {**none, "broker": "3"}) == (Entity("broker", "3"),)
    user_and_client = (Entity("user", ""), Entity("client", "app"))
    assert parse_entities(["users", "clients"], ["", "app"], none) == user_and_client
    assert parse_entities(["clients", "users"], ["app", ""], none) == user_and_client
    assert parse_entities([], [], {"client": "app", "user": ""}) == user_and_client
    assert parse_entities(["users", "clients"], ["a"], none) == (Entity("user", "a"), Entity("client", None))


@pytest.mark.parametrize(
    ("types", "names", "reason"),
    [
        (["planets"], [], "--entity-type takes"),
        (["users", "topics"], ["a", "b"], "Only a user and a client"),
        (["users", "users"], ["a", "b"], "Only a user and a client"),
        (["users"], ["a", "b"], "needs an --entity-type"),
    ],
)
def test_entities_that_do_not_exist(types: list[str], names: list[str], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        parse_entities(types, names, {})
    with pytest.raises(CommandError, match="by an option such as --topic"):
        parse_entities(types, names, {"topic": "t"})
