"""Topic names: which are legal, which collide, and which belong to internal topics (Kafka's rules)."""

from __future__ import annotations

import re

from parley.protocol.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
"""The maximum length of a topic name, in characters. It leaves room for ``-<partition>`` and a suffix in a file name of
255 bytes."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})
"""Topics that only brokers write to. Clients may create, configure and delete them like other topics."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if ``name`` is not a legal topic name."""
    problem = _problem(name)
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def is_valid_name(name: str) -> bool:
    """Return True if ``name`` is a legal topic name."""
    return not _problem(name)


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
    """Return the form of a topic name in metrics. As in Kafka, no two topics may have names with the same form."""
    return name.replace(".", "_")
