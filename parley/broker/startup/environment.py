"""The environment of a broker: its configuration, clock, tasks and threads, and how to undo its start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random

from parley.broker.config import BrokerConfig
from parley.broker.metrics.health import Health
from parley.broker.metrics.registry import Metrics
from parley.broker.runtime.clock import Clock
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What every phase of the start receives. It exists before the first part of the broker and after the last one."""

    config: BrokerConfig
    """The configuration that the broker was started with, without dynamic changes."""
    clock: Clock
    rng: Random
    bind: Callable[..., socket.socket]
    """Makes the listeners' sockets: ``parley.broker.network.listener.bind`` or a simulated one."""
    metrics: Metrics
    health: Health
    owns_process: bool
    """True in a process of the broker's own: the broker then watches what the process may run out of."""
    failed: asyncio.Event
    """Set when the broker cannot go on and should be stopped."""
    threads: Threads
    tasks: TaskSet
    maintenance: TaskSet
    """Maintenance of the logs. These tasks outlive ``tasks``: they end when the logs are closed."""
    membership: TaskSet
    """The task that keeps this broker a member of the cluster."""
    undo: AsyncExitStack
    """Undoes the phases that are done, last one first. A stop is this, however far the start had come."""
