"""Follows changes to certificates, users and other settings of listeners while the broker runs.

A change to the configuration is read immediately. The broker checks the files every few seconds, so a tool that renews
certificates only needs to replace them. If a key store is replaced without its new password, or the reverse, the
listener keeps both old values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress

from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.security.listener_security import Fingerprint, ListenerSecurity

_log = logging.getLogger(__name__)

FILES_LOOKED_AT_S = 5.0
"""The maximum time, in seconds, until a replaced file is noticed."""


class SecurityReload:
    """Keeps the security settings of listeners up to date."""

    def __init__(self, listeners: Sequence[ListenerSecurity], config: DynamicConfig, executor: Executor | None) -> None:
        """``executor`` reads the files; None means the executor of the event loop."""
        self._listeners = [each for each in listeners if each.address.is_tls or each.address.is_sasl]
        self._config = config
        self._executor = executor
        self._changed = asyncio.Event()
        self._refused: dict[str, Fingerprint] = {}
        config.subscribe(lambda _: self._changed.set())

    async def run(self) -> None:
        """Follow changes until cancelled. Returns immediately if no listener uses TLS or SASL."""
        while self._listeners:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), FILES_LOOKED_AT_S)
            self._changed.clear()
            for listener in self._listeners:
                await self._reload(listener)

    async def _reload(self, listener: ListenerSecurity) -> None:
        """Read the settings of a listener again if anything has changed."""
        config, loop, name = self._config(), asyncio.get_running_loop(), listener.address.name
        found = await loop.run_in_executor(self._executor, listener.fingerprint, config)
        if found == listener.current or found == self._refused.get(name):
            return
        try:
            listener.replace(await loop.run_in_executor(self._executor, listener.read, config))
        except ValueError as error:  # ConfigError, or a certificate that cannot be read
            self._refused[name] = found
            _log.error(
                "could not change the security settings of a listener: the previous settings stay in use",
                extra={"listener": name, "reason": str(error)},
            )
            return
        self._refused.pop(name, None)
        _log.info("the security settings of a listener have changed", extra={"listener": name})
