"""A Spark session with the settings that the pipeline's jobs need.

Rules: what the caller or ``spark-submit`` has set wins; a session that runs already is taken as it is. Times are UTC,
since a topic's are. Workers are started with this interpreter, so that they see what is installed beside Parley.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it a query without a trigger asks the cluster for its offsets a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.ui.showConsoleProgress": "false",
}


class SparkMissing(ImportError):
    """Spark is not installed; the text says how to install it."""


class SparkFailed(RuntimeError):
    """Spark did not start; it has said why on standard error."""


def require_spark() -> None:
    """Raises :class:`SparkMissing` where ``import pyspark`` would fail."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing("Spark is not installed here. Install it with `pip install 'parley[spark]'`.")


def spark_session(
    name: str = "parley", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A running Spark, ready for ``format("parley")``.

    ``master`` is any that Spark takes (``local[2]``, ``spark://host:7077``); None is what ``spark-submit`` says, or
    ``local[*,4]``: this machine, where a task that fails is tried again as on a cluster. ``settings`` are Spark's own.
    Raises :class:`SparkMissing`, :class:`SparkFailed` and :class:`pipeline.java.JavaMissing`, whose texts are for the
    user.
    """
    require_spark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running: SparkSession | None = SparkSession.getActiveSession()
    if running is not None:
        return running
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not inside of spark-submit, which has started its Java already
        os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's scripts look for `python3` there when nobody activated the environment.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    builder = SparkSession.builder.appName(name)
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(master or "local[*,4]")
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise SparkFailed(
            f"Spark did not start as {master or 'this machine'}; what it says above tells why."
        ) from error
    return session


def is_running(session: SparkSession) -> bool:
    """Whether Spark takes jobs: it has not stopped by itself, and its Java has not ended."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # what a dead Java raises depends on where it died
        return False


def forget_session(session: SparkSession) -> None:
    """Forget a Spark that does not run any longer, so that `spark_session` starts another in this process.

    PySpark has no way to do that once its Java has ended: it asks the old one for everything, for ever.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):
        session.stop()
    with SparkContext._lock:
        gateway = SparkContext._gateway
        java = getattr(gateway, "proc", None)
        SparkContext._active_spark_context = None
        if gateway is not None and java is not None and java.poll() is not None:
            with suppress(Exception):
                gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
