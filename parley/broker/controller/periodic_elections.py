"""What the controller does for leadership while in office, without being asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from parley.broker.config import BrokerConfig
from parley.broker.controller.brokers import UncleanAllowed
from parley.broker.controller.controller import Controller
from parley.broker.controller.leader_elections import rebalance_to_preferred, reconcile_leaders

log = logging.getLogger(__name__)

ELECTIONS_MAX = 1000
"""Leaders moved in one decision, so that what waits behind it is soon served."""


async def rebalance_leaders_periodically(controller: Controller, config: Callable[[], BrokerConfig]) -> None:
    """Beside a term: lead partitions back to their preferred replicas (``auto.leader.rebalance.enable``).

    Runs until it is cancelled; raises NOT_CONTROLLER when the term ends under it.
    """
    while True:
        await asyncio.sleep(config().leader_imbalance_check_interval_seconds)
        if config().auto_leader_rebalance_enable:
            percentage = config().leader_imbalance_per_broker_percentage
            while await controller.submit(partial(rebalance_to_preferred, percentage=percentage, limit=ELECTIONS_MAX)):
                pass


async def reconcile_leaders_periodically(
    controller: Controller, config: Callable[[], BrokerConfig], unclean: UncleanAllowed
) -> None:
    """Beside a term: look for partitions that could have a leader and have none.

    At once, in case the controller before this one went down in the middle of it, and then every
    ``unclean.leader.election.interval.ms``. Runs until it is cancelled; raises NOT_CONTROLLER when the term ends.
    """
    await elect_possible_leaders(controller, unclean, takes_over=True)
    while True:
        await asyncio.sleep(config().unclean_leader_election_interval_ms / 1000)
        await elect_possible_leaders(controller, unclean)


async def elect_possible_leaders(controller: Controller, unclean: UncleanAllowed, *, takes_over: bool = False) -> None:
    """Give each partition the leader it can have by now."""
    elected = await controller.submit(lambda image: reconcile_leaders(image, unclean, takes_over=takes_over))
    if elected:
        log.warning(
            "leaders elected among replicas that were not in sync: committed records may be lost",
            extra={"partitions": elected},
        )
