"""A Spark session with the settings that the pipeline's jobs need.

Rules: settings of the caller or of ``spark-submit`` win, and a running session is used as it is. Times are UTC, as in
topics. Workers are started with this interpreter, so that they see the packages installed beside Parley. A quiet Spark
logs errors only, unless the user has a Spark configuration (``SPARK_CONF_DIR``, ``SPARK_HOME``), which then decides
what is logged at startup. If startup is interrupted, no Java process is left behind.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parley.configuration.extras import how_to_install
from parley.pipeline.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Otherwise a query without a trigger asks the cluster for its offsets a hundred times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own expression, and options with secrets that it does not know: JAAS lines, keys as text, mirrors' flows.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|^flows$",
}

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_STOP_S: Final = 10.0
_EXECUTORS_S: Final = 30.0
"""How long (s) to wait for executors."""
_SETTLED_S: Final = 2.0
"""If no executor has registered for this long, all executors are assumed to have registered."""
_LOOK_S: Final = 0.1


class SparkMissing(ImportError):
    """Raised if Spark is not installed. The message says how to install it."""


class SparkFailed(RuntimeError):
    """Raised if Spark did not start (its standard error gives the reason), or ended while it was needed."""


def require_spark() -> None:
    """Raise ``SparkMissing`` if ``import pyspark`` would fail."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing(f"Spark is not installed here. Install it: {how_to_install('spark')}.")


def check_spark() -> None:
    """Check that Spark can be started. Raises ``SparkMissing`` and ``parley.pipeline.spark.java.JavaMissing``."""
    require_spark()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        java_home()


def spark_session(
    name: str = "parley",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return a running session, ready for ``format("parley")``.

    ``master`` is any master that Spark accepts (``local[2]``, ``spark://host:7077``). None means the master of
    ``spark-submit``, or ``local[*,4]``: this machine, with failed tasks retried as in a cluster. ``settings`` are
    Spark's settings. With ``quiet``, Spark logs errors only. Raises ``SparkMissing``, ``SparkFailed`` and
    ``parley.pipeline.spark.java.JavaMissing``, whose texts are for the user.
    """
    require_spark()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running: SparkSession | None = SparkSession.getActiveSession()
    if running is not None:
        return running
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which has already started Java
        os.environ["JAVA_HOME"] = str(java_home())
    if "spark.pyspark.python" in (settings or {}):  # Spark's own scripts do the same
        os.environ["PYSPARK_PYTHON"] = (settings or {})["spark.pyspark.python"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark's scripts look for `python3` there when the environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    builder = SparkSession.builder.appName(name)
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(master or "local[*,4]")
    wanted = {**SETTINGS, **(settings or {})}
    for key, value in (_quietly(wanted) if quiet else wanted).items():
        builder = builder.config(key, value)
    try:
        with _java_ends_if_interrupted():
            session: SparkSession = builder.getOrCreate()
            if quiet:
                session.sparkContext.setLogLevel("ERROR")
    except PySparkRuntimeError as error:
        raise SparkFailed(f"Spark did not start as {master or 'this machine'}; its output above says why.") from error
    return session


def parallelism(session: SparkSession) -> int:
    """Return how many tasks run at the same time. Waits until the executors have registered.

    ``defaultParallelism`` counts only executors that have registered: few or none just after a start on a cluster.
    """
    context = session.sparkContext
    if not context.master.startswith("local"):
        most = int(context.getConf().get("spark.cores.max", "0")) or sys.maxsize

        def look() -> tuple[int, int]:
            executors = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # one is the driver
            return executors, context.defaultParallelism

        wait_for_executors(look, most)
    return int(context.defaultParallelism)


def wait_for_executors(
    look: Callable[[], tuple[int, int]],
    cores_max: int,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until there are ``cores_max`` cores, or until no executor has registered for ``_SETTLED_S``, but at most
    ``_EXECUTORS_S``.

    ``look`` returns how many executors and how many cores have registered.
    """
    begun = since = now()
    found = look()
    while now() - begun < _EXECUTORS_S:
        executors, cores = found
        if executors and (cores >= cores_max or now() - since >= _SETTLED_S):
            return
        sleep(_LOOK_S)
        before, found = found, look()
        since = since if found == before else now()


def _quietly(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings with which Spark logs only errors while it starts."""
    if "SPARK_CONF_DIR" in environ or "SPARK_HOME" in environ or "log4j2." in settings.get(_JAVA_OPTIONS, ""):
        return dict(settings)
    option = f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"'
    return {**settings, _JAVA_OPTIONS: f"{settings.get(_JAVA_OPTIONS, '')} {option}".lstrip()}


@contextmanager
def _java_ends_if_interrupted() -> Iterator[None]:
    """Terminate the Java process that PySpark is starting if the body of ``with`` is interrupted. PySpark would leave
    it running.
    """
    from pyspark import java_gateway

    started: list[subprocess.Popen[bytes]] = []

    def start(*words: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*words, **settings))
        return started[-1]

    before = java_gateway.Popen
    java_gateway.Popen = start
    try:
        yield
    except Exception:
        raise
    except BaseException:
        for java in started:
            java.terminate()
            try:
                java.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                java.kill()
        raise
    finally:
        java_gateway.Popen = before


@contextmanager
def stopped_at_the_end(session: SparkSession) -> Iterator[SparkSession]:
    """Stop Spark at the end of ``with``. Raises SparkFailed if Spark has ended by itself."""
    from py4j.protocol import Py4JError

    try:
        yield session
    except (OSError, EOFError, Py4JError) as error:
        if is_running(session):
            raise
        raise SparkFailed(f"Spark has ended: {error}.") from error
    finally:
        with suppress(Exception):  # it may have ended, or may be ending
            session.stop()


def is_running(session: SparkSession) -> bool:
    """Return True if Spark accepts jobs: it has not stopped by itself, and its Java process has not ended."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # what a dead Java raises depends on when it died
        return False
