"""``make peers`` when everything is installed, and when a download fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system import peers


def test_nothing_is_run_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*words: object, **options: object) -> None:
        pytest.fail(f"ran {words}")

    monkeypatch.setattr(subprocess, "run", ran)
    assert [peers.main(part) for part in (None, "programs", "downloads")] == [0, 0, 0]
    assert [peers.main(store) for store in peers.STORES] == [0, 0, 0, 0]


def test_a_store_gets_its_own_server_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(peers, "install_programs", asked.append)
    monkeypatch.delenv("PARLEY_ETCD", raising=False)
    assert peers.main("etcd") == 0
    assert asked == [{"etcd": "etcd-server"}]
    monkeypatch.setenv("PARLEY_ETCD", "/my/etcd")
    assert peers.main("etcd") == 0
    assert len(asked) == 1


def test_programs_and_downloads_need_no_installed_package() -> None:
    """``make test`` gets them while Parley's requirements are installed."""
    program = "import sys; from tests.system import peers; sys.exit(peers.main('programs') or peers.main('downloads'))"
    environment = os.environ | {"PYTHONPATH": str(peers.CACHE.parent)}
    subprocess.run([sys.executable, "-S", "-c", program], env=environment, check=True)  # -S: without installed packages


def test_an_error_about_an_unknown_store_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main("oracle") == 1
    assert "local, zookeeper, etcd, consul" in capsys.readouterr().err


def test_a_download_is_tried_again(tmp_path: Path) -> None:
    counter = tmp_path / "attempts"
    program = f"open({str(counter)!r}, 'a').write('x'); raise SystemExit(len(open({str(counter)!r}).read()) < 3)"
    pauses: list[float] = []
    peers._again([sys.executable, "-c", program], 60, pauses.append)
    assert counter.read_text() == "xxx"
    assert len(pauses) == 2


def test_a_download_that_cannot_succeed_says_so() -> None:
    with pytest.raises(peers.PeerError, match="failed 3 times"):
        peers._again(["false"], 60, lambda _: None)
    with pytest.raises(peers.PeerError, match="failed 3 times"):
        peers._again(["sleep", "60"], 0, lambda _: None)


def test_without_rights_the_message_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_as_root", lambda: None)
    with pytest.raises(peers.PeerError, match=r"sudo apt-get install .*some-package"):
        peers.install_programs({"no-such-program": "some-package"})


def test_a_version_is_in_the_cache_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(command: list[str], *rest: object) -> None:
        raise peers.PeerError("no network")

    monkeypatch.setattr(peers, "CACHE", tmp_path)
    monkeypatch.setattr(peers, "_again", fails)
    with pytest.raises(peers.PeerError):
        peers.install_kafka("1.0", [("group", "name", "1.0")])
    assert list(tmp_path.iterdir()) == []
