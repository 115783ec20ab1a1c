"""Paths that two parsers may read differently; the texts are recorded from Kafka Connect 4.3.1."""

from __future__ import annotations

import pytest

from parley.pipeline.connect.rest.paths import ambiguity


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (b"/connectors/a%20b/status", None),
        (b"/connectors/..a", None),
        (b"/connectors/%E4%BD%A0", None),
        (b"/connectors/a;x=1", None),
        (b"/connectors/%3F%23", None),
        (b"/connectors/a%2fb", "Ambiguous URI path separator"),
        (b"/connectors/a%252fb", "Ambiguous URI path encoding"),
        (b"/connectors/%2e%2E/x", "Ambiguous URI path segment"),
        (b"/connectors/.%2e", "Ambiguous URI path segment"),
        (b"//connectors", "Ambiguous URI empty segment"),
        (b"/connectors/a%5Cb", "Suspicious Path Character"),
        (b"/connectors/a%0Ab", "Suspicious Path Character"),
        (b"/connectors/%7f", "Suspicious Path Character"),
        (b"/connectors/%ff", "Bad UTF-8 encoding"),
        (b"/connectors/%zz", "Bad Request"),
        (b"/connectors/a%", "Bad Request"),
        (b"/connectors/a%00", "Bad Request"),
    ],
)
def test_ambiguous_paths_are_refused(path: bytes, problem: str | None) -> None:
    assert ambiguity(path) == problem
