"""The offsets of a sink connector's group."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Broker
from parley.pipeline.client.cluster import Cluster, Connection, TopicPartition
from parley.pipeline.connect.groups import commit, committed, forget
from parley.protocol.errors import ErrorCode, KafkaError


def test_offsets_of_a_topic_that_a_member_subscribes_to_are_not_forgotten() -> None:
    known, deleted = TopicPartition("t", 0), TopicPartition("deleted", 0)
    with Broker() as broker, Cluster(Connection(bootstrap=broker.bootstrap_servers)) as cluster:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        commit(cluster, "g", {known: 1})
        forget(cluster, "g", [deleted, known])
        assert committed(cluster, "g") == {}
        commit(cluster, "g", {known: 1})
        member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
        member.subscribe(["t"])
        while not member.assignment():
            member.poll(0.05)
        with pytest.raises(KafkaError, match="t-0 of group g") as refused:
            forget(cluster, "g", [known])
        assert refused.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert committed(cluster, "g") == {known: 1}
        member.close()
