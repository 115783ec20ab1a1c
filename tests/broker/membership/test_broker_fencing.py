"""Which brokers a controller registers, which it fences, and what it checks before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from parley.broker.controller.broker_reports import BrokerReport, Replica
from parley.broker.controller.controller import Outranked
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.membership import broker_fencing, dead_process_detection
from parley.broker.membership.broker_fencing import BrokerFencing
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.encoding import registration_to_bytes
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import Term
from parley.broker.metadata.types import BrokerRegistration, Endpoint
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import DirectController

SILENCE_S = 2.0
LONG, SHORT, SUSPECT = 2.1, 0.7, 1.4
"""More than a silence; a third of it, the interval between two requests; the silence of a broker that was cut off
together with another one whose silence is just over."""


class MetadataPublisher:
    """No broker has requested metadata during this term."""

    progress_of: ClassVar[dict[int, Any]] = {}


async def hold(endpoint: Endpoint) -> None:
    """No broker can be reached."""


async def never(store: object) -> None:
    """The store is not rolled back during the term."""
    await asyncio.Event().wait()


def live(metadata: Metadata, controller: Any, request: Any = None) -> BrokerFencing:
    members = BrokerFencing(
        1,
        controller,
        metadata,
        MetadataPublisher(),  # type: ignore[arg-type]
        hold=hold,
        listener="PLAINTEXT",
        rules=lambda *_: ElectionRules(),
        recovery=UncleanRecovery(metadata, request, lambda *_: ElectionRules()),
        silence_s=SILENCE_S,
        monotonic=lambda: 100.0,
    )
    members._rollback.until_rolled_back = never  # type: ignore[method-assign]
    return members


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
    """None stands for a fenced broker. It counts as a broker here, as it does when brokers judge the controller."""
    brokers = {
        n: BrokerRegistration(n, 1, UUID(int=n), (), fenced=silent_for.get(n, 0.0) is None) for n in (1, *silent_for)
    }
    members = live(Metadata(MetadataImage("c", controller_id=1, brokers=brokers)), None)
    members._since = {(n, 1): 100.0 - lasts for n, lasts in silent_for.items() if lasts is not None}
    assert [broker for broker, _ in members._silent(100.0)] == gone


class Group:
    """A group of brokers that does not change. Its store has no mark of an earlier term."""

    def __init__(self, *brokers: BrokerRegistration) -> None:
        self.found = {
            str(each.broker_id): SimpleNamespace(data=registration_to_bytes(each), incarnation=each.epoch)
            for each in brokers
        }
        self.backend = self

    async def get(self, key: str) -> None:
        for _ in range(100):  # time in which other tasks run
            await asyncio.sleep(0)

    async def watch(self, name: str) -> AsyncIterator[Any]:
        yield self.found
        await asyncio.Event().wait()


async def test_a_registration_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_fencing, "REGISTRATION_PAUSE_S", 0.001)
    controller = DirectController(MetadataImage("c", controller_id=1))
    controller.terms, controller.missing = (), None  # type: ignore[attr-defined]
    failures = [OSError("no more files"), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)]
    registered = asyncio.Event()
    controller.metadata.subscribe(lambda delta, image: registered.set())

    async def request(broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> BrokerReport | None:
        if failures:
            raise failures.pop(0)
        return None

    members = live(controller.metadata, controller, request)
    following = asyncio.ensure_future(members.run(Group(BrokerRegistration(2, 7, UUID(int=2), ())), 0.0))  # type: ignore[arg-type]
    await registered.wait()
    assert controller.metadata.image.live_broker_ids() == {2}
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert members._joining == {}
    following.cancel()
    messages = [record.message for record in caplog.records]
    assert messages == ["could not register a broker: retrying"] * len(messages)
    assert messages


async def test_no_broker_is_fenced_before_the_members_have_been_compared_with_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fencing elects leaders, and a store that was rolled back may name the wrong replicas in the ISR."""
    submitted: list[Any] = []

    async def submit(decide: Any, **_: Any) -> bool:
        submitted.append(decide)
        return True

    async def until_gone(*_: object) -> None:
        """The process of broker 3 has ended."""

    monkeypatch.setattr(broker_fencing, "until_gone", until_gone)
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 1)
    brokers = {n: BrokerRegistration(n, 1, UUID(int=n), (endpoint,)) for n in (1, 2, 3)}
    controller = SimpleNamespace(terms=(Term(5, 1, 3),), submit=submit, missing=None)
    members = live(Metadata(MetadataImage("c", controller_id=1, brokers=brokers)), controller)
    newer = BrokerRegistration(1, 2, UUID(int=1), (), seen=Term(7, 2, 10))
    with pytest.raises(Outranked):
        await members.run(Group(newer), 0.0)  # type: ignore[arg-type]
    assert submitted == []


async def test_a_broker_is_gone_once_its_machine_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Endpoint] = []
    refuses = iter((False, False, True))

    async def keep(endpoint: Endpoint) -> None:
        held.append(endpoint)

    async def is_gone(endpoint: Endpoint, *, timeout_s: float) -> bool:
        return next(refuses)

    monkeypatch.setattr(dead_process_detection, "is_gone", is_gone)
    monkeypatch.setattr(dead_process_detection, "RETRY_S", 0.001)
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 1)
    await dead_process_detection.until_gone(endpoint, keep)
    assert held == [endpoint] * 3
