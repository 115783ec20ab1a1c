"""Every message in the documentation's tables of messages is in the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))

_TABLE: Final = re.compile(
    r"^\| (?:in the log|message|message or symptom|log line|event) \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE
)
_MESSAGE: Final = re.compile(r"`([^`]+)`")
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}|%[srd]")
_JOINED: Final = re.compile(r'"\s*\n\s*f?r?"')

FOREIGN: Final = (
    "Connection refused",
    "Connection reset by peer",
    "CERTIFICATE_VERIFY_FAILED",
    "Socket closed",
    "TSI_DATA_CORRUPTED",
    "Failed to create security handshaker",
    "Address already in use",
    "Cannot connect to host",
    "etcdserver:",
    "No cluster leader",
    "ACL not found",
    "Broker: Invalid message",
)
"""Text in these messages that comes from servers, libraries and clients."""

_COMPOSED: Final = (";", ": ", r"\b\d{3}\b", "this looks like", "does not respond", r"\? ")
"""Where the code puts a message together."""


def messages_of_code() -> str:
    """Return the sources of Parley, with adjacent string literals joined, and placeholders as one character."""
    sources = (path.read_text() for path in sorted((ROOT / "parley").rglob("*.py")))
    return _PLACEHOLDER.sub("\x00", "\n".join(_JOINED.sub("", source) for source in sources))


def messages_of(page: Path) -> list[str]:
    """Return the messages in the first columns of the page's tables of messages."""
    rows = "".join(_TABLE.findall(page.read_text())).splitlines()
    return [message for row in rows for message in _MESSAGE.findall(row.split(" | ")[0])]


def parts(message: str) -> list[re.Pattern[str]]:
    """Return what the code must spell out of a message, without foreign text. ``...`` stands for a placeholder."""
    found = re.split("|".join([*map(re.escape, FOREIGN), *_COMPOSED]), message)
    spelled = [[word.strip() for word in part.split("...") if word.strip()] for part in found]
    return [re.compile(".{0,120}".join(map(re.escape, words))) for words in spelled if " " in " ".join(words)]


@pytest.mark.slow
def test_each_message_of_a_table_is_in_the_code() -> None:
    code = messages_of_code()
    unknown = [
        f"{page.name}: {message}"
        for page in PAGES
        for message in messages_of(page)
        if not all(part.search(code) for part in parts(message))
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("page", ["stores.md", "operations.md", "damage.md", "transactions.md"])
def test_these_pages_have_messages(page: str) -> None:
    assert messages_of(ROOT / "docs" / page)
