"""Commands that send and read records say which partitions have no leader, and why no record is acknowledged."""

from __future__ import annotations

from io import BytesIO, TextIOWrapper

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from parley import Cluster
from parley.tools.cli.leaderless import described
from parley.tools.cli.produce import sending
from tests.tools.conftest import Parley


def test_the_warning_names_partitions_and_brokers() -> None:
    assert described("t", [0], [3]) == "t-0 has no leader: broker 3 is down"
    assert described("t", [1, 0], [3, 1]) == "t-0, t-1 have no leader: brokers 1, 3 are down"
    assert described("t", range(9), []) == "t-0, t-1, t-2, t-3, t-4 and 4 more have no leader"


@pytest.mark.slow
def test_partitions_without_a_leader_are_named(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(brokers=2) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for created in admin.create_topics([NewTopic("t", num_partitions=1, replica_assignment=[[2]])]).values():
            created.result()
        cluster.stop(2)
        where = ("--bootstrap-server", cluster.brokers[1].bootstrap_servers, "--topic", "t")
        said = "Warning: t-0 has no leader: broker 2 is down; waiting for one."
        for more in ((), ("--partition", "0"), ("--share", "--group", "g")):
            read = parley("consume", *where, *more, "--timeout-ms", "10")
            assert (read.code, said in read.err.splitlines()) == (0, True), more

        last = parley("tail", "t", "--no-follow", *where[:2])
        assert (last.code, last.err) == (
            1,
            "Error: t-0 has no leader: broker 2 is down. Records can be read only from a leader.\n",
        )

        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\n")))
        monkeypatch.setattr(sending, "_PATIENCE_S", 0.1)
        sent = parley("produce", *where, "--producer-property", "message.timeout.ms=1000")
        assert (sent.code, sent.err.splitlines()) == (
            1,
            [
                said,
                "Error: 1 record not acknowledged; the last one: Local: Message timed out: t-0 has no leader: "
                "broker 2 is down.",
            ],
        )
