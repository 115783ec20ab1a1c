"""The web console beside a broker: a separate process, which a thread of the broker starts, watches and ends.

Rules:

1. The broker never waits for the console, and the console never uses the broker's event loop. It is a client of the
   cluster.
2. The process gets its settings through its standard input, so that no secret is among its arguments. It ends when
   this pipe is closed, so it ends with the broker, however the broker ends.
3. A process that ends is started again, after a pause that doubles up to ``PAUSE_MAX_S``.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from parley.broker.config import BrokerConfig, ConfigError, Problem
from parley.broker.config.errors import MissingExtra
from parley.broker.metadata.types import Endpoint

_log = logging.getLogger(__name__)

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
STABLE_S: Final = 60.0
"""After a console has run for this long, in seconds, the next pause is ``PAUSE_MIN_S`` again."""
ENDING_S: Final = 5.0
"""The maximum time, in seconds, that a console may take to end before it is killed."""
_COMMAND: Final = (sys.executable, "-c", "from parley.tools.console.beside_broker import main; main()")
_LIBRARIES: Final = ("starlette", "uvicorn")
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""The mechanisms with passwords, which a person can type, best first."""


def console_settings(config: BrokerConfig, endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the settings for the console's process, which can be encoded as JSON. Raises ConfigError if the console
    cannot run."""
    for library in _LIBRARIES:
        if find_spec(library) is None:
            missing = MissingExtra("console.listener", config.console_listener, "console", f"{library} is missing")
            raise ConfigError([missing])
    endpoint = _endpoint(config, list(endpoints))
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return {
        "listen": config.console_listener,
        "bootstrap": f"{host}:{endpoint.port}",
        "client": _client_properties(config, endpoint),
        "command_config": config.console_command_config,
        "read_only": config.console_read_only,
        "host_names": list(config.console_host_names),
        "schema_registry": config.console_schema_registry_url,
        "connect_urls": list(config.console_connect_urls),
        "data_dir": config.data_dirs[0],
        "broker": dict(config.given),
    }


def _endpoint(config: BrokerConfig, endpoints: list[Endpoint]) -> Endpoint:
    wanted = config.console_broker_listener.upper()
    if wanted:
        for each in endpoints:
            if each.listener == wanted:
                return each
        names = ", ".join(each.listener for each in endpoints)
        raise ConfigError([Problem("console.broker.listener", config.console_broker_listener, f"one of {names}")])
    return next((each for each in endpoints if each.listener != config.inter_broker_listener), endpoints[0])


def _client_properties(config: BrokerConfig, endpoint: Endpoint) -> dict[str, str]:
    """Return the client properties for a listener, without the broker's own certificate and login."""
    own = config.texts_for_listener(endpoint.listener)
    found = {"security.protocol": endpoint.security_protocol}
    if endpoint.security_protocol.endswith("SSL"):
        trust = ("ssl.truststore.", "ssl.crl.location", "ssl.endpoint.identification.algorithm")
        found |= {key: text for key, text in own.items() if key.startswith(trust)}
    if endpoint.security_protocol.startswith("SASL_"):
        enabled = config.for_listener(endpoint.listener).sasl_enabled_mechanisms
        mechanism = next((each for each in _MECHANISMS if each in enabled), None)
        if mechanism is None and not config.console_command_config:
            allowed = f"a listener with one of {', '.join(_MECHANISMS)}: users of the console type passwords"
            raise ConfigError([Problem("console.broker.listener", endpoint.listener, allowed)])
        found |= {"sasl.mechanism": mechanism} if mechanism else {}
    return found


class ConsoleProcess:
    """A console that runs until ``close``."""

    def __init__(self, settings: Mapping[str, Any], monotonic: Callable[[], float]) -> None:
        """``settings`` is the result of ``console_settings``."""
        self._settings = json.dumps(settings)
        self._monotonic = monotonic
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self.url = ""
        """The console's address; empty until it is ready."""

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it is not running."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the console, in the background."""
        self._thread.start()

    def close(self) -> None:
        """End the console, and kill it if it has not ended after ``ENDING_S``. Blocks until it has ended. Call this
        after ``start``. Idempotent."""
        with self._lock:
            self._closing.set()
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
        self._thread.join(ENDING_S)
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._thread.join()

    def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while not self._closing.is_set():
            begun_s = self._monotonic()
            reason = self._live()
            self.url = ""
            if self._closing.is_set():
                return
            if self._monotonic() - begun_s > STABLE_S:
                pause_s = PAUSE_MIN_S
            _log.error("the console has ended and will be restarted", extra={"reason": reason, "after_s": pause_s})
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _live(self) -> str:
        """Run the console's process until it ends. Returns the reason why it has ended."""
        with self._lock:
            if self._closing.is_set():
                return ""
            try:
                process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            except OSError as error:
                return f"the process cannot be started: {error}"
            self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        reason = ""
        with suppress(OSError, ValueError):  # it has ended already, or ``close`` has closed the pipe
            process.stdin.write(f"{self._settings}\n")
            process.stdin.flush()
        for line in process.stdout:
            told = _told(line)
            reason = told.get("failed", reason)
            if url := told.get("ready"):
                self.url = url
                _log.info("the console is ready", extra={"url": url})
        process.stdout.close()
        code = process.wait()
        with self._lock:
            self._process = None
            with suppress(OSError):
                process.stdin.close()
        return reason or f"its process exited with code {code}"


def _told(line: str) -> dict[str, str]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
