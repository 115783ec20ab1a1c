"""The environment of a broker: its configuration, clock, tasks and threads, and how to undo its startup."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

from parley.broker.config import BrokerConfig
from parley.broker.metrics.health import Health
from parley.broker.metrics.registry import Metrics
from parley.broker.runtime.clock import Clock
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The input of every phase of startup. It is created before the first part of the broker, and outlives the last
    part."""

    config: BrokerConfig
    """The configuration that the broker was started with, without dynamic changes."""
    clock: Clock
    rng: Random
    bind: Callable[..., socket.socket]
    """Creates the listeners' sockets: ``parley.broker.network.listener.bind``, or a simulated version of it."""
    metrics: Metrics
    health: Health
    owns_process: bool
    """True if the broker has a process to itself. The broker then watches for shortages of descriptors and memory."""
    failed: asyncio.Event
    """Set when the broker cannot continue and should be stopped."""
    threads: Threads
    tasks: TaskSet
    maintenance: TaskSet
    """Maintenance of the logs. These tasks run longer than ``tasks``: they end when the logs are closed."""
    membership: TaskSet
    """The task that keeps this broker a member of the cluster."""
    undo: AsyncExitStack
    """Undoes the completed phases, the most recent first. Stopping a broker means closing this stack, even if startup
    was not complete."""
