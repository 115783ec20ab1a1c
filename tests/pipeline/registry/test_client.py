"""The pipeline's client of a schema registry, with responses that no test registry sends."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import Schema

from parley.pipeline.schemas.client import Client, RegistryRefused, Settings


def test_a_schema_of_an_unknown_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(Settings.of({"url": "http://localhost:1"}))
    monkeypatch.setattr(client, "_call", lambda *_: Schema("{}", "THRIFT"))
    with pytest.raises(RegistryRefused, match="of type THRIFT"):
        client.schema(1)
