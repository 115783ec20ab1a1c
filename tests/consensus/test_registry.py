from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from parley.consensus import registry
from parley.consensus.errors import BadConfig
from parley.consensus.local import LocalBackend
from parley.consensus.memory import MemoryBackend
from parley.consensus.registry import create_backend, default_url, from_kafka_config, names_store, schemes


def test_built_in_schemes(tmp_path: Path) -> None:
    assert isinstance(create_backend("memory:"), MemoryBackend)
    assert isinstance(create_backend(f"local://{tmp_path}"), LocalBackend)
    assert {"local", "memory"} <= set(schemes())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "starts with one of .*local:, memory:"),
        ("carrier-pigeon://x", "known are .*local:, memory:"),
        ("local://host/path", "names a host"),
        ("local:", "names no directory"),
        ("local:///", "names no directory"),
        ("memory:x", "expected memory: or memory://name"),
    ],
)
def test_bad_addresses_say_what_is_allowed(url: str, said: str) -> None:
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
        ("parley.consensus.memory:MemoryStore", "is not a parley.consensus.backend.Backend"),
    ],
)
def test_broken_entry_points_are_named(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    third_party(monkeypatch, value)
    with pytest.raises(BadConfig, match=said):
        create_backend("thirdparty://x")


def test_what_to_install_is_said() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from parley.consensus.registry import create_backend\n"
        "try: create_backend('etcd://h')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(registry.__file__).parents[1], capture_output=True, text=True
    )
    assert "pip install 'parley-broker[etcd]'" in done.stdout


def test_built_in_schemes_do_not_read_the_installed_distributions() -> None:
    code = (
        "import sys; from parley.consensus.registry import create_backend; create_backend('memory:'); "
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(registry.__file__).parents[1]).returncode == 0


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
    assert from_kafka_config(config) == url


def test_an_explicit_data_directory_wins_over_log_dirs() -> None:
    assert from_kafka_config({"log.dirs": "/data/1"}, "/meta") == default_url("/meta") == "local:///meta/coordination"


@pytest.mark.parametrize("connect", ["h1:2181,,h2", ":2181", "h1:port", "h1:0", "h1:2181//a", "h1:99999"])
def test_malformed_zookeeper_connect(connect: str) -> None:
    with pytest.raises(BadConfig, match=r"zookeeper\.connect"):
        from_kafka_config({"zookeeper.connect": connect})


def test_nowhere_to_keep_the_embedded_store() -> None:
    with pytest.raises(BadConfig, match=r"coordination\.url"):
        from_kafka_config({})


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


def test_brokers_name_no_store_except_by_the_keys_of_kafkas_configuration() -> None:
    folder = Path(__file__).parents[2] / "parley" / "broker"
    naming = [
        str(path)
        for path in folder.rglob("*.py")
        if folder / "config" not in path.parents and re.search("zookeeper|etcd|consul|sqlite", path.read_text(), re.I)
    ]
    assert naming == []
