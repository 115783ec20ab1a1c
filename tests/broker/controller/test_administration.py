"""Ids of new topics, and what the controller logs when clients give topics settings that have no effect."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from random import Random

import pytest

import parley.broker.controller.administration as module
from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.administration import Administration
from parley.broker.controller.configs import ConfigChange
from parley.broker.controller.topics import NewTopic
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, DirectController, balanced, image_with

TIERED = {"remote.storage.enable": "true"}


@pytest.fixture
def administration() -> Administration:
    controller = DirectController(image_with(PartitionState((1,), (1,), 1)))
    dynamic = DynamicConfig(1, BrokerConfig.from_properties({}))

    async def opened() -> None:
        """Nothing to wait for."""

    return Administration(1, controller, controller.metadata, dynamic, Random(1), opened, balanced)  # type: ignore[arg-type]


class ChosenBits(Random):
    """Returns the given numbers as random bits, in order."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(0)
        self._numbers = list(numbers)

    def getrandbits(self, k: int) -> int:
        return self._numbers.pop(0)


async def test_no_topic_id_begins_with_a_dash(administration: Administration) -> None:
    dash, plain = (UUID(int=first << 120, version=4) for first in (0b111110_11, 0b011110_11))
    assert urlsafe_b64encode(dash.bytes).startswith(b"-")
    administration._rng = ChosenBits(dash.int, plain.int)
    (outcome,) = await administration.create_topics([NewTopic("new", assignment={0: (1,)})])
    assert outcome.topic is not None
    assert outcome.topic.topic_id == plain


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [vars(record) for record in caplog.records if "warning" in vars(record)]
    return [(facts["topic"], facts["warning"].partition(":")[0]) for facts in found]


async def test_a_new_topic_with_a_setting_without_effect(
    administration: Administration, caplog: pytest.LogCaptureFixture
) -> None:
    new = [
        NewTopic("plain", 1, 1),
        NewTopic("tiered", 1, 1, configs=TIERED),
        NewTopic("refused", 1, 1, configs={**TIERED, "retention.ms": "soon"}),
    ]
    await administration.create_topics(new, validate_only=True)
    assert warnings(caplog) == []
    outcomes = await administration.create_topics(new)
    assert [outcome.error is None for outcome in outcomes] == [True, True, False]
    assert warnings(caplog) == [("tiered", "remote.storage.enable has no effect")]


async def test_a_topic_that_is_given_a_setting_without_effect(
    administration: Administration, caplog: pytest.LogCaptureFixture
) -> None:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    change = ConfigChange(resource, changes=[EntryChange("remote.storage.enable", Operation.SET, "true")])
    await administration.alter_configs([change], validate_only=True)
    assert warnings(caplog) == []
    await administration.alter_configs([change])
    assert warnings(caplog) == [(TOPIC, "remote.storage.enable has no effect")]
    other = ConfigChange(resource, changes=[EntryChange("retention.ms", Operation.SET, "1000")])
    await administration.alter_configs([other])
    assert len(warnings(caplog)) == 1, "the warning comes with the setting, not with every later one"


@pytest.mark.parametrize(
    ("type_", "name", "key", "code"),
    [
        (ResourceType.TOPIC, TOPIC, "retention.ms", ErrorCode.INVALID_CONFIG),
        (ResourceType.GROUP, "g", "consumer.session.timeout.ms", ErrorCode.INVALID_CONFIG),
        (ResourceType.BROKER, "1", "log.cleaner.threads", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_wrong_setting_is_refused_with_the_code_of_its_resource(
    administration: Administration, type_: ResourceType, name: str, key: str, code: ErrorCode
) -> None:
    change = ConfigChange(ConfigResource(type_, name), changes=[EntryChange(key, Operation.SET, "soon")])
    (outcome,) = await administration.alter_configs([change])
    assert outcome.error is not None
    assert outcome.error.code is code


async def test_the_threads_of_another_broker_are_compared_with_its_own_setting(administration: Administration) -> None:
    async def alter(threads: int) -> bool:
        entry = EntryChange("num.replica.fetchers", Operation.SET, str(threads))
        change = ConfigChange(ConfigResource(ResourceType.BROKER, "2"), changes=[entry])
        (outcome,) = await administration.alter_configs([change])
        return outcome.error is None

    assert [await alter(threads) for threads in (3, 2, 4, 8, 17, 4, 1)] == [False, True, True, True, False, True, False]


async def test_new_topics_with_equal_entries_are_checked_once(
    administration: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Mapping[str, str]] = []
    monkeypatch.setattr(module, "check_topic", lambda config, entries: checked.append(entries))
    new = [NewTopic(f"t{number}", 1, 1, configs={"retention.ms": str(number % 2)}) for number in range(6)]
    assert all(each.error is None for each in await administration.create_topics(new, validate_only=True))
    assert checked == [{"retention.ms": "0"}, {"retention.ms": "1"}]
