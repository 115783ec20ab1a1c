"""With ``tls=true`` and no ``ca-file``, etcd's client trusts the authorities of the operating system, as OpenSSL finds
them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from parley.consensus.errors import BadConfig
from parley.consensus.etcd.address import parse, read_secrets
from tests.support.certificates import Authority

FIRST, SECOND = Authority("first"), Authority("second")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which OpenSSL looks for the file ``authorities.pem`` and the folder ``authorities``."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "authorities"))
    (tmp_path / "authorities").mkdir()
    return tmp_path


def trusted(url: str = "etcd://h?tls=true") -> set[str]:
    """Return the certificates that a client of this address trusts."""
    pem = (read_secrets(parse(url, {})).ca or b"").decode()
    return set(re.findall(r"-----BEGIN.+?-----END CERTIFICATE-----\n", pem, re.DOTALL))


def test_the_authorities_in_the_systems_file_and_folder_are_trusted(system: Path) -> None:
    FIRST.write(system / "authorities.pem")
    FIRST.write(system / "authorities" / "first.pem")
    SECOND.write(system / "authorities" / "second.pem")
    assert trusted() == {FIRST.pem}, "in the folder, OpenSSL reads only files with hashed names"
    subprocess.run(["openssl", "rehash", str(system / "authorities")], check=True, timeout=60)
    (system / "authorities" / "0123abcd.0").write_text("not a certificate")
    assert trusted() == {FIRST.pem, SECOND.pem}


def test_a_system_without_authorities_is_refused_with_advice(system: Path) -> None:
    with pytest.raises(BadConfig, match=r"install them .*or add ca-file"):
        trusted()


def test_the_systems_authorities_are_not_added_to_those_of_a_file(system: Path) -> None:
    FIRST.write(system / "authorities.pem")
    second = SECOND.write(system / "second.pem")
    assert trusted(f"etcd://h?ca-file={second}") == {SECOND.pem}
    assert trusted("etcd://h") == set(), "without TLS nothing is read"
