"""Fixtures shared by the protocol's tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.protocol.kafka_definitions import RELEASES, Reference, references

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kafka_releases() -> list[Path]:
    """Return the directories of unpacked Apache Kafka releases, the newest first."""
    found = [REPOSITORY / ".cache" / f"kafka-{release}" for release in RELEASES]
    for directory in found:
        if not any(directory.glob("libs/kafka-clients-*.jar")):
            pytest.fail(f"no kafka-clients jar in {directory / 'libs'}: run `make peers`", pytrace=False)
    return found


@pytest.fixture(scope="session")
def kafka_messages(kafka_releases: list[Path]) -> Mapping[str, Reference]:
    """Kafka's own definitions of all its messages, by name."""
    return references(kafka_releases)
