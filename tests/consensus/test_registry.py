from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Self

import pytest

from parley.consensus import built_in_stores, registry
from parley.consensus.errors import BadConfig
from parley.consensus.local import LocalBackend
from parley.consensus.memory import MemoryBackend
from parley.consensus.registry import backend_class, configured_url, create_backend, default_url, names_store, schemes
from parley.consensus.store_config import NO_CONFIG, ConfigKey, StoreConfig, ValueType

ROOT = Path(__file__).parents[2]


def test_built_in_schemes(tmp_path: Path) -> None:
    assert isinstance(create_backend("memory:"), MemoryBackend)
    assert isinstance(create_backend(f"local://{tmp_path}"), LocalBackend)
    assert {"local", "memory"} <= set(schemes())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "starts with one of .*local:, memory:"),
        ("carrier-pigeon://x", "available: .*local:, memory:"),
        ("local://host/path", "names a host"),
        ("local:", "names no directory"),
        ("local:///", "names no directory"),
        ("memory:x", "expected memory: or memory://name"),
    ],
)
def test_an_error_about_a_bad_address_says_what_is_allowed(url: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        create_backend(url)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    for url in ("memory:", f"local://{tmp_path}"):
        with pytest.raises(BadConfig, match="password"):
            create_backend(url, password="x")


def third_party(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("thirdparty", value, registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else [])


def test_entry_points_name_further_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, "parley.consensus.memory:MemoryBackend")
    assert "thirdparty" in schemes()
    assert registry.backend_class("thirdparty") is MemoryBackend


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:Backend", "cannot be loaded"),
        ("parley.consensus.memory:NoSuch", "cannot be loaded"),
        ("parley.consensus.memory:MemoryStore", "is not a subclass of parley.consensus.backend.Backend"),
    ],
)
def test_broken_entry_points_are_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    third_party(monkeypatch, value)
    with pytest.raises(BadConfig, match=said):
        create_backend("thirdparty://x")


def test_an_error_about_a_missing_extra_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from parley.consensus.registry import create_backend\n"
        "try: create_backend('etcd://h')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "[etcd]'" in done.stdout


def test_built_in_schemes_do_not_read_the_installed_distributions() -> None:
    code = (
        "import sys; from parley.consensus.registry import create_backend; create_backend('memory:'); "
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    ("config", "url"),
    [
        ({"coordination.url": "etcd://h:2379/p"}, "etcd://h:2379/p"),
        ({"coordination.url": "etcd://h:2379/p", "zookeeper.connect": "z:2181"}, "etcd://h:2379/p"),
        ({"zookeeper.connect": "h1:2181,h2:2181/chroot"}, "zookeeper://h1:2181,h2:2181/chroot"),
        ({"zookeeper.connect": " h1 , h2:2182 "}, "zookeeper://h1,h2:2182"),
        ({"zookeeper.connect": "h1:2181/"}, "zookeeper://h1:2181"),
        (
            {"zookeeper.connect": "h1:2181", "zookeeper.set.acl": "true", "zookeeper.session.timeout.ms": "9000"},
            "zookeeper://h1:2181?acl=true&connect-timeout-ms=9000",
        ),
        ({"zookeeper.connect": "[::1]:2181/a/b"}, "zookeeper://[::1]:2181/a/b"),
        ({"log.dirs": "/data/1,/data/2", "log.dir": "/other"}, "local:///data/1/coordination"),
        ({"log.dir": "/other"}, "local:///other/coordination"),
    ],
)
def test_kafka_configuration(config: dict[str, str], url: str) -> None:
    assert configured_url(config) == url


def test_an_explicit_data_directory_wins_over_log_dirs() -> None:
    assert configured_url({"log.dirs": "/data/1"}, "/meta") == default_url("/meta") == "local:///meta/coordination"


@pytest.mark.parametrize("connect", ["h1:2181,,h2", ":2181", "h1:port", "h1:0", "h1:2181//a", "h1:99999"])
def test_malformed_zookeeper_connect(connect: str) -> None:
    with pytest.raises(BadConfig, match=r"zookeeper\.connect"):
        configured_url({"zookeeper.connect": connect})


def test_nowhere_to_keep_the_embedded_store() -> None:
    with pytest.raises(BadConfig, match=r"coordination\.url"):
        configured_url({})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"coordination.url": "memory:"}, True),
        ({"zookeeper.connect": "h:1"}, True),
        ({"zookeeper.connect": " ", "log.dirs": "/data"}, False),
    ],
)
def test_whether_a_configuration_names_a_store(config: dict[str, str], named: bool) -> None:
    assert names_store(config) == named


def test_brokers_name_no_store() -> None:
    folder = Path(__file__).parents[2] / "parley" / "broker"
    names = re.compile("zookeeper|etcd|consul|sqlite", re.I)
    of_kafka = re.compile(r"ZooKeeper\w*(Metrics|Ms|PerSec)\b")  # parts of the names of Kafka's metrics
    assert [str(path) for path in folder.rglob("*.py") if names.search(of_kafka.sub("", path.read_text()))] == []


def test_a_backend_declares_the_keys_that_are_known_without_loading_it() -> None:
    for scheme in built_in_stores.BACKENDS:
        assert backend_class(scheme).config is built_in_stores.CONFIGS.get(scheme, NO_CONFIG)


@pytest.mark.parametrize("scheme", built_in_stores.CONFIGS)
def test_the_keys_of_a_store_begin_with_its_scheme(scheme: str) -> None:
    store = built_in_stores.CONFIGS[scheme]
    names = [key.name for key in store.keys]
    assert all(name.startswith(f"{scheme}.") for name in [*names, *store.unused])
    assert len(set(names)) == len(names)
    assert {store.address_key, store.session_timeout_key} <= {*names, ""}


def test_the_keys_of_the_built_in_stores_are_known_without_their_clients() -> None:
    code = "import sys, parley.consensus.built_in_stores; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


class KeyedBackend(MemoryBackend):
    """A third party's store with its own configuration key."""

    config = StoreConfig(
        keys=(ConfigKey("thirdparty.password", ValueType.PASSWORD, None, "A secret."),),
        options=lambda given: {"password": given["thirdparty.password"]} if "thirdparty.password" in given else {},
    )

    @classmethod
    def from_url(cls, url: str, **options: object) -> Self:
        backend = cls()
        backend.password = options.get("password")  # type: ignore[attr-defined]
        return backend


class MisnamedBackend(KeyedBackend):
    config = StoreConfig(keys=(ConfigKey("broker.id", ValueType.INT, None, ""),))


async def test_a_backend_gets_the_options_that_its_keys_give(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, f"{__name__}:KeyedBackend")
    for given, password in (({"thirdparty.password": "p"}, "p"), ({"other.password": "p"}, None)):
        backend = await registry.backend_factory(given)("thirdparty://x")
        assert backend.password == password  # type: ignore[attr-defined]


def test_the_keys_of_a_third_party_must_begin_with_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, f"{__name__}:MisnamedBackend")
    with pytest.raises(BadConfig, match=r"must begin with thirdparty\."):
        registry.third_party_config("thirdparty")


def test_only_third_parties_have_a_third_party_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    third_party(monkeypatch, f"{__name__}:KeyedBackend")
    assert registry.third_party_config("thirdparty") is KeyedBackend.config
    assert registry.third_party_config("zookeeper") is None
    assert registry.third_party_config("nowhere") is None
