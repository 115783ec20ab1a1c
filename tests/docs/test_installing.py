"""The wheel and the source distribution install into a user's project, and need no name of it (docs/embedding.md).

Both are installed into environments of their own. The libraries they need come from this environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.java_archives import small_spark

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"parley", "pyspark_parley"}
QUIET = ("-q", "--no-deps", "--disable-pip-version-check")

OWN_MODULES = ("tools/__init__.py", "protocol/__init__.py", "tests/__init__.py", "pipeline/__init__.py",
               "broker.py", "storage.py", "consensus.py")  # fmt: skip
"""Modules of the user's own, with names that a broker could have taken."""

EMBEDDING = """
import broker, consensus, pipeline, protocol, storage, tests, tools
assert all(module.OWN for module in (broker, consensus, pipeline, protocol, storage, tests, tools))

from confluent_kafka import Producer
from parley import Broker, read_topic

with Broker(data_dir="data") as running:
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        producer.produce("t", b"x")
    assert read_topic(running.bootstrap_servers, "t").num_rows == 1
"""

FIXTURE = """
import broker, storage, tools

def test_mine(kafka_broker):
    assert broker.OWN and storage.OWN and tools.OWN
    kafka_broker.create_topic("t")
"""

SPARK = """
import sys, tools, protocol
from confluent_kafka import Producer
from parley import Broker
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = spark.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
with Broker(data_dir="data") as running:
    with Producer({"bootstrap.servers": running.bootstrap_servers}) as producer:
        producer.produce("t", b"x")
    options = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": "t"}
    assert [bytes(row.value) for row in spark.read.format("parley").options(**options).load().collect()] == [b"x"]
spark.stop()
"""


class Installed:
    """An environment with Parley in it, and nothing of this clone."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        _done(sys.executable, "-m", "venv", "--without-pip", str(folder))
        self.python = folder / "bin" / "python"
        site = Path(_done(str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        _done(sys.executable, "-m", "pip", "--python", str(self.python), "install", *QUIET, str(wheel))
        self.site = site
        # A path in a .pth file lends the libraries. The .pth files beside them, which lead to this clone, are not read.
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, folder: Path, *words: str) -> str:
        # As in an activated environment: Spark's workers run the python3 of the path.
        return _done(str(self.python), *words, cwd=folder, PATH=f"{self.python.parent}:{os.environ['PATH']}")

    def names(self) -> set[str]:
        """What can be imported because Parley is installed."""
        beside = {".dist-info", ".pth"}
        return {path.name for path in self.site.iterdir() if path.suffix not in beside} - {"__pycache__"}


def _done(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "PARLEY"))}
    done = subprocess.run(words, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions() -> Path:
    """The folder that ``make dist`` would fill: the wheel is built from the source distribution.

    It is kept until a file that goes into it changes: to build takes half a minute, and the tests with Spark use the
    same one.
    """
    folder = ROOT / ".cache" / "dist" / _digest_of_sources()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in folder.parent.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            made = folder.with_suffix(".made")
            _done(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(ROOT))
            made.rename(folder)
    return folder


def _digest_of_sources() -> str:
    """The digest of everything outside of the tests and the pages that a build may read."""
    found = hashlib.sha256(sys.version.encode())
    for path in sorted(
        [
            *ROOT.glob("*"),
            *(ROOT / "docs" / "man").glob("*"),
            *(file for name in TOP_LEVEL for file in (ROOT / name).rglob("*")),
        ]
    ):
        if path.is_file() and path.suffix not in {".so", ".pyc"} and path.name != "_built.json":
            found.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="module")
def wheel(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    (file,) = distributions.glob("parley_broker-*.whl")
    return Installed(tmp_path_factory.mktemp("wheel"), file)


@pytest.fixture(scope="module")
def source(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The source distribution, installed as on a machine without a C compiler."""
    (archive,) = distributions.glob("parley_broker-*.tar.gz")
    folder = tmp_path_factory.mktemp("pure")
    build = ("wheel", "--no-build-isolation", *QUIET, "--wheel-dir", str(folder), str(archive))
    _done(sys.executable, "-m", "pip", *build, PARLEY_PURE="1")
    (file,) = folder.glob("parley_broker-*-py3-none-any.whl")
    return Installed(tmp_path_factory.mktemp("source"), file)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with modules of a user's own."""
    for name in OWN_MODULES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("OWN = True\n")
    return tmp_path


def _use_everything(installed: Installed, project: Path) -> None:
    (project / "program.py").write_text(EMBEDDING)
    (project / "test_mine.py").write_text(FIXTURE)
    installed.run(project, "program.py")
    assert "1 passed" in installed.run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert installed.run(project, "-m", "parley", "version").startswith("parley 0.")
    assert _done(str(installed.python.with_name("parley")), "version", cwd=project).startswith("parley 0.")


def test_the_wheel_has_two_names_and_its_compiled_modules(distributions: Path, wheel: Installed) -> None:
    (file,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(file).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert packages == TOP_LEVEL == wheel.names()
    manual = {Path(name).name for name in names if ".data/data/share/man/man1/" in name}
    assert manual == {page.name for page in (ROOT / "docs" / "man").glob("*.1")}
    assert "parley/py.typed" in names
    compiled = wheel.run(ROOT.parent, "-c", "import parley.compiled as c; print(*sorted(set(c.status().values())))")
    assert compiled.split() == ["compiled"]


def test_the_wheel_works_beside_modules_of_any_name(wheel: Installed, project: Path) -> None:
    _use_everything(wheel, project)


def test_the_source_distribution_works_without_a_compiler(source: Installed, project: Path) -> None:
    assert source.names() == TOP_LEVEL
    assert not list(source.site.rglob("*.so"))
    _use_everything(source, project)


@pytest.mark.spark
def test_spark_finds_its_source_beside_modules_of_any_name(wheel: Installed, project: Path) -> None:
    (project / "program.py").write_text(SPARK)
    wheel.run(project, "program.py", small_spark())


def test_importing_parley_is_cheap(wheel: Installed, tmp_path: Path) -> None:
    heavy = {"asyncio", "uvloop", "confluent_kafka", "pyarrow", "parley.broker", "parley.protocol", "parley.tools"}
    wheel.run(tmp_path, "-c", f"import sys, parley; assert not {heavy} & set(sys.modules)")
