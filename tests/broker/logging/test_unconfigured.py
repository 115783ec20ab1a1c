"""What an embedded broker prints if the program has not configured logging."""

from __future__ import annotations

import logging

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.logging.unconfigured import print_if_unconfigured


def test_warnings_have_their_facts_and_no_secrets_until_the_program_configures_logging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, log = logging.getLogger(), logging.getLogger("parley")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "handlers", [])
    for number in (1, 2):
        print_if_unconfigured(BrokerConfig.from_properties({"ssl.key.password": f"secret{number}"}))
    log.getChild("x").warning("a setting", extra={"key": "k", "value": "secret1 and secret2"})
    log.getChild("x").info("nothing to see")
    (line,) = capsys.readouterr().err.splitlines()
    assert 'event="a setting" key=k value="[hidden] and [hidden]"' in line
    root.addHandler(logging.NullHandler())
    log.warning("again")
    assert capsys.readouterr().err == ""
