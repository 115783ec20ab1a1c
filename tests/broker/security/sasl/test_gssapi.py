"""GSSAPI without Kerberos: the error says what is missing and how to install it. tests/system/test_kerberos.py tests
logins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.security.sasl.gssapi import make
from parley.broker.security.sasl.mechanism import MechanismSetup
from parley.protocol.security.client_security import client_security
from tests.broker.security.sasl.credentials import WALL_MS, Users

MODULE = "com.sun.security.auth.module.Krb5LoginModule"


def setup(options: dict[str, str], module: str = MODULE) -> MechanismSetup:
    config = BrokerConfig.from_properties({})
    return MechanismSetup("GSSAPI", config, Users(), lambda: WALL_MS, options=options, login_module=module)


@pytest.mark.parametrize(
    ("options", "module", "reason"),
    [
        ({}, "", "listener.name.<name>.gssapi.sasl.jaas.config with a Krb5LoginModule"),
        ({}, "a.PlainLoginModule", "with a Krb5LoginModule"),
        ({}, MODULE, "needs useKeyTab=true, keyTab and principal"),
        ({"useTicketCache": "true"}, MODULE, "needs useKeyTab=true, keyTab and principal"),
        ({"useKeyTab": "true", "keyTab": "/none"}, MODULE, "needs the option principal"),
        ({"useKeyTab": "true", "keyTab": "file:/none", "principal": "a"}, MODULE, "keyTab=/none: file not found"),
    ],
)
def test_incomplete_options_are_refused(options: dict[str, str], module: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make(setup(options, module))


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    keytab = tmp_path / "a.keytab"
    keytab.touch()
    options = {"useKeyTab": "true", "keyTab": str(keytab), "principal": "kafka/host"}
    with pytest.raises(ConfigError, match=r"pip install '[^']+\[kerberos\]'.*libkrb5-dev"):
        make(setup(options))
    line = f"{MODULE} required useTicketCache=true serviceName=kafka;"
    with pytest.raises(ValueError, match=r"pip install '[^']+\[kerberos\]'"):
        client_security({"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": line})
