"""Profiles: their files, which profile is used, what it adds to a command, and that no secret is shown."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from parley import Broker
from parley.configuration.properties import read_properties
from parley.tools.cli import profiles
from tests.tools.conftest import Parley


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PARLEY_PROFILE", raising=False)
    return tmp_path / "config" / "parley"


def test_a_profile_replaces_the_address_and_the_login(
    parley: Parley, broker_with_users: Broker, alice: tuple[str, ...], folder: Path
) -> None:
    address, config = alice[1], alice[3]
    assert parley("topics", "--list", "--bootstrap-server", address).code == 1  # needs the login
    added = parley("profile", "add", "prod", "--bootstrap-server", address, "--command-config", config)
    assert added.code == 0, added.err
    assert parley("topics", "--create", "--topic", "t", "--profile", "prod").code == 0
    assert parley("topics", "--list", "--profile=prod").out == "t\n"
    assert parley("profile", "use", "prod").code == 0
    assert parley("topics", "--list").out == "t\n"
    assert parley("cluster", "list-endpoints").code == 0
    consumed = parley("consume", "--topic", "t", "--from-beginning", "--timeout-ms", "100")
    assert consumed.code in (0, 1)
    assert "rejects this client" not in consumed.err


def test_files_are_for_this_user_only(parley: Parley, folder: Path) -> None:
    odd = "\\ a=b:c #!\n é"
    words = ("--property", f"sasl.jaas.config={odd}", "--property", "client.id= x", "--use")
    assert parley("profile", "add", "p", "--bootstrap-server", "h:1", *words).code == 0
    path = folder / "profiles" / "p.properties"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "profile").stat().st_mode) == 0o600
    assert read_properties(path) == {"bootstrap.servers": "h:1", "sasl.jaas.config": odd, "client.id": " x"}
    path.chmod(0o644)
    assert "chmod 600" in parley("topics", "--list", "--profile", "p", "--bootstrap-server", "127.0.0.1:1").err


def test_secrets_are_masked(parley: Parley, folder: Path) -> None:
    secrets = {
        "sasl.jaas.config": "hidden",
        "ssl.keystore.password": "hidden",
        "ssl.key.password": "hidden",
        "ssl.keystore.key": "hidden",
        "sasl.oauthbearer.client.credentials.client.secret": "hidden",
    }
    plain = {
        "ssl.keystore.location": "/k",
        "sasl.oauthbearer.token.endpoint.url": "http://x",
        "ssl.truststore.password": "${env:P}",
    }
    words = [word for key, value in {**secrets, **plain}.items() for word in ("--property", f"{key}={value}")]
    assert parley("profile", "add", "p", "--bootstrap-server", "h:1", *words).code == 0
    for form in ((), ("--json",), ("--output", "table")):
        assert "hidden" not in parley("profile", "show", "p", *form).out
    shown = json.loads(parley("profile", "show", "p", "--json").out)["settings"]
    assert {key: shown[key] for key in plain} == plain


def test_which_profile_is_chosen(parley: Parley, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("a", "b", "c"), 1):
        assert parley("profile", "add", name, "--bootstrap-server", f"127.0.0.1:{number}").code == 0
    parley("profile", "use", "a")
    assert "127.0.0.1:1. Is a broker running?" in parley("topics", "--list").err
    monkeypatch.setenv("PARLEY_PROFILE", "b")
    found = parley("topics", "--list").err
    assert "127.0.0.1:2" in found
    assert "The profile b was used" in found
    assert "127.0.0.1:3" in parley("topics", "--list", "--profile", "c").err
    assert "The profile" not in parley("topics", "--list", "--bootstrap-server", "127.0.0.1:4").err
    both = parley("topics", "--list", "--bootstrap-server", "127.0.0.1:4", "--profile", "c").err
    assert "127.0.0.1:4" in both
    assert "The profile c was used" in both
    monkeypatch.setenv("PARLEY_PROFILE", "")
    assert "The profile" not in parley("topics", "--list", "--bootstrap-server", "127.0.0.1:1").err
    assert profiles.current_name() == ""


def test_names_and_mistakes(parley: Parley, folder: Path) -> None:
    assert "Invalid profile name '../x'" in parley("profile", "add", "../x", "--bootstrap-server", "h:1").err
    assert "There are no profiles" in parley("topics", "--list", "--profile", "x").err
    assert "--bootstrap-server" in parley("profile", "add", "x").err
    assert parley("profile", "add", "x", "--bootstrap-server", "h:1").code == 0
    assert "--replace" in parley("profile", "add", "x", "--bootstrap-server", "h:2").err
    assert parley("profile", "add", "x", "--bootstrap-server", "h:2", "--replace").code == 0
    assert parley("profile", "use", "x").code == 0
    assert parley("profile", "list").out == "* x  h:2  PLAINTEXT\n"
    assert parley("profile", "remove", "x").code == 0
    assert profiles.current_name() == ""
    assert "No profile is in use" in parley("profile", "show").err
    assert "--profile needs the name" in parley("topics", "--list", "--profile").err
    assert parley("profile", "use").code == 1


def test_help_needs_no_profile(parley: Parley, folder: Path) -> None:
    assert parley("topics", "--help", "--profile", "none").code in (0, 1)
    folder.mkdir(parents=True)
    (folder / "profile").write_text("gone\n")
    assert parley("topics", "--help").code == 0
    assert "Unknown profile 'gone'" in parley("topics", "--list").err
