"""The tools for clusters, on three brokers, compared with Kafka's tools."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley import Cluster
from parley.protocol.client import Client
from parley.protocol.messages.elections import AlterPartitionReassignmentsRequest
from parley.tools.cli.metadata import BrokerView
from parley.tools.cli.metadata import warnings_for as metadata_warnings
from tests.support.kafka import JavaFailed
from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley, Typed

TOOLS = "org.apache.kafka.tools"
Kafka = Callable[..., list[str]]
Make = Callable[[str, str], None]
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {
        "auto.leader.rebalance.enable": "false",
        "coordination.session.timeout.ms": "60000",
        "broker.host.label": "m",  # Kafka's tools skip the labels
    }
    with Cluster(
        settings, brokers=3
    ) as running:  # brokers leave only if a test stops them, however slow the machine is
        yield running


@pytest.fixture
def on_cluster(parley: Parley, cluster: Cluster) -> Parley:
    """Return a function that runs a command with the cluster's addresses after the command's name."""

    def typed(command: str, *words: str) -> Typed:
        return parley(*command.split(), "--bootstrap-server", cluster.bootstrap_servers, *words)

    return typed


@pytest.fixture
def kafka(cluster: Cluster) -> Kafka:
    """Return a function that runs a Kafka tool and returns its output. Raises ``JavaFailed`` if the tool fails."""

    def typed(tool: str, *words: str) -> list[str]:
        command, *first = tool.split()
        name = command if "." in command else f"{TOOLS}.{command}"
        return output_of_tool(name, *first, "--bootstrap-server", cluster.bootstrap_servers, *words).splitlines()

    return typed


@pytest.fixture
def made(on_cluster: Parley) -> Make:
    """Return a function that creates a topic with these replicas, in the form of ``--replica-assignment``."""

    def make(name: str, assignment: str) -> None:
        typed = on_cluster("topics", "--create", "--topic", name, "--replica-assignment", assignment)
        assert typed.code == 0, typed.err

    return make


def described(on_cluster: Parley, topic: str) -> list[dict[str, object]]:
    (found,) = json.loads(on_cluster("topics", "--describe", "--topic", topic, "--json").out)
    partitions: list[dict[str, object]] = found["partitions"]
    return partitions


def until_in_sync(on_cluster: Parley, topic: str, isrs: list[list[int]]) -> None:
    while [sorted(one["isr"]) for one in described(on_cluster, topic)] != isrs:  # type: ignore[call-overload]
        pass


class TestElectLeaders:
    def test_the_preferred_leader_comes_back(self, on_cluster: Parley, cluster: Cluster, made: Make) -> None:
        made("e1", "1:2:3,2:3:1")
        cluster.stop(1)
        cluster.restart(1)
        until_in_sync(on_cluster, "e1", [[1, 2, 3]] * 2)
        assert described(on_cluster, "e1")[0]["leader"] != 1
        typed = on_cluster("elect-leaders", "--election-type", "preferred", "--topic", "e1", "--partition", "0")
        assert (typed.code, typed.lines) == (
            0,
            ["Successfully completed leader election (PREFERRED) for partitions e1-0"],
        )
        assert described(on_cluster, "e1")[0]["leader"] == 1

    def test_a_file_and_everything(self, on_cluster: Parley, made: Make, tmp_path: Path) -> None:
        made("e2", "1:2")
        plan = tmp_path / "plan.json"
        plan.write_text('{"partitions": [{"topic": "e2", "partition": 0}, {"topic": "nope", "partition": 1}]}')
        typed = on_cluster("elect-leaders", "--election-type", "preferred", "--path-to-json-file", str(plan))
        assert typed.code == 1
        assert typed.lines[0] == "Valid replica already elected for partitions e2-0"
        assert typed.lines[1].startswith("Error completing leader election (PREFERRED) for partition: nope-1: ")
        assert typed.err == "1 replica(s) could not be elected\n"
        typed = on_cluster("elect-leaders", "--election-type", "UNCLEAN", "--all-topic-partitions", "--json")
        assert (typed.code, json.loads(typed.out)) == (0, [])

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--election-type", "preferred"),
            ("--election-type", "nonsense", "--all-topic-partitions"),
            ("--election-type", "preferred", "--topic", "t"),
            ("--election-type", "preferred", "--all-topic-partitions", "--partition", "1"),
            ("--election-type", "preferred", "--all-topic-partitions", "--topic", "t", "--partition", "0"),
            ("--election-type", "preferred", "--path-to-json-file", "/no/such/file"),
        ],
    )
    def test_wrong_usage(self, on_cluster: Parley, words: tuple[str, ...]) -> None:
        typed = on_cluster("elect-leaders", *words)
        assert typed.code == 1
        assert "Traceback" not in typed.err
        assert not typed.out

    def test_a_partition_named_twice(self, on_cluster: Parley, tmp_path: Path) -> None:
        plan = tmp_path / "plan.json"
        plan.write_text('{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 0}]}')
        typed = on_cluster("elect-leaders", "--election-type", "preferred", "--path-to-json-file", str(plan))
        assert "duplicate partitions: t-0" in typed.err


def write(path: Path, partitions: list[dict[str, object]]) -> str:
    path.write_text(json.dumps({"partitions": partitions, "version": 1}))
    return str(path)


async def begin(bootstrap: str, topic: str, replicas: list[int]) -> None:
    """Start to move a partition, even to a stopped broker."""
    request = AlterPartitionReassignmentsRequest
    partition = request.ReassignablePartition(partition_index=0, replicas=replicas)
    async with Client(bootstrap) as client:
        asked = request(topics=[request.ReassignableTopic(name=topic, partitions=[partition])])
        answer = await client.send(asked, node=await client.controller())
    assert answer.responses[0].partitions[0].error_code == 0, answer


class TestReassign:
    def test_a_plan_is_made_executed_and_verified(self, on_cluster: Parley, made: Make, tmp_path: Path) -> None:
        made("r1", "1:2,2:3")
        topics = tmp_path / "topics.json"
        topics.write_text('{"topics": [{"topic": "r1"}], "version": 1}')
        typed = on_cluster("reassign", "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3")
        assert typed.code == 0, typed.err
        title, now, _, other_title, proposed = typed.lines
        assert title == "Current partition replica assignment"
        assert other_title == "Proposed partition reassignment configuration"
        assert [one["replicas"] for one in json.loads(now)["partitions"]] == [[1, 2], [2, 3]]
        assert all(each.startswith("/") for one in json.loads(now)["partitions"] for each in one["log_dirs"])
        wanted = [one["replicas"] for one in json.loads(proposed)["partitions"]]
        assert all(sorted(each) == [2, 3] for each in wanted)
        plan = tmp_path / "plan.json"
        plan.write_text(proposed)
        typed = on_cluster("reassign", "--execute", "--reassignment-json-file", str(plan), "--throttle", "10000000")
        assert typed.code == 0, typed.err
        assert typed.lines[2] == now
        assert typed.lines[-2:] == [
            "The inter-broker throttle limit was set to 10000000 B/s",
            "Successfully started partition reassignments for r1-0,r1-1",
        ]
        verify = ("reassign", "--verify", "--reassignment-json-file", str(plan))
        while not json.loads(on_cluster(*verify, "--json", "--preserve-throttles").out)["completed"]:
            pass
        typed = on_cluster(*verify)
        assert typed.lines == [
            "Status of partition reassignment:",
            "Reassignment of partition r1-0 is completed.",
            "Reassignment of partition r1-1 is completed.",
            "",
            "Clearing broker-level throttles on brokers 1,2,3",
            "Clearing topic-level throttles on topic r1",
        ]
        assert [one["replicas"] for one in described(on_cluster, "r1")] == wanted
        configs = on_cluster("configs", "--describe", "--topic", "r1").out
        assert "throttled" not in configs

    def test_a_topic_gets_more_replicas_without_a_file(self, on_cluster: Parley, made: Make) -> None:
        made("r5", "2,3")
        words = ("--topic", "r5", "--replication-factor", "3")
        proposed = json.loads(on_cluster("reassign", "--generate", *words, "--json").out)["proposed"]
        wanted = [one["replicas"] for one in proposed["partitions"]]
        assert wanted == [[2, 1, 3], [3, 1, 2]]
        typed = on_cluster("reassign", "--execute", *words)
        assert typed.lines[-1] == "Successfully started partition reassignments for r5-0,r5-1", typed.err
        while on_cluster("reassign", "--list").lines != ["No partition reassignments found."]:
            pass
        assert [one["replicas"] for one in described(on_cluster, "r5")] == wanted
        assert "only 3 broker(s)" in on_cluster("reassign", "--execute", *words[:-1], "4").err

    def test_impossible_reassignments_are_refused(self, on_cluster: Parley, made: Make, tmp_path: Path) -> None:
        made("r2", "1:2")
        plan = tmp_path / "plan.json"
        for replicas, partition, reason in (
            ([1, 9], 0, "Unknown broker id 9"),
            ([1, 1], 0, "multiple entries for 1"),
            ([1, 2], 7, "Unable to find partition: r2-7"),
        ):
            write(plan, [{"topic": "r2", "partition": partition, "replicas": replicas}])
            typed = on_cluster("reassign", "--execute", "--reassignment-json-file", str(plan))
            assert typed.code == 1
            assert reason in typed.err
        topics = tmp_path / "topics.json"
        for names, brokers, reason in (
            (["r2"], "1,1", "duplicate entries: 1"),
            (["r2"], "1", "replication factor of 2 cannot be reached because only 1 broker(s)"),
            (["nope"], "1,2", "nope not found"),
            (["r2"], "one", "broker ids"),
        ):
            topics.write_text(json.dumps({"topics": [{"topic": name} for name in names], "version": 1}))
            words = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", brokers)
            typed = on_cluster("reassign", *words)
            assert typed.code == 1
            assert reason in typed.err

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--execute", "--verify"),
            ("--execute",),
            ("--generate",),
            ("--list", "--throttle", "5"),
            ("--list", "--topic", "t"),
            ("--execute", "--topic", "t"),
            ("--execute", "--replication-factor", "3"),
            ("--execute", "--topic", "t", "--replication-factor", "3", "--throttle", "5"),
            ("--generate", "--topic", "t", "--replication-factor", "3", "--broker-list", "1"),
            ("--execute", "--reassignment-json-file", "x", "--broker-list", "1"),
            ("--execute", "--reassignment-json-file", "/no/such/file"),
            ("--execute", "--reassignment-json-file", "/dev/null"),
        ],
    )
    def test_wrong_usage(self, on_cluster: Parley, words: tuple[str, ...]) -> None:
        typed = on_cluster("reassign", *words)
        assert typed.code == 1
        assert "Traceback" not in typed.err
        assert not typed.out

    def test_nothing_moves(self, on_cluster: Parley, made: Make, tmp_path: Path) -> None:
        made("r3", "1:2")
        assert on_cluster("reassign", "--list").lines == ["No partition reassignments found."]
        plan = write(tmp_path / "plan.json", [{"topic": "r3", "partition": 0, "replicas": [2, 1]}])
        typed = on_cluster("reassign", "--cancel", "--reassignment-json-file", plan)
        assert typed.code == 0, typed.err
        assert typed.lines[:2] == [
            "None of the specified partition reassignments are active.",
            "None of the specified partition moves are active.",
        ]
        typed = on_cluster("reassign", "--verify", "--reassignment-json-file", plan)
        assert typed.lines[1] == (
            "There is no active reassignment of partition r3-0, but replica set is 1,2 rather than 2,1."
        )

    def test_a_move_that_cannot_complete_is_listed_and_cancelled(
        self, on_cluster: Parley, cluster: Cluster, made: Make, tmp_path: Path
    ) -> None:
        made("r4", "1:2")
        plan = write(tmp_path / "plan.json", [{"topic": "r4", "partition": 0, "replicas": [3, 2]}])
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("r4", b"x" * 10_000)
        producer.flush()
        cluster.stop(3)
        # Both Kafka's tools and ours refuse to begin with a broker that is down.
        refused = on_cluster("reassign", "--execute", "--reassignment-json-file", plan)
        assert "Unknown broker id 3" in refused.err
        asyncio.run(begin(cluster.brokers[1].bootstrap_servers, "r4", [3, 2]))
        assert on_cluster("reassign", "--list").lines == [
            "Current partition reassignments:",
            "r4-0: replicas: 3,2,1. adding: 3. removing: 1.",
        ]
        typed = on_cluster("reassign", "--verify", "--reassignment-json-file", plan)
        assert typed.lines == [
            "Status of partition reassignment:",
            "Reassignment of partition r4-0 is still in progress.",
            "",
        ]
        assert re.fullmatch(r"  r4-0: broker 3 has .* of .*\n", typed.err)
        other = write(tmp_path / "other.json", [{"topic": "r4", "partition": 0, "replicas": [2, 1]}])
        typed = on_cluster("reassign", "--execute", "--reassignment-json-file", other)
        assert typed.code == 1
        assert "--additional" in typed.err
        typed = on_cluster("reassign", "--cancel", "--reassignment-json-file", plan)
        assert typed.lines[0] == "Successfully cancelled partition reassignment for: r4-0"
        assert on_cluster("reassign", "--list", "--json").out == "[]\n"
        cluster.restart(3)

    def test_a_balance_does_not_wait_for_a_move_without_a_leader(
        self, on_cluster: Parley, cluster: Cluster, made: Make, tmp_path: Path
    ) -> None:
        made("r6", "3")
        cluster.stop(3)
        asyncio.run(begin(cluster.brokers[1].bootstrap_servers, "r6", [2]))
        typed = on_cluster("balance", "--execute", "--interval", "0", "--empty-broker", "9")
        assert typed.code == 1
        assert "r6-0: it is moving, but has no leader to copy from." in typed.err
        cluster.restart(3)
        while on_cluster("reassign", "--list").lines != ["No partition reassignments found."]:
            pass


class TestCluster:
    def test_brokers(self, on_cluster: Parley, cluster: Cluster) -> None:
        typed = on_cluster("cluster cluster-id")
        assert typed.lines == [f"Cluster ID: {cluster.brokers[1].server.identity.cluster_id}"]
        rows = json.loads(on_cluster("cluster list-endpoints", "--json").out)
        assert [(row["id"], row["port"], row["state"]) for row in rows] == [
            (each.id, each.port, "unfenced") for each in cluster.brokers.values()
        ]

    def test_a_stopped_broker_is_unregistered(self, on_cluster: Parley, cluster: Cluster) -> None:
        refused = on_cluster("cluster unregister", "--id", "9")
        assert refused.code == 1
        assert "BROKER_ID_NOT_REGISTERED" in refused.err
        cluster.stop(3)
        (gone,) = [
            row
            for row in json.loads(on_cluster("cluster list-endpoints", "--include-fenced-brokers", "--json").out)
            if row["state"] == "fenced"
        ]
        assert gone["id"] == 3
        typed = on_cluster("cluster unregister", "--id", "3")
        assert (typed.code, typed.lines) == (0, ["Broker 3 is no longer registered."])
        rows = json.loads(on_cluster("cluster list-endpoints", "--include-fenced-brokers", "--json").out)
        assert [row["id"] for row in rows] == [1, 2]
        cluster.restart(3)

    @pytest.mark.parametrize("words", [("cluster",), ("cluster nonsense",), ("cluster unregister",)])
    def test_wrong_usage(self, parley: Parley, words: tuple[str, ...]) -> None:
        typed = parley(*words[0].split())
        assert typed.code == 1
        assert "Traceback" not in typed.err


class TestLogDirs:
    def test_sizes(self, on_cluster: Parley, cluster: Cluster, made: Make) -> None:
        made("d1", "2:3")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        producer.produce("d1", b"x" * 1000)
        producer.flush()
        found = json.loads(on_cluster("log-dirs", "--describe", "--topic-list", "d1", "--json").out)
        sizes = {
            broker["broker"]: [
                (one["partition"], one["size"]) for each in broker["logDirs"] for one in each["partitions"]
            ]
            for broker in found["brokers"]
        }
        assert sizes[1] == []
        assert sizes[2] == sizes[3]
        assert sizes[2][0][0] == "d1-0"
        assert sizes[2][0][1] > 1000
        typed = on_cluster("log-dirs", "--describe", "--broker-list", "2")
        assert typed.lines[:2] == [
            "Querying brokers for log directories information",
            "Received log directory information from brokers 2",
        ]

    def test_space(self, on_cluster: Parley) -> None:
        typed = on_cluster("log-dirs", "--space", "--broker-list", "2,3")
        assert typed.lines[0].split() == ["BROKER", "LOG-DIR", "TOTAL", "FREE", "FREE%", "IN-LOGS", "STATE"]
        assert [(line.split()[0], line.split()[-1]) for line in typed.lines[1:]] == [("2", "online"), ("3", "online")]
        (one,) = json.loads(on_cluster("log-dirs", "--space", "--broker-list", "2", "--json").out)
        assert one["totalBytes"] > one["freeBytes"] > 0
        assert one["error"] is None

    @pytest.mark.parametrize(
        "words", [(), ("--describe", "--broker-list", "1,9"), ("--describe", "--broker-list", "x")]
    )
    def test_wrong_usage(self, on_cluster: Parley, words: tuple[str, ...]) -> None:
        typed = on_cluster("log-dirs", *words)
        assert typed.code == 1
        assert not typed.out


@pytest.mark.parametrize(
    ("controller", "unreachable", "store", "words"),
    [
        (1, [], "", []),
        (1, [2], "", ["not reachable from this machine: broker 2"]),
        (1, [1], "", ["the controller, broker 1, cannot be reached", "not reachable from this machine: broker 1"]),
        (1, [2, 3], "the store (etcd) is down", ["the store (etcd) is down: no broker", "machine: broker 2, 3"]),
    ],
)
def test_metadata_warns_that_the_view_may_be_old(
    controller: int, unreachable: list[int], store: str, words: list[str]
) -> None:
    """While the store is down, no broker can be fenced: a stopped broker is shown as alive."""
    brokers = [
        BrokerView(n, "h", 9092, None, None, False, n not in unreachable, None, None, 0, 0, 0) for n in (1, 2, 3)
    ]
    warnings = metadata_warnings(controller, brokers, store)
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))


class TestMetadata:
    def test_the_page(self, on_cluster: Parley, cluster: Cluster, made: Make) -> None:
        made("m1", "2:3,3:1")
        typed = on_cluster("metadata", "--topic", "m1")
        assert typed.code == 0, typed.err
        assert typed.lines[1].startswith("Controller   broker ")
        assert ", epoch " in typed.lines[1]
        assert re.fullmatch(r"m1 +0 +2 +\d+ +2,3 +2,3 +ok", typed.lines[-2])
        everything = on_cluster("metadata", "--internal")
        without_internal = on_cluster("metadata")
        shown = [line for line in everything.lines if not line.startswith("__")]
        assert [line for line in without_internal.lines if "internal topics" not in line and line] == [
            *filter(None, shown)
        ]
        cluster.stop(2)
        found = json.loads(on_cluster("metadata", "--topic", "m1", "--json").out)
        assert [one["fenced"] for one in found["brokers"]] == [False, True, False]
        assert [one["reachable"] for one in found["brokers"]] == [True, False, True]
        assert [one["state"] for one in found["partitions"]] == ["under-replicated", "ok"]
        typed = on_cluster("metadata", "--under-replicated-partitions", "--topic", "m1")
        assert typed.lines[-1].split() == ["m1", "0", "3", typed.lines[-1].split()[3], "2,3", "3", "under-replicated"]
        cluster.restart(2)
        until_in_sync(on_cluster, "m1", [[2, 3], [1, 3]])


@pytest.mark.system
class TestBesideKafka:
    """Kafka's tools and Parley's print the same about the same cluster."""

    def test_showing(self, on_cluster: Parley, kafka: Kafka, made: Make) -> None:
        made("k1", "1:2,2:3")
        assert on_cluster("cluster cluster-id").lines == kafka("ClusterTool cluster-id")
        for more in ((), ("--include-fenced-brokers",)):
            assert on_cluster("cluster list-endpoints", *more).lines == kafka("ClusterTool list-endpoints", *more)
        words: tuple[str, ...] = ("--describe", "--topic-list", "k1", "--broker-list", "1,2,3")
        ours, theirs = on_cluster("log-dirs", *words).lines, kafka("LogDirsCommand", *words)
        assert ours[:2] == theirs[:2]
        assert by_name(json.loads(ours[2])) == by_name(json.loads(theirs[2]))
        words = ("--election-type", "preferred", "--topic", "k1", "--partition", "1")
        assert on_cluster("elect-leaders", *words).lines == kafka("LeaderElectionCommand", *words)

    def test_moving(self, on_cluster: Parley, kafka: Kafka, made: Make, tmp_path: Path) -> None:
        made("k2", "1:2")
        made("k3", "1:2")
        answers = []
        for name, tool in (("k2", on_cluster), ("k3", kafka)):
            plan = write(tmp_path / f"{name}.json", [{"topic": name, "partition": 0, "replicas": [2, 3]}])
            command = "reassign" if tool is on_cluster else REASSIGN
            file = ("--reassignment-json-file", plan)
            lines: list[str] = []
            for words in (("--execute", "--throttle", "5000000"), ("--list",), ("--verify",), ("--cancel",)):
                if words == ("--list",):
                    until_in_sync(on_cluster, name, [[2, 3]])
                answer = tool(command, *words, *(() if words == ("--list",) else file))
                lines += answer if isinstance(answer, list) else answer.lines
            # Not letters of a random folder's name.
            answers.append(re.sub(rf"\b{name}\b", "TOPIC", "\n".join(lines)))
        # Kafka's tool forgets to end this line.
        assert answers[0] == answers[1].replace("moves are active.Clearing", "moves are active.\nClearing")

    def test_failing(self, on_cluster: Parley, kafka: Kafka, tmp_path: Path) -> None:
        plan = write(tmp_path / "plan.json", [{"topic": "nope", "partition": 0, "replicas": [2, 3]}])
        for ours, theirs, words in (
            ("reassign", REASSIGN, ("--execute", "--reassignment-json-file", plan)),
            ("cluster unregister", "ClusterTool unregister", ("--id", "9")),
            ("log-dirs", "LogDirsCommand", ("--describe", "--broker-list", "9")),
            (
                "elect-leaders",
                "LeaderElectionCommand",
                ("--election-type", "preferred", "--topic", "nope", "--partition", "0"),
            ),
        ):
            assert on_cluster(ours, *words).code == 1
            with pytest.raises(JavaFailed):
                kafka(theirs, *words)


def by_name(found: dict[str, list[dict[str, list[dict[str, list[dict[str, str]]]]]]]) -> object:
    for broker in found["brokers"]:
        for directory in broker["logDirs"]:
            directory["partitions"].sort(key=lambda one: one["partition"])
    return found
