"""A response of ``metrics.listener`` as bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from parley.broker.metrics.http_messages import HttpResponse, asks_for_body


def test_a_response_tells_the_time() -> None:
    """``parley doctor`` finds wrong clocks by it."""
    head, _, body = HttpResponse("200 OK", b"fine\n").encoded().partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert abs(parsedate_to_datetime(fields["Date"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert fields["Content-Length"] == str(len(body))


def test_the_response_to_head_is_only_the_header() -> None:
    page = HttpResponse("200 OK", b"fine\n")
    head, _, body = page.encoded(with_body=False).partition(b"\r\n\r\n")
    assert b"Content-Length: 5" in head
    assert not body
    assert not asks_for_body(b"HEAD /livez HTTP/1.1\r\n")
    assert asks_for_body(b"GET /HEAD HTTP/1.1\r\n")
