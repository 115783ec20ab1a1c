"""Which topic names are legal (Kafka's rule), and which collide."""

from __future__ import annotations

import re

from parley.protocol.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
"""Characters: leaves room for ``-<partition>`` and a suffix within a file name of 255 bytes."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that brokers write. Clients may not produce to them, but create, configure and delete them like others."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """Raise ``INVALID_TOPIC_EXCEPTION`` unless ``name`` may name a topic."""
    problem = _problem(name)
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _problem(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return "'.' or '..' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name[:20]}...' is {len(name)}, longer than the {NAME_LENGTH_MAX} characters allowed"
    if not _LEGAL.match(name):
        return f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'"
    return ""


def metric_form(name: str) -> str:
    """Two topics whose names are equal in this form would share their metrics: Kafka calls them colliding."""
    return name.replace(".", "_")
