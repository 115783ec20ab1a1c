"""The format ``parley`` of Spark: which reader or writer the options ask for."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pipeline.options import source_options
from pipeline.source import KafkaBatchReader, KafkaStreamReader, check_schema, source_schema

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
        options = source_options(self.options, streaming=True)
        check_schema(schema, options)
        return KafkaStreamReader(options)
