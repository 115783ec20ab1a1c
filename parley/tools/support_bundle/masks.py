"""Remove secrets from texts: known secrets, as logs and URLs spell them, and whatever looks like a secret.

Known secrets shorter than ``SHORT`` characters are removed only as whole words; otherwise the password "a" would leave
nothing readable. These look like a secret: a private key, the value after a name such as ``password=``, a login in a
URL, and the credentials in an ``Authorization`` header.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

MASK: Final = "[hidden]"
SHORT: Final = 6
_LINE_MIN: Final = 16
"""Each line of a secret text, such as a PEM key, also counts as a secret by itself if it has at least this many
characters."""
_NAME: Final = r"(?:password|passwd|passphrase|secret|credentials?|api[._-]?key|access[._-]?key|token)[\w.-]{0,40}"
_QUOTED: Final = r"(\\?[\"'])(?:(?!\2).)*\2"
_LOOKS: Final = (
    (re.compile(r"-----BEGIN ([A-Z0-9 ]{0,30}PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?\w+\s+)[^\s'\",]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{16,}"), rf"\1{MASK}"),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,4096}\.[\w-]{8,4096}\.[\w-]*"), MASK),
    (re.compile(r"(?i)(://[^\s:/?#@]{0,256}:)[^\s/?#@]{1,1024}@"), rf"\1{MASK}@"),
    (re.compile(rf"(?i)(user_[\w.-]{{1,256}}\s*=\s*){_QUOTED}"), rf"\1\2{MASK}\2"),
    (re.compile(rf"(?i)({_NAME}\\?['\"]?\s*[=:]\s*){_QUOTED}"), rf"\1\2{MASK}\2"),
    (re.compile(rf"(?i)({_NAME}\s*=\s*)(?!\\?[\"'\[])[^\s,;&)]+"), rf"\1{MASK}"),
    (re.compile(rf"(?im)({_NAME}:[ \t]+)(?!\\?[\"'\[])\S+$"), rf"\1{MASK}"),
)
_EMPTY: Final = ("", MASK, "null", "true", "false", "none")


class Masks:
    """A filter that removes known secrets, and whatever looks like a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {each for secret in secrets for each in _spellings(secret)}
        patterns = [_pattern(each) for each in sorted(known, key=lambda each: (-len(each), each))]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for looks, instead in _LOOKS:
            text = looks.sub(instead, text)
        return text

    def data(self, data: Any) -> Any:
        """Return plain data without secrets in its keys and values."""
        match data:
            case str():
                return self.text(data)
            case Mapping():
                return {self.text(str(name)): self.data(value) for name, value in data.items()}
            case list() | tuple():
                return [self.data(each) for each in data]
            case _:
                return data


def _spellings(secret: str) -> Iterator[str]:
    """Yield the spellings of a secret in logs, URLs, JSON and headers."""
    for each in (secret, *(line.strip() for line in secret.splitlines() if len(line.strip()) >= _LINE_MIN)):
        if each.strip().lower() in _EMPTY:
            continue
        yield each
        yield json.dumps(each)[1:-1]
        yield json.dumps(each, ensure_ascii=False)[1:-1]
        yield repr(each)[1:-1]
        yield quote(each)
        yield quote(each, safe="")
        yield quote_plus(each)
        if len(each) >= SHORT:
            yield base64.b64encode(each.encode()).decode().rstrip("=")


def _pattern(secret: str) -> str:
    found = re.escape(secret)
    return found if len(secret) >= SHORT else rf"(?<!\w){found}(?!\w)"
