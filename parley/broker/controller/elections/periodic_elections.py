"""Periodic elections: each is a duty that runs while this broker is the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from parley.broker.config import BrokerConfig
from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.controller.elections.preferred_elections import rebalance_to_preferred

ELECTIONS_MAX = 1000
"""The maximum number of leaders that one decision moves, so that later decisions do not wait long."""


async def rebalance_leaders_periodically(
    controller: Controller, config: Callable[[], BrokerConfig], rules: RulesOf
) -> None:
    """Move leadership back to preferred replicas at intervals (``auto.leader.rebalance.enable``).

    Runs until it is cancelled. Raises NOT_CONTROLLER when the term ends.
    """
    while True:
        await asyncio.sleep(config().leader_imbalance_check_interval_seconds)
        if config().auto_leader_rebalance_enable:
            percentage = config().leader_imbalance_per_broker_percentage
            rebalance = partial(rebalance_to_preferred, percentage=percentage, limit=ELECTIONS_MAX, rules=rules)
            while await controller.submit(rebalance, waits_for_store=True):
                pass


async def reconcile_leaders_periodically(
    controller: Controller, config: Callable[[], BrokerConfig], rules: RulesOf
) -> None:
    """Elect leaders for partitions that could have a leader but have none (``reconcile_leaders``).

    The first run is immediate, in case the previous controller died while making a change. After that, there is a run
    every ``unclean.leader.election.interval.ms``, until cancelled. Raises NOT_CONTROLLER when the term ends.
    """
    reconcile = partial(reconcile_leaders, rules=rules)
    while True:
        await controller.submit(reconcile, waits_for_store=True)
        await asyncio.sleep(config().unclean_leader_election_interval_ms / 1000)
