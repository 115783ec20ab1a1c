"""The format ``parley`` of Spark: which reader or writer the options ask for."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from parley.pipeline.format.options import OptionError, SinkOptions, sink_options, source_options
from parley.pipeline.format.sink import KafkaBatchWriter, KafkaStreamWriter, check_columns
from parley.pipeline.format.source import (
    KafkaBatchReader,
    KafkaStreamReader,
    RefusedStreamReader,
    check_schema,
    source_schema,
)

__all__ = ["ParleyDataSource"]


class ParleyDataSource(DataSource):
    """Topics of a Kafka cluster, with the options and columns of Spark's format ``kafka``."""

    @classmethod
    def name(cls) -> str:
        return "parley"

    def schema(self) -> StructType:
        return source_schema(self.options.get("includeheaders", "").strip().lower() == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, streaming=False)
        check_schema(schema, options)
        return KafkaBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = source_options(self.options, streaming=True)
            check_schema(schema, options)
        except OptionError as error:
            return RefusedStreamReader(error)
        return KafkaStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a topic is only ever added to: write with mode('append')")
        return KafkaBatchWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return KafkaStreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> SinkOptions:
        options = sink_options(self.options)
        check_columns(schema, options)
        return options
