"""A Spark job whose options contain marked secrets: ``python -m tests.pipeline.marked_secrets FOLDER``.

It reads and writes topics, as a batch and as a stream, once with the right credentials and once with wrong ones. It
writes to ``FOLDER/shown`` everything that Spark shows about that: plans, pages of its UI, responses of its REST API and
errors; and to ``FOLDER/events`` its event log. Standard input contains the options as JSON, with the "right" and with a
"wrong" password.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from parley.pipeline.spark.session import spark_session
from tests.support.java_archives import small_spark

PLANS = ("extended", "formatted")
PAGES = ("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/")
ANSWERS = ("environment", "jobs", "stages?details=true", "sql?details=true&planDescription=true&length=1000")
WAIT_S = 600
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": small_spark(),
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",  # the test searches it for the marks
    "spark.log.level": "DEBUG",
}


class Shown:
    """Stores what Spark shows, in one file for each place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def note(self, place: str, text: object) -> None:
        with (self._folder / place.strip("/").replace("/", "_").replace("?", "_")).open("a") as file:
            file.write(f"{text}\n")

    def plans(self, name: str, rows: DataFrame) -> None:
        for mode in PLANS:
            with contextlib.redirect_stdout(io.StringIO()) as text:
                rows.explain(mode=mode)
            self.note(f"{name}, plan {mode}", text.getvalue())
        self.note(f"{name}, repr", repr(rows))

    def failure(self, name: str, run: Callable[[], Any]) -> None:
        try:
            run()
        except Exception as error:
            self.note(f"{name}, error", repr(error) + str(error))
        else:
            raise SystemExit(f"{name} did not fail")


def use(spark: SparkSession, shown: Shown, options: dict[str, str], folder: Path) -> None:
    """Copy a topic, as a batch and as a stream."""
    rows = spark.read.format("parley").options(**options).option("subscribe", "secrets-in").load()
    shown.plans("read", rows)
    rows.select("key", "value").write.format("parley").options(**options).option("topic", "secrets-out").mode(
        "append"
    ).save()
    stream = spark.readStream.format("parley").options(**options).option("subscribe", "secrets-in")
    copied = stream.option("startingOffsets", "earliest").load().select("key", "value")
    writer = copied.writeStream.format("parley").options(**options).option("topic", "secrets-out")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    with contextlib.redirect_stdout(io.StringIO()) as text:
        query.explain(True)
    shown.note("stream, plan", text.getvalue())
    shown.note("stream, progress", [each.json for each in query.recentProgress])


def fail(spark: SparkSession, shown: Shown, wrong: dict[str, str], folder: Path) -> None:
    """Use wrong credentials, and invalid options."""
    rows = spark.read.format("parley").options(**wrong).option("subscribe", "secrets-in").load()
    shown.failure("read", rows.count)
    refused = spark.read.format("parley").options(**wrong).option("subscribe", "a").option("assign", "b")
    shown.failure("options", lambda: refused.load().count())
    some = spark.createDataFrame([(b"1",)], "value binary")
    writer = some.write.format("parley").options(**wrong).option("topic", "secrets-out").mode("append")
    shown.failure("write", writer.save)
    stream = spark.readStream.format("parley").options(**wrong).option("subscribe", "secrets-in").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "failed")).start()
    shown.failure("stream", query.awaitTermination)
    shown.note("stream, exception", query.exception())


def look(spark: SparkSession, shown: Shown) -> None:
    """Store the pages of the UI, and the responses of the REST API."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(1000 * WAIT_S)  # the UI has seen all
    address = spark.sparkContext.uiWebUrl
    application = spark.sparkContext.applicationId

    def get(path: str) -> str:
        with urllib.request.urlopen(f"{address}{path}", timeout=WAIT_S) as response:
            text: str = response.read().decode()
            return text

    for page in PAGES:
        shown.note(f"page {page}", get(page))
    for answer in ANSWERS:
        shown.note(f"api {answer}", get(f"/api/v1/applications/{application}/{answer}"))
    executions = json.loads(get(f"/api/v1/applications/{application}/sql?length=1000"))
    for execution in executions:
        shown.note("page SQL execution", get(f"/SQL/execution/?id={execution['id']}"))
    for job in json.loads(get(f"/api/v1/applications/{application}/jobs")):
        shown.note("page job", get(f"/jobs/job/?id={job['jobId']}"))
    if not executions:
        raise SystemExit("the UI shows no execution")


def main() -> None:
    folder, options = Path(sys.argv[1]), json.load(sys.stdin)
    (folder / "events").mkdir()
    where = {"spark.eventLog.dir": (folder / "events").as_uri(), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = spark_session("secrets", master="local[2,1]", settings={**SETTINGS, **where})
    shown = Shown(folder / "shown")
    use(spark, shown, options["right"], folder)
    fail(spark, shown, options["wrong"], folder)
    look(spark, shown)
    spark.stop()


if __name__ == "__main__":
    main()
