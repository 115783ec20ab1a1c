"""The error table, compared with Apache Kafka's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from parley.protocol.errors import ErrorCode, KafkaError
from tests.support.kafka_answers import computed_by_kafka


@pytest.mark.system
def test_the_table_is_kafkas() -> None:
    printed = computed_by_kafka(Path(__file__).with_name("KafkaErrors.java"))
    ours = {f"{code.value} {code.name} {str(code.retriable).lower()}" for code in ErrorCode}
    assert ours == set(printed.splitlines())


def test_every_code_has_a_meaning() -> None:
    for code in ErrorCode:
        assert code.message.endswith(".")
        assert isinstance(code.retriable, bool)
    assert len({code.message for code in ErrorCode}) == len(ErrorCode)


def test_codes_of_newer_brokers() -> None:
    assert ErrorCode(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ValueError, match="nonsense"):
        ErrorCode("nonsense")  # type: ignore[arg-type]


def test_an_error_names_its_code_and_message() -> None:
    plain, told = KafkaError(ErrorCode.NOT_CONTROLLER), KafkaError(ErrorCode.INVALID_CONFIG, "no such key: x")
    assert str(plain) == f"NOT_CONTROLLER: {ErrorCode.NOT_CONTROLLER.message}"
    assert str(told) == "INVALID_CONFIG: no such key: x"
    copied = pickle.loads(pickle.dumps(told))
    assert (copied.code, copied.message) == (told.code, told.message)
