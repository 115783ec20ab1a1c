"""The Spark format ``parley``: chooses the reader or writer for the options.

``CREATE TABLE ... USING parley`` is rejected: Spark stores the options of such a table, but does not pass them to a
source in Python. Spark requests the columns when it creates the table, unless the statement names them. In that call,
the options are those of the table, including ``provider`` and ``option.<name>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from parley.pipeline.format.options import (
    OptionError,
    SinkOptions,
    SourceOptions,
    only_topic,
    read_boolean,
    sink_options,
    source_options,
)
from parley.pipeline.format.sink import KafkaBatchWriter, KafkaStreamWriter, check_columns
from parley.pipeline.format.source import (
    KafkaBatchReader,
    KafkaStreamReader,
    NarrowedBatchReader,
    RefusedStreamReader,
    check_schema,
    source_schema,
)
from parley.pipeline.format.typed import TypedColumn, columns_of, requested_columns, sinks
from parley.pipeline.schemas.client import RegistryAway
from parley.pipeline.spark.shipping import Travels

_NO_TABLES: Final = (
    "a table USING parley would have no options when it is read, because Spark hands none of them to data sources in"
    " Python. Create a view: CREATE TEMPORARY VIEW orders USING parley OPTIONS ('kafka.bootstrap.servers' 'host:9092',"
    " subscribe 'orders'). Or read with options: SELECT * FROM orders WITH ('kafka.bootstrap.servers' = 'host:9092',"
    " 'subscribe' = 'orders')"
)


def _is_of_a_table(options: Mapping[str, str]) -> bool:
    return "provider" in options and any(name.startswith("option.") for name in options)


class ParleyDataSource(Travels, DataSource):
    """Topics of a Kafka cluster, with the options and columns of Spark's format ``kafka``."""

    @classmethod
    def name(cls) -> str:
        return "parley"

    def schema(self) -> StructType:
        if _is_of_a_table(self.options):
            raise OptionError(_NO_TABLES)
        fields, _ = _typed(self.options)
        return source_schema(self.options.get("includeheaders", "").strip().lower() == "true", fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self.options:
            raise OptionError(f"there are no options. If this is a table: {_NO_TABLES}")
        options = self._source(schema, streaming=False)
        return (
            NarrowedBatchReader(options)
            if read_boolean(self.options, "pushFilters", False)
            else KafkaBatchReader(options)
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return KafkaStreamReader(self._source(schema, streaming=True))
        except OptionError as error:
            return RefusedStreamReader(error)

    def _source(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = source_options(self.options, streaming=streaming)
        fields, columns = _typed(self.options, schema)
        check_schema(schema, options, fields)
        return replace(options, typed=columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("records can only be appended to a topic: write with mode('append')")
        return KafkaBatchWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return KafkaStreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> SinkOptions:
        options = sink_options(self.options)
        try:
            columns = sinks(requested_columns(self.options, options.topic), schema)
        except (ValueError, RegistryAway) as error:
            raise OptionError(f"{error}") from None
        check_columns(schema, options, [one.column for one in columns])
        return replace(options, typed=columns)


def _typed(options: Mapping[str, str], planned: StructType | None = None) -> tuple[StructType, tuple[TypedColumn, ...]]:
    """Return the types of the columns to which the options give one, and how these columns are read.

    ``planned`` are the columns that Spark has planned with. Raises OptionError.
    """
    try:
        return columns_of(requested_columns(options, only_topic(options)), planned)
    except (ValueError, RegistryAway) as error:
        raise OptionError(f"{error}") from None
