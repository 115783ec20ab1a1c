"""Which Spark types a typed column of a topic can have. No registry is needed to decide that."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from parley.pipeline.format.typed import requested_columns, sinks


def _struct(name: str, kind: DataType) -> StructType:
    return StructType([StructField(name, kind)])


@pytest.mark.parametrize(
    ("written", "named"),
    [
        (_struct("v", VariantType()), "value.v is of type variant,"),
        (_struct("a", ArrayType(_struct("v", VariantType()))), "value.a.element.v is of type variant,"),
        (_struct("m", MapType(NullType(), NullType())), "value.m is of type map<void,void>,"),
        (_struct("m", MapType(StringType(), YearMonthIntervalType(0, 0))), "value.m.value is of type interval year,"),
    ],
)
@pytest.mark.parametrize("version", ["", "1"])
def test_a_field_that_cannot_be_written_is_named(written: DataType, named: str, version: str) -> None:
    options = {"valueFormat": "avro", "schema.registry.url": "http://127.0.0.1:1", "valueSchemaVersion": version}
    with pytest.raises(ValueError, match=re.escape(named)):
        sinks(requested_columns(options, "t"), _struct("value", written))
