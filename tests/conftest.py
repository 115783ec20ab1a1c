"""Settings for all tests: how many examples Hypothesis tries, and which tests only ``make soak`` runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings

from parley.tools.cli.start import COLLECT_AFTER
from tests.support.fast_folder import fast_folder

HERE = Path(__file__).parent
SYSTEM_TESTS = HERE / "system"
SPARK_TESTS = (HERE / "pipeline", HERE / "docs")
"""Where ``make test`` looks for tests with Spark."""
FIRST = frozenset({"test_image.py", "test_installing.py"})
"""Files whose tests take longest, one after the other. At the end, all other test processes would wait for them."""
SOAK_SECONDS = 900
"""What a test may take in ``make soak``: the limit ends tests that hang, and says nothing of the machine's speed."""
_MARKS_OF_FILE = re.compile(r"^pytestmark = .*$", re.MULTILINE)

# How long an example takes says nothing on a machine that does other things besides. The first one in a new checkout is
# always slow: hypothesis reads all modules for constants, and builds its tables of characters.
TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("parley", TIMELESS, max_examples=15)

os.environ["PARLEY_PROFILE"] = ""  # commands use no profile of the developer
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; its commands would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("fast", TIMELESS, max_examples=6)
settings.register_profile("soak", TIMELESS, max_examples=120)
settings.register_profile(
    "mutants", TIMELESS, max_examples=30, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("parley")


class _NotRewritten(MetaPathFinder):
    """Import Parley's modules as a broker does, from the bytecode that its processes share.

    pytest rewrites the assertions of every package whose distribution has a plugin. Each of a thousand modules is then
    compiled once more. Only the assertions of the conformance kit are reported to a user.

    It precedes pytest's finder and nothing else: ``tests.mutation`` plants mutants by a finder in front of all others.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("parley.") and not fullname.startswith("parley.consensus.conformance"):
            return PathFinder.find_spec(fullname, path, target)
        return None


for place, finder in enumerate(sys.meta_path):
    if type(finder).__module__.startswith("_pytest."):
        sys.meta_path.insert(place, _NotRewritten())
        break


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parley's own tests")
    group.addoption("--chaos-rounds", type=int, default=15, help="how often the chaos test hurts the cluster")
    group.addoption(
        "--store",
        default="local",
        choices=["local", "consul", "etcd", "zookeeper", "all"],
        help="the coordination store under the tests of clusters of processes; the suite has a choice of them on each",
    )
    group.addoption("--chaos-seed", type=int, default=1, help="what decides how")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory, except those of the long tests, which see a disk's real latency."""
    if "soak" not in config.option.markexpr and (folder := fast_folder()) is not None:
        tempfile.tempdir = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files whose tests all have a mark that ``-m "not this and not that"`` leaves out."""
    terms = config.option.markexpr.split(" and ")
    if not all(re.fullmatch(r"not \w+", term) for term in terms):
        return None
    left_out = {term.removeprefix("not ") for term in terms}
    if collection_path == SYSTEM_TESTS:
        return True if "system" in left_out else None
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    found = _MARKS_OF_FILE.search(collection_path.read_text())
    return True if found and left_out & set(re.findall(r"\bmark\.(\w+)", found[0])) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests only with ``-m soak``, the longest others first, and refuse tests with Spark that ``make test``
    would not find."""
    for item in items:
        if item.get_closest_marker("spark") and not any(item.path.is_relative_to(folder) for folder in SPARK_TESTS):
            raise pytest.UsageError(f"{item.nodeid} needs Spark: move it to tests/pipeline or tests/docs")
    if "soak" in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    items.sort(key=lambda item: item.path.name not in FIRST)


class TookTooLong(SystemExit):
    """A test has reached its time limit.

    An event loop passes this on, whichever task was interrupted. It would keep any other exception in that task, such
    as one of a broker, and the test would hang forever.
    """


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Iterator[None]:
    """Let the alarm at a test's time limit raise ``TookTooLong`` instead of a failure."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)

    def on_alarm(number: int, frame: FrameType | None) -> None:
        try:
            fail(number, frame)
        except pytest.fail.Exception as failure:
            with suppress(RuntimeError):  # no event loop is running
                if (task := asyncio.current_task()) is not None:
                    task.add_done_callback(asyncio.Task.exception)  # otherwise the task logs it when it is collected
            raise TookTooLong(failure.msg) from None

    if callable(fail):
        signal.signal(signal.SIGALRM, on_alarm)
    return result


@pytest.fixture(autouse=True)
def _logs_of_this_test(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep out of ``caplog`` what servers that several tests share log in their own threads, such as a slow store."""
    shared = set(threading.enumerate()) - {threading.current_thread()}

    def is_of_this_test(record: logging.LogRecord) -> bool:
        return threading.current_thread() not in shared

    caplog.handler.addFilter(is_of_this_test)
    yield
    caplog.handler.removeFilter(is_of_this_test)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: hardly any of the million objects that a collection of tests makes is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt the thousands of collected tests and their modules from garbage collection: they live to the end.

    Collect as seldom as a broker's process does. With Python's default, a tenth of the CPU time is for collections.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
