"""Which brokers a controller registers, and which it fences for their silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import pytest

from parley.broker.controller.broker_reports import BrokerReport, Replica
from parley.broker.controller.election_rules import ElectionRules
from parley.broker.controller.unclean_recovery import UncleanRecovery
from parley.broker.membership import live_brokers
from parley.broker.membership.live_brokers import LiveBrokers
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.controller.clusters import DirectController

SILENCE_S = 2.0
LONG, SHORT, SUSPECT = 2.1, 0.7, 1.4
"""More than a silence; a third of it, the interval between two requests; the silence of a broker that was cut off
together with another one whose silence is just over."""


class MetadataPublisher:
    """No broker has requested metadata during this term."""

    followers: ClassVar[dict[int, Any]] = {}


@pytest.mark.parametrize(
    ("silent_for", "gone"),
    [
        ({2: LONG, 3: SHORT}, [2]),
        ({2: LONG, 3: SUSPECT}, []),
        ({2: LONG, 3: LONG}, []),
        ({2: LONG}, [2]),
        ({2: LONG, 3: SHORT, 4: LONG}, [2, 4]),
        ({2: LONG, 3: SHORT, 4: LONG, 5: LONG}, []),
        ({2: LONG, 3: None}, []),
        ({2: LONG, 3: SHORT, 4: None}, [2]),
    ],
)
def test_silent_brokers_are_fenced_only_if_half_of_all_are_heard(
    silent_for: dict[int, float | None], gone: list[int]
) -> None:
    """None stands for a fenced broker: it counts, as it does when brokers judge the controller."""
    brokers = {
        n: BrokerRegistration(n, 1, UUID(int=n), (), fenced=silent_for.get(n, 0.0) is None) for n in (1, *silent_for)
    }
    metadata = Metadata(MetadataImage("c", controller_id=1, brokers=brokers))
    members = LiveBrokers(
        1,
        None,  # type: ignore[arg-type]
        metadata,
        MetadataPublisher(),  # type: ignore[arg-type]
        listener="PLAINTEXT",
        rules=lambda *_: ElectionRules(),
        recovery=UncleanRecovery(metadata, None, lambda *_: ElectionRules()),  # type: ignore[arg-type]
        silence_s=SILENCE_S,
        monotonic=lambda: 100.0,
    )
    members._since = {(n, 1): 100.0 - lasts for n, lasts in silent_for.items() if lasts is not None}
    assert [broker for broker, _ in members._silent(100.0)] == gone


class Group:
    """A group of brokers that does not change, in a store without a mark."""

    def __init__(self, *brokers: BrokerRegistration) -> None:
        self.found = {
            str(each.broker_id): SimpleNamespace(data=registration_to_bytes(each), incarnation=each.epoch)
            for each in brokers
        }
        self.backend = self

    async def get(self, key: str) -> None:
        return None

    async def watch(self, name: str) -> AsyncIterator[Any]:
        yield self.found
        await asyncio.Event().wait()


async def test_a_registration_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_brokers, "REGISTRATION_PAUSE_S", 0.001)
    controller = DirectController(MetadataImage("c", controller_id=1))
    controller.terms = ()  # type: ignore[attr-defined]
    failures = [OSError("no more files"), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
    registered = asyncio.Event()
    controller.metadata.subscribe(lambda delta, image: registered.set())

    async def request(broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> BrokerReport | None:
        if failures:
            raise failures.pop(0)
        return None

    members = LiveBrokers(
        1,
        controller,  # type: ignore[arg-type]
        controller.metadata,
        MetadataPublisher(),  # type: ignore[arg-type]
        listener="PLAINTEXT",
        rules=lambda *_: ElectionRules(),
        recovery=UncleanRecovery(controller.metadata, request, lambda *_: ElectionRules()),
        silence_s=SILENCE_S,
        monotonic=lambda: 100.0,
    )
    following = asyncio.ensure_future(members.run(Group(BrokerRegistration(2, 7, UUID(int=2), ())), 0.0))  # type: ignore[arg-type]
    await registered.wait()
    assert controller.metadata.image.live_broker_ids() == {2}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert members._joining == {}
    following.cancel()
    messages = [record.message for record in caplog.records]
    assert messages == ["a broker could not be registered: trying again"] * len(messages)
    assert messages
