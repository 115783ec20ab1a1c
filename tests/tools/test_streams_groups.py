"""``parley streams-groups``, compared with Kafka's own tool on the same group."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.group_offsets import OffsetCommitRequest
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from parley.tools.cli.groups.partition_selection import PartitionSelection
from parley.tools.cli.groups.reset import Plan, Target
from parley.tools.cli.streams_groups import changing
from parley.tools.cli.streams_groups.changing import InternalTopics
from parley.tools.cli.streams_groups.describing import is_internal
from tests.broker.coordinators.groups.streams.bench import ids, said, subtopology, topology
from tests.support.kafka_tools import output_of_tool
from tests.tools.conftest import Parley, Typed

TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
PARTITIONS = 3
_numbers = itertools.count()


class Application:
    """A member of a streams group whose only subtopology counts the records of a topic."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.name = f"app-{next(_numbers)}"
        self.store = f"{self.name}-counts-changelog"
        self.topic = topic
        self._servers, self._epoch = broker.bootstrap_servers, 0

    def join(self) -> None:
        """Join, and wait until the member has its tasks."""
        wanted = topology(subtopology("0", [self.topic], changelogs=(self.store,)))
        response = self._beat(topology=wanted, process_id="program", rebalance_timeout_ms=60_000, **_owned({}))
        while not said(response.active_tasks):
            response = self._beat(**_owned({}))
        self._commit(2)

    def _beat(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = StreamsGroupHeartbeatRequest(
            group_id=self.name, member_id="m", member_epoch=self._epoch, endpoint_information_epoch=0, **fields
        )
        response: StreamsGroupHeartbeatResponse = _sent(self._servers, self.name, request)
        assert response.error_code == ErrorCode.NONE, response
        self._epoch = response.member_epoch
        return response

    def leave(self) -> None:
        self._epoch = -1
        self._beat()

    def topics(self) -> set[str]:
        """Return the topics of the cluster."""

        async def ask() -> set[str]:
            async with Client(self._servers) as client:
                return {each.name or "" for each in (await client.metadata()).topics}

        return asyncio.run(ask())

    def _commit(self, offset: int) -> None:
        kind = OffsetCommitRequest
        partitions = [
            kind.OffsetCommitRequestPartition(partition_index=each, committed_offset=offset, committed_metadata="")
            for each in range(PARTITIONS)
        ]
        topics = [kind.OffsetCommitRequestTopic(name=self.topic, partitions=partitions)]
        request = kind(group_id=self.name, member_id="m", generation_id_or_member_epoch=self._epoch, topics=topics)
        _sent(self._servers, self.name, request, version=9)


def _owned(active: dict[str, list[int]]) -> dict[str, Any]:
    return {"active_tasks": ids(active), "standby_tasks": [], "warmup_tasks": []}


def _sent(servers: str, group: str, request: Any, version: int | None = None) -> Any:
    async def send() -> Any:
        async with Client(servers) as client:
            node = await client.coordinator(group)
            return await client.send(request, node=node, version=version)

    return asyncio.run(send())


@pytest.fixture(scope="module")
def streams_broker() -> Iterator[Broker]:
    settings = {
        "group.streams.initial.rebalance.delay.ms": "0",
        "group.streams.assignment.interval.ms": "0",
        "num.partitions": str(PARTITIONS),
    }
    with Broker(settings) as broker:
        yield broker


@pytest.fixture
def command(parley: Parley, streams_broker: Broker) -> Parley:
    """Return a function that runs ``parley streams-groups`` at the broker."""
    return lambda *words: parley("streams-groups", "--bootstrap-server", streams_broker.bootstrap_servers, *words)


@pytest.fixture
def application(streams_broker: Broker) -> Application:
    """Return an application that reads a topic with 10 records in each partition."""
    topic = f"input-{next(_numbers)}"
    producer = Producer({"bootstrap.servers": streams_broker.bootstrap_servers})
    for number in range(10 * PARTITIONS):
        producer.produce(topic, b"value", partition=number % PARTITIONS)
    producer.flush()
    return Application(streams_broker, topic)


def words(text: str) -> list[list[str]]:
    return sorted(line.split() for line in text.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.system
def test_a_running_group_is_shown_as_by_kafkas_tool(
    command: Parley, parley: Parley, streams_broker: Broker, application: Application
) -> None:
    application.join()
    name, servers = application.name, streams_broker.bootstrap_servers
    for view in ([], ["--offsets", "--verbose"], ["--members"], ["--members", "--verbose"], ["--state"],
                 ["--state", "--verbose"]):  # fmt: skip
        ours = command("--describe", "--group", name, *view)
        theirs = output_of_tool(TOOL, "--bootstrap-server", servers, "--describe", "--group", name, *view)
        if view == ["--members", "--verbose"]:  # Kafka's tool has no space between two columns
            theirs = theirs.replace("TOPOLOGY-EPOCH MEMBER", "TOPOLOGY-EPOCH  MEMBER")
        assert ours.code == 0
        assert words(ours.out) == words(theirs), view
        assert parley("groups", "--bootstrap-server", servers, "--describe", "--group", name, *view).out == ours.out
    assert [name, "Stable"] in words(command("--list", "--state").out)
    assert name in command("--list", "--state", "stable").out
    assert name not in command("--list", "--state", "empty,notready").out.split()
    (found,) = json.loads(command("--describe", "--group", name, "--json").out)
    assert [each["lag"] for each in found["offsets"]] == [8] * PARTITIONS
    assert found["members"][0]["assignment"]["active"] == {"0": [0, 1, 2]}
    groups = parley("groups", "--bootstrap-server", servers, "--list", "--type", "streams", "--state")
    assert [name, "Streams", "Stable"] in words(groups.out)

    refused = command("--reset-offsets", "--group", name, "--all-input-topics", "--to-earliest", "--execute")
    assert (refused.code, "the current state is Stable" in refused.err) == (1, True)
    assert "is not EMPTY" in command("--delete", "--group", name).err
    failed = command("--delete-offsets", "--group", name, "--all-input-topics")
    assert (failed.code, failed.out.count("Error: ")) == (1, PARTITIONS)


@pytest.mark.slow
def test_a_group_without_members_is_reset_and_deleted(
    command: Parley, streams_broker: Broker, application: Application
) -> None:
    application.join()
    application.leave()
    name, topic = application.name, application.topic
    assert "has no active members" in command("--describe", "--group", name).err
    reset = ("--reset-offsets", "--group", name)
    dry = command(*reset, "--all-input-topics", "--to-latest")
    assert "nothing is changed" in dry.err
    assert words(dry.out) == sorted(
        [["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], *([name, topic, str(each), "10"] for each in range(PARTITIONS))]
    )
    assert command(*reset, "--input-topic", f"{topic}:1", "--shift-by", "3", "--export").lines == [f"{topic},1,5"]
    assert "not part of the group" in command(*reset, "--input-topic", application.store, "--to-earliest").err
    assert (
        "not internal topics"
        in command(*reset, "--input-topic", topic, "--to-earliest", "--delete-internal-topic", topic, "--execute").err
    )
    done = command(*reset, "--all-input-topics", "--to-offset", "4", "--delete-all-internal-topics", "--execute")
    assert (done.code, done.err) == (0, "")
    assert application.store not in application.topics()
    assert command(*reset, "--input-topic", topic, "--to-current", "--export").lines == [
        f"{topic},{each},4" for each in range(PARTITIONS)
    ]

    assert command("--delete-offsets", "--group", name, "--input-topic", f"{topic}:0").code == 0
    assert command("--delete-offsets", "--group", name, "--all-input-topics").out.count("Successful") == 2
    deleted = command("--delete", "--group", name, "--delete-all-internal-topics")
    assert deleted.out == f"Deletion of requested streams groups ('{name}') was successful.\n"
    assert name not in command("--list").out.split()
    for action in ("--describe", "--delete"):
        assert command(action, "--group", name).code == 1
    missing = command(*reset, "--all-input-topics", "--to-earliest", "--dry-run")
    assert (missing.code, missing.err) == (1, f"\nError: Group {name} not found. (GROUP_ID_NOT_FOUND)\n")


@pytest.mark.slow
def test_parley_groups_takes_groups_of_other_types_by_name_alone(
    parley: Parley, streams_broker: Broker, application: Application
) -> None:
    def groups(*words: str, command: str = "groups") -> Typed:
        return parley(command, "--bootstrap-server", streams_broker.bootstrap_servers, *words)

    application.join()
    application.leave()
    name, reset = application.name, ("--reset-offsets", "--topic", application.topic, "--to-earliest")
    assert groups(*reset, "--group", "shared", "--execute", command="share-groups").code == 0
    assert groups(*reset, "--group", "readers", "--execute").code == 0

    planned = groups("--reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--export")
    assert (planned.code, planned.lines) == (0, [f"{application.topic},{each},10" for each in range(PARTITIONS)])
    described = groups("--describe", "--all-groups", "--state", "--json")
    assert (described.code, [each["group"] for each in json.loads(described.out)]) == (0, ["readers"])
    for words in (
        ("--delete-offsets", "--topic", application.topic),
        (*reset, "--execute"),
    ):
        refused = groups(*words, "--group", name)
        assert refused.code == 1
        assert f"Group '{name}' is a streams group: use `parley streams-groups`." in refused.err
    assert "use `parley share-groups`" in groups(*reset, "--group", "shared").err

    of_all_types = [each for kept in ("readers", "shared", name) for each in ("--group", kept)]
    described = groups("--describe", *of_all_types, "--state")
    assert described.code == 0
    assert [line.split()[0] for line in described.lines if line] == [
        "GROUP",
        "readers",
        "GROUP",
        "shared",
        "GROUP",
        name,
    ]
    as_json = groups("--describe", *of_all_types, "--json")
    assert [each["group"] for each in json.loads(as_json.out)] == ["readers", "shared", name]

    deleted = groups("--delete", "--all-groups")
    assert deleted.out == "Deletion of requested consumer groups ('readers') was successful.\n"
    assert set(groups("--list").lines) >= {name, "shared"}
    assert groups("--delete", "--group", "shared", "--group", name).code == 0
    assert not {name, "shared"} & set(groups("--list").lines)
    assert application.store in application.topics()


@pytest.mark.parametrize(
    "words",
    [
        ("--describe",),
        ("--describe", "--group", "g", "--members", "--state"),
        ("--list", "--verbose"),
        ("--delete-offsets", "--group", "g"),
        ("--reset-offsets", "--group", "g", "--to-earliest"),
        ("--reset-offsets", "--group", "g", "--all-input-topics"),
        ("--list", "--state", "happy"),
    ],
)
def test_options_that_do_not_fit_together(parley: Parley, words: tuple[str, ...], broker: Broker) -> None:
    assert parley("streams-groups", "--bootstrap-server", broker.bootstrap_servers, *words).code == 1


def test_internal_topics_have_the_names_that_kafka_streams_gives_them() -> None:
    names = ("app-a-changelog", "app-a-repartition", "app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-03-topic")
    assert all(is_internal(name, "app") for name in names)
    assert not any(is_internal(name, "app") for name in ("app-changelog-2", "application-a-changelog", "a-changelog"))


async def test_a_reset_reports_foreign_topics_and_failed_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "describe_one", AsyncMock(return_value=Mock(error="", state="Empty")))
    monkeypatch.setattr(changing, "committed_offsets", AsyncMock(return_value={}))
    monkeypatch.setattr(changing, "_partitions", AsyncMock(return_value=[]))
    monkeypatch.setattr(changing, "new_offsets", AsyncMock(return_value={}))
    refused = Mock(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="not allowed")
    refused.name = "app-a-changelog"
    client = Mock(send=AsyncMock(return_value=Mock(responses=[refused])))
    plan = Plan(Target("to-earliest"), ("app",), PartitionSelection({}), execute=True, timeout_ms=1000)
    (result,) = await changing.reset(client, plan, InternalTopics(("orders", "app-a-changelog")))
    assert result.error == (
        "Deleting internal topics of 'app' failed. These are not internal topics of the group: orders; "
        "app-a-changelog: not allowed (TOPIC_AUTHORIZATION_FAILED)"
    )
