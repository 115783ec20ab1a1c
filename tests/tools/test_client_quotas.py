"""``parley configs`` for quotas: through a broker, and in the store before the first start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parley import Broker
from tests.tools.conftest import Parley


@pytest.mark.slow
def test_quotas_are_set_shown_and_removed(parley: Parley) -> None:
    with Broker() as broker:
        at = ("--bootstrap-server", broker.bootstrap_servers)
        for words, config, told in (
            (("--user", "alice"), "producer_byte_rate=1024,request_percentage=12.5", "config for user alice"),
            (
                ("--entity-type", "clients", "--entity-name", "app", "--entity-type", "users", "--entity-default"),
                "consumer_byte_rate=2048",
                "default config for users in the cluster",
            ),
            (("--user", "alice", "--client-defaults"), "producer_byte_rate=1e12", "config for user alice"),
            (("--client", "app"), "controller_mutation_rate=2", "config for client app"),
            (("--ip", "10.0.0.1"), "connection_creation_rate=3", "config for ip 10.0.0.1"),
            (("--ip", "localhost"), "connection_creation_rate=1000", "config for ip localhost"),
            (("--ip-defaults",), "connection_creation_rate=4", "default config for ips in the cluster"),
        ):
            done = parley("configs", *at, "--alter", *words, "--add-config", config)
            assert (done.code, done.out) == (0, f"Completed updating {told}.\n"), done.err
        shown = parley("configs", *at, "--describe", "--entity-type", "users", "--entity-type", "clients")
        assert shown.lines == [
            "Quota configs for the default user-principal, client-id 'app' are consumer_byte_rate=2048.0",
            "Quota configs for user-principal 'alice', the default client-id are producer_byte_rate=1000000000000.0",
        ]
        assert parley("configs", *at, "--describe", "--entity-type", "ips").lines == [
            "Quota configs for the default ip are connection_creation_rate=4.0",
            "Quota configs for ip '10.0.0.1' are connection_creation_rate=3.0",
            "Quota configs for ip '127.0.0.1' are connection_creation_rate=1000.0",
        ]
        (alice,) = json.loads(parley("configs", *at, "--describe", "--user", "alice", "--json").out)
        assert [(one["name"], one["value"]) for one in alice["configs"]] == [
            ("producer_byte_rate", "1024.0"),
            ("request_percentage", "12.5"),
        ]
        (pair,) = json.loads(parley("configs", *at, "--describe", "--user-defaults", "--client", "app", "--json").out)
        assert (pair["type"], pair["name"], pair["clientId"]) == ("user", None, "app")
        removed = "producer_byte_rate,request_percentage"
        assert parley("configs", *at, "--alter", "--user", "alice", "--delete-config", removed).code == 0
        assert parley("configs", *at, "--describe", "--user", "alice").code == 1
        assert parley("configs", *at, "--describe", "--client", "app").code == 0


@pytest.mark.slow
def test_quotas_are_there_before_the_first_broker(parley: Parley, tmp_path: Path) -> None:
    store = f"local://{tmp_path}/store"
    at = ("--coordination-url", store)
    for words in (("--user", "alice", "--client", "app"), ("--client-defaults",)):
        done = parley("configs", *at, "--alter", *words, "--add-config", "producer_byte_rate=1024")
        assert done.code == 0, done.err
    assert parley("configs", *at, "--describe", "--entity-type", "clients").lines == [
        "Quota configs for the default client-id are producer_byte_rate=1024.0"
    ]
    impossible: list[tuple[tuple[str, ...], str]] = [
        (("--user-defaults", "--delete-config", "producer_byte_rate"), "Invalid config(s): producer_byte_rate"),
        (("--client", "app", "--add-config", "producer_byte_rate=1.5"), "cannot be a fractional value"),
        (("--ip", "no host", "--add-config", "connection_creation_rate=1"), "no host is not a valid IP"),
    ]
    for wrong, reason in impossible:
        refused = parley("configs", *at, "--alter", *wrong)
        assert refused.code == 1
        assert reason in refused.err
    dump = tmp_path / "dump.json"
    dump.write_text(parley("coordination", "dump", store).out)
    restored = f"local://{tmp_path}/restored"
    assert parley("coordination", "restore", str(dump), restored).code == 0
    with Broker({"coordination.url": restored, "log.dirs": str(tmp_path / "data")}) as broker:
        shown = parley("configs", "--bootstrap-server", broker.bootstrap_servers, "--describe",
                       "--user", "alice", "--client", "app")  # fmt: skip
        assert shown.lines == [
            "Quota configs for user-principal 'alice', client-id 'app' are producer_byte_rate=1024.0"
        ]


@pytest.mark.parametrize("option", ["--user", "--client"])
def test_a_store_in_use_is_not_changed(parley: Parley, tmp_path: Path, option: str) -> None:
    store = f"local://{tmp_path}/store"
    with Broker({"coordination.url": store, "log.dirs": str(tmp_path / "data")}):
        refused = parley("configs", "--alter", option, "a", "--add-config", "producer_byte_rate=1",
                         "--coordination-url", store)  # fmt: skip
    assert refused.code == 1
    assert "brokers use this store" in refused.err
