"""Topics into a Delta table, each record once.

The table's own log carries how far each partition has come, as Delta's application transactions do for streams
(``txn``: application id ``<connector>:<topic>-<partition>``, version: the end of the range): rows and offset are
committed together, and a task that comes back asks the table; one that is late, because another has taken its place,
gives up. The table is made by the first write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from parley.pipeline.connect.config import ConfigType, Importance
from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import table_of
from parley.pipeline.connect.connectors.ranges import range_keys
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition

__all__ = ["DeltaSinkConnector", "DeltaSinkTask"]

_STORAGE: Final = "storage."
_VERSION: Final = "1.0"
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


class DeltaSinkTask(ExactlyOnceSinkTask):
    """Appends a commit for each range that it is given."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        config = DeltaSinkConnector.config_def.parse(props)
        self.range_records = config["flush.size"]
        self.range_ms = config["rotate.interval.ms"]
        self._name = props.get("name", "")
        self._url: str = config["url"]
        self._columns: list[str] = config["partition.columns"]
        self._evolves: bool = config["schema.evolution"]
        self._with_source: bool = config["metadata.columns"]
        self._storage = {key.removeprefix(_STORAGE): value for key, value in props.items() if key.startswith(_STORAGE)}

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        table = self._table()
        if table is None:
            return {}
        ends = {one: table.transaction_version(self._application(one)) for one in partitions}
        return {one: end for one, end in ends.items() if end is not None}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        if not records:
            return  # nothing of the range is left; a restart would read it again, and leave it out again
        rows = table_of(records, with_source=self._with_source)
        table, application = self._table(), self._application(offsets.topic_partition)
        end = None if table is None else table.transaction_version(application)
        if end is not None and end > offsets.start:
            raise ConnectError(f"{offsets} was written by another task: the table has it up to {end}")
        done = Transaction(application, offsets.end)
        try:
            write_deltalake(
                self._url if table is None else table,  # as it was looked at: a commit meanwhile is a conflict
                rows,
                mode="append",
                schema_mode="merge" if self._evolves else None,
                partition_by=self._columns or None,
                storage_options=self._storage or None,
                commit_properties=CommitProperties(app_transactions=[done]),
            )
        except SchemaMismatchError as error:
            raise ConnectError(
                f"{offsets} does not fit the table {self._url}: {error}. schema.evolution=true adds columns."
            ) from error
        except (CommitFailedError, OSError) as error:
            raise RetriableError(f"{offsets} cannot be committed to {self._url}: {error}") from error
        except Exception as error:  # the library raises what has no class of its own for values that do not fit
            raise ConnectError(f"{offsets} cannot be written to {self._url}: {error}") from error

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._url, storage_options=self._storage or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise RetriableError(f"the table {self._url} cannot be opened: {error}") from error

    def _application(self, partition: TopicPartition) -> str:
        return f"{self._name}:{partition}"


class DeltaSinkConnector(SinkConnector):
    """See the module."""

    version = _VERSION
    task_class = DeltaSinkTask
    config_def = (
        range_keys("The table: a folder, or s3://bucket/path, gs://..., abfs://...; storage.* are for the store.")
        .define("partition.columns", ConfigType.LIST, [], _MEDIUM, "The columns a new table is divided by.")
        .define("schema.evolution", ConfigType.BOOLEAN, True, _MEDIUM, "Whether fields that are new become columns.")
        .define(
            "metadata.columns",
            ConfigType.BOOLEAN,
            True,
            _MEDIUM,
            "Whether the table has the columns kafka_key, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp.",
        )
    )

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        raise ConnectError(
            "The table says how far this connector has come, so its offsets cannot be changed here: delete the "
            "connector and make one of another name, which begins anew."
        )
