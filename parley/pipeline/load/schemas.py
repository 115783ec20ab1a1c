"""Reads the schemas of values that users write: Avro, JSON Schema, or Spark's DDL.

A string that begins with a brace, a bracket or a quotation mark is JSON: a JSON Schema if it has ``properties``,
otherwise an Avro schema. Any other string is DDL (``id bigint, name string``), which Spark itself reads.
"""

from __future__ import annotations

import json

from parley.pipeline.load.columns import BadLayout
from parley.pipeline.load.value_reading import ValueSchema
from parley.pipeline.schemas import avro_rows, json_rows
from parley.pipeline.schemas.model import BadSchema, Schema, SchemaType, no_references


def read_schema(text: str) -> ValueSchema:
    """Parse a schema in Avro, JSON Schema or DDL. Raises BadLayout if it is invalid. DDL needs a running
    Spark session.
    """
    if not text.strip():
        raise BadLayout("the schema is empty")
    if text.strip()[0] not in '{["':
        return _from_ddl(text)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise BadLayout(f"the schema is not JSON: {error}") from None
    try:
        if isinstance(parsed, dict) and "properties" in parsed:
            return ValueSchema(json_rows.column_type(Schema(SchemaType.JSON, text), no_references, of_files=True))
        schema = Schema(SchemaType.AVRO, text)
        return ValueSchema(avro_rows.column_type(schema, no_references, of_files=True), schema)
    except BadSchema as error:
        raise BadLayout(f"the schema cannot be used: {error}") from None


def _from_ddl(text: str) -> ValueSchema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    try:
        return ValueSchema(to_arrow_type(StructType.fromDDL(text), timezone="UTC"))
    except PySparkException as error:
        raise BadLayout(f"the schema is neither JSON nor DDL: {error}") from None
