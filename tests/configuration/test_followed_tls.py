"""A context whose certificates are replaced while it is used."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from parley.configuration.followed_tls import FollowedContext
from parley.configuration.tls import TlsSettings
from tests.support.certificates import Authority


def presented(server: ssl.SSLContext) -> bytes:
    """Return the certificate that a server with this context presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server)
    accepted = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (client, accepted):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_replaced_file_counts_from_the_next_handshake_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority, path = Authority(), tmp_path / "own.pem"
    authority.issue("one").write_pem(path)
    followed = FollowedContext({"ssl.keystore.location": str(path)}, TlsSettings.server_context)
    first = presented(followed)
    assert presented(followed) == first
    authority.issue("a longer name").write_pem(path)  # another size: file systems may be slow to tell the time
    second = presented(followed)
    assert second != first
    with caplog.at_level(logging.ERROR):
        path.write_text("nothing")
        assert presented(followed) == second
        assert presented(followed) == second
    assert len(caplog.records) == 1, "once for each file that cannot be used"
    path.unlink()
    assert presented(followed) == second
