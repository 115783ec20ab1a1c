"""The entry point for Spark, which searches modules named ``pyspark_*`` for data sources called ``DefaultSource``.

Therefore ``format("parley")`` works wherever Parley is installed, without registration.
"""

from parley.pipeline.format.datasource import ParleyDataSource as DefaultSource

__all__ = ["DefaultSource"]
