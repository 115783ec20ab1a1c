"""Which brokers a controller fences for their silence."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

import pytest

from parley.broker.controller.election_rules import ElectionRules
from parley.broker.controller.unclean_recovery import UncleanRecovery
from parley.broker.membership.live_brokers import LiveBrokers
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration

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
