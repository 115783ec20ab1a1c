"""What Spark finds when it looks for data sources: modules named ``pyspark_*`` that have a ``DefaultSource``.

So ``format("parley")`` works wherever Parley is installed, without registering anything.
"""

from parley.pipeline.format.datasource import ParleyDataSource as DefaultSource

__all__ = ["DefaultSource"]
