"""The error for a missing extra: it is the same for all settings, and contains the command that installs the extra."""

from __future__ import annotations

import sys

import pytest

from parley.broker.config import BrokerConfig, ConfigError, ListenerAddress
from parley.broker.config.sealed_passwords import PasswordSeal
from parley.broker.security.tls.server import server_tls

SAID = r"can only be used with the extra security: pip install '[^']+\[security\]'"


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=f"^listeners=SSL://b:9093 {SAID}"):
        server_tls(ListenerAddress("SSL", "SSL", "b", 9093), BrokerConfig.from_properties({}))
    config = BrokerConfig.from_properties({"password.encoder.secret": "secret"})
    with pytest.raises(ConfigError, match=rf"^password\.encoder\.secret=\[hidden\] {SAID}"):
        PasswordSeal(config)
