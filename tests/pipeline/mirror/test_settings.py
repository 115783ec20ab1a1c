"""``mm2.properties`` and the flags of the first MirrorMaker."""

from __future__ import annotations

import pytest

from parley.pipeline.mirror.settings import BadSettings, from_mm1, from_mm2

BASIC = {
    "clusters": "A, B",
    "A.bootstrap.servers": "a:9092",
    "B.bootstrap.servers": "b:9092",
    "A->B.enabled": "true",
}


def test_defaults_are_mirrormakers() -> None:
    flows = from_mm2(BASIC).flows
    assert [(flow.name, flow.choices.enabled) for flow in flows] == [("A->B", True), ("B->A", False)]
    choices = flows[0].choices
    assert (choices.topics, choices.replicas, choices.emit_checkpoints_s, choices.sync_groups) == (".*", 2, 60, False)
    assert "orders" in flows[0].topics
    assert "console-consumer-1" not in flows[0].groups
    assert flows[0].offset_syncs_topic == "mm2-offset-syncs.B.internal"


def test_a_key_of_a_flow_wins_over_the_one_for_all() -> None:
    flows = from_mm2(
        BASIC
        | {"topics": "x.*", "A->B.topics": "y", "B->A.enabled": "true", "emit.heartbeats.enabled": "false"}
        | {"offset-syncs.topic.location": "target", "A->B.sync.group.offsets.enabled": "true"}
    ).flows
    assert [flow.choices.topics for flow in flows] == ["y", "x.*"]
    assert [flow.choices.sync_groups for flow in flows] == [True, False]
    assert flows[0].offset_syncs_topic == "mm2-offset-syncs.A.internal"


def test_heartbeats_off_leaves_only_the_flows_that_are_on() -> None:
    assert [flow.name for flow in from_mm2(BASIC | {"emit.heartbeats.enabled": "false"}).flows] == ["A->B"]


def test_clusters_keeps_the_flows_to_them() -> None:
    both = BASIC | {"B->A.enabled": "true"}
    assert [flow.name for flow in from_mm2(both, ["A"]).flows] == ["B->A"]
    with pytest.raises(BadSettings, match="unknown cluster"):
        from_mm2(both, ["X"])


def test_consumers_settings_are_found_where_they_may_stand() -> None:
    flows = from_mm2(
        BASIC | {"A.consumer.isolation.level": "read_committed", "source.consumer.auto.offset.reset": "latest"}
    )
    assert (flows.flows[0].choices.isolation, flows.flows[0].choices.reset) == ("read_committed", "latest")


def test_replicas_by_default_are_no_more_than_there_are_brokers() -> None:
    (flow, _) = from_mm2(BASIC).flows
    assert flow.replicas("replication.factor", 1) == 1
    (flow, _) = from_mm2(BASIC | {"replication.factor": "3"}).flows
    assert flow.replicas("replication.factor", 1) == 3


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clusters": "A"}, "at least two"),
        ({"B.bootstrap.servers": ""}, "B.bootstrap.servers is missing"),
        ({"A->B.enabled": "false"}, "no flow is enabled"),
        ({"A->B.enabled": "yes"}, "true or false"),
        ({"refresh.topics.interval.seconds": "0"}, "above 0"),
        ({"refresh.topics.interval.seconds": "x"}, "above 0, not 'x'"),
        ({"refresh.topics.interval.seconds": "inf"}, "above 0"),
        ({"replication.factor": "two"}, "a number of replicas, or -1 for the target's default, not 'two'"),
        ({"topics": "("}, "not a regular expression"),
        ({"replication.policy.class": "my.Policy"}, "replication.policy.class must be"),
        ({"A.security.protocol": "SASL_SSL"}, "A.security.protocol and related keys: sasl.mechanism is not set"),
        ({"A.security.protocol": "TLS"}, "expected one of PLAINTEXT"),
        ({"admin.ssl.truststore.location": "x"}, "for the whole cluster, as <alias>.ssl.truststore.location"),
        ({"A->B.source.producer.sasl.jaas.config": "x"}, "for the whole cluster"),
        ({"A->B.topic.filter.class": "my.Filter"}, "A->B.topic.filter.class: my.Filter is a Java class"),
        ({"offset-syncs.topic.location": "moon"}, "one of source, target"),
    ],
)
def test_invalid_settings_are_an_error(changes: dict[str, str], text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        from_mm2(BASIC | changes)


def test_two_clusters_that_keep_names_must_not_mirror_each_other() -> None:
    identity = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
    assert from_mm2(BASIC | identity).flows[0].policy.remote("A", "t") == "t"
    with pytest.raises(BadSettings, match=r"copy each other.s records forever"):
        from_mm2(BASIC | identity | {"B->A.enabled": "true"})


def test_keys_without_effect_are_reported() -> None:
    settings = from_mm2(
        BASIC
        | {"tasks.max": "4", "A->B.typo": "1", "tpoics": "x", "security.protocol": "PLAINTEXT", "offset.lag.max": "9"}
        | {
            "sync.topic.acls.enabled": "false",
            "A->B.sync.topic.acls.enabled": "true",
            "A.consumer.fetch.min.bytes": "1",
        }
        | {"source.consumer.isolation.level": "read_committed", "replication.policy.separator": "_"}
        | {"topic.filter.class": "org.apache.kafka.connect.mirror.DefaultTopicFilter"}
    )
    assert settings.ignored == (
        "A->B.sync.topic.acls.enabled", "A->B.typo", "A.consumer.fetch.min.bytes", "offset.lag.max", "tasks.max",
        "tpoics",
    )  # fmt: skip
    mm1 = from_mm1([{"bootstrap.servers": "a:1", "group.id": "g", "fetch.min.bytes": "1"}],
                   {"bootstrap.servers": "b:1", "acks": "1"}, "x")  # fmt: skip
    assert mm1.ignored == ("acks", "fetch.min.bytes")


def test_the_first_mirrormaker() -> None:
    consumers = [{"bootstrap.servers": "a:9092", "group.id": "mm"}, {"bootstrap.servers": "c:9092"}]
    settings = from_mm1(consumers, {"bootstrap.servers": "b:9092"}, "x.*")
    first, second = settings.flows
    assert (first.source.bootstrap, second.source.bootstrap, first.target.bootstrap) == ("a:9092", "c:9092", "b:9092")
    assert first.policy.remote(first.source.alias, "x1") == "x1"
    assert (first.commits_as, second.commits_as, first.choices.reset) == ("mm", None, "latest")
    with pytest.raises(BadSettings, match=r"no bootstrap\.servers"):
        from_mm1([{"zookeeper.connect": "z"}], {"bootstrap.servers": "b:9092"}, "x")
