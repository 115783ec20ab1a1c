"""Apache Kafka as the reference: its tools read our files, and its broker writes files for us to read.

``make peers`` puts Kafka's jars into ``.cache/kafka-<version>/libs`` below the root of the repository. Java runs them
directly, and logs errors only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.support.java_archives import SMALL, small_jvm
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
KAFKA_4 = "4.3.1"
KAFKA_3 = "3.9.2"
START_SECONDS = 120
STOP_SECONDS = 60

_KEPT = {"log.retention.ms": "-1"}
"""Unlimited retention. Records of tests may have any timestamp, and a broker looks for old ones half a minute after its
start."""
_MEMORY = "-Xmx512m"
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.logger.kafka.server.KafkaServer=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.Target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %c %m%n
"""
_LOG4J2 = """\
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %c %m%n
"""


class MissingPeer(RuntimeError):
    """A program or library that ``make peers`` fetches is missing."""


class JavaFailed(RuntimeError):
    """A Java program failed, or a server did not start. The text is its output."""


def kafka_libs(version: str = KAFKA_4) -> str:
    """Return the class path of Apache Kafka ``version``. Raises ``MissingPeer``."""
    libs = ROOT / ".cache" / f"kafka-{version}" / "libs"
    if not libs.is_dir():
        raise MissingPeer(f"Apache Kafka {version} is not in {libs}: run `make peers`")
    return f"{libs}/*"


def java_command(main: str, *args: str, version: str = KAFKA_4, more_libs: Path | None = None) -> list[str]:
    """Return the command line that runs the class ``main`` of Apache Kafka ``version``, or a program in a ``.java``
    file.

    ``more_libs`` is a folder of additional jars.
    """
    folders = [Path(kafka_libs(version)).parent, *([more_libs] if more_libs else [])]
    path = ":".join(f"{folder}/*" for folder in folders)
    if main.endswith(".java"):
        path = f"{path}:{_compiled(Path(main), version, tuple(folders))}"
        main = Path(main).stem
    return ["java", _MEMORY, *_jvm_options(version), _logging(version), "-cp", path, main, *args]


@functools.cache
def _jvm_options(version: str) -> tuple[str, ...]:
    return tuple(small_jvm(Path(kafka_libs(version)).parent))


@functools.cache
def _compiled(source: Path, version: str, libs: tuple[Path, ...]) -> Path:
    """Return the folder of the program's classes. They are cached, because compiling takes longer than most programs
    run."""
    text = source.read_bytes()
    folder = ROOT / ".cache" / "java-classes" / f"{source.stem}-{version}-{hashlib.sha256(text).hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        jars = ":".join(str(jar) for folder in libs for jar in folder.glob("*.jar"))  # the module expands no *
        command = ["java", _MEMORY, *SMALL, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars]
        done = subprocess.run([*command, "-d", str(made), str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise JavaFailed(f"{source} is not compiled:\n{done.stderr}{done.stdout}")
        try:
            made.rename(folder)
        except OSError:  # another process has compiled it meanwhile
            shutil.rmtree(made)
    return folder


def run_java(
    main: str, *args: str, version: str = KAFKA_4, stdin: str = "", timeout_s: float = 120, with_errors: bool = False
) -> str:
    """Run the class ``main`` to its end. Returns its standard output, and its standard error if ``with_errors``.

    Raises ``JavaFailed`` if it fails, ``subprocess.TimeoutExpired`` if it does not end.
    """
    command = java_command(main, *args, version=version)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise JavaFailed(f"{main} {' '.join(args)}: exit code {done.returncode}\n{done.stderr}\n{done.stdout}")
    return done.stdout + done.stderr if with_errors else done.stdout


def _logging(version: str) -> str:
    folder = ROOT / ".cache" / "java-logging"
    folder.mkdir(parents=True, exist_ok=True)
    modern = version >= "4"
    path = folder / ("log4j2.properties" if modern else "log4j.properties")
    text = _LOG4J2 if modern else _LOG4J
    if not path.exists() or path.read_text() != text:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.rename(path)
    return f"-Dlog4j2.configurationFile={path}" if modern else f"-Dlog4j.configuration=file:{path}"


def _controller_of(bootstrap_servers: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    controller: int = admin.list_topics(timeout=STOP_SECONDS).controller_id
    return controller


class JavaServer:
    """A Java process that runs until it is stopped. Its output is kept in ``lines``."""

    def __init__(self, command: list[str], *, cwd: Path) -> None:
        self.lines: list[str] = []
        self._written: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._written.put(line)
        self._written.put(None)

    def wait_for(self, text: str) -> None:
        """Wait for a line that contains ``text``. Raises ``JavaFailed`` if the process ends before."""
        while True:
            try:
                line = self._written.get(timeout=START_SECONDS)
            except queue.Empty:
                line = None
            if line is None:
                self.kill()
                raise JavaFailed(f"no {text!r} in what was written:\n" + "\n".join(self.lines))
            if text in line:
                return

    def with_threads(self) -> str:
        """Return what the process wrote, with a dump of its threads, which it writes unless it is frozen."""
        self._process.send_signal(signal.SIGQUIT)
        with suppress(queue.Empty):
            while (line := self._written.get(timeout=10)) is not None and "JNI global ref" not in line:
                pass
        return "\n".join(self.lines)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Freeze the process (SIGSTOP) inside the context."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask the process to end (SIGTERM) and wait for it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process immediately (SIGKILL)."""
        self._end(signal.SIGKILL)

    def _end(self, signal_number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()


class KafkaWithZooKeeper:
    """A broker of Apache Kafka 3.9 and its ZooKeeper, both below ``directory``. The logs are in ``log_dir``.

    The broker can be stopped and restarted with the same data, while ZooKeeper keeps the state of the cluster.
    """

    def __init__(self, directory: Path, port: int, overrides: Mapping[str, str], *, java_option: str = "") -> None:
        """``java_option`` is an additional option of the broker's JVM."""
        self.directory = directory
        self._java_options = [java_option] if java_option else []
        self.log_dir = directory / "logs"
        self.bootstrap_servers = f"127.0.0.1:{port}"
        directory.mkdir(parents=True, exist_ok=True)
        zookeeper_port = free_port()
        self._properties = self._write_properties(
            "server.properties",
            {
                "broker.id": "1",
                "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
                "zookeeper.session.timeout.ms": "30000",
                # Otherwise a first connection that gets no answer ends the broker, which then never tries another.
                "zookeeper.connection.timeout.ms": str(START_SECONDS * 1000),
                "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
                "log.dirs": str(self.log_dir),
                "num.partitions": "1",
                "offsets.topic.num.partitions": "1",
                "offsets.topic.replication.factor": "1",
                "transaction.state.log.num.partitions": "1",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "group.initial.rebalance.delay.ms": "0",
                **_KEPT,
                **overrides,
            },
        )
        self._broker: JavaServer | None = None
        self._zookeeper = self._start_zookeeper(zookeeper_port)
        try:
            self.start()
        except BaseException as failed:
            failed.add_note(f"ZooKeeper wrote:\n{self._zookeeper.with_threads()}")
            self.close()
            raise

    def _start_zookeeper(self, port: int) -> JavaServer:
        properties = {
            "dataDir": str(self.directory / "zookeeper"),
            "clientPort": str(port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
        }
        path = self._write_properties("zookeeper.properties", properties)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return JavaServer(java_command(main, str(path), version=KAFKA_3), cwd=self.directory)

    def _write_properties(self, name: str, properties: Mapping[str, str]) -> Path:
        path = self.directory / name
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def start(self) -> None:
        """Start the broker and wait until it serves. Raises ``JavaFailed``."""
        java, *words = java_command("kafka.Kafka", str(self._properties), version=KAFKA_3)
        self._broker = JavaServer([java, *self._java_options, *words], cwd=self.directory)
        self._broker.wait_for("[KafkaServer id=1] started")
        # It says so before it knows its controller, without which admin clients wait for their next refresh.
        while _controller_of(self.bootstrap_servers) < 0:
            pass

    def standing_still(self) -> AbstractContextManager[None]:
        """Freeze the broker's process inside the context. Its files are then like those after a crash."""
        assert self._broker is not None
        return self._broker.standing_still()

    def stop(self) -> list[str]:
        """Shut the broker down cleanly. Returns its output since its start."""
        return self._end(JavaServer.stop)

    def kill(self) -> list[str]:
        """Kill the broker. Returns its output since its start."""
        return self._end(JavaServer.kill)

    def _end(self, how: Callable[[JavaServer], None]) -> list[str]:
        broker, self._broker = self._broker, None
        if broker is None:
            return []
        how(broker)
        return broker.lines

    def close(self) -> None:
        """End everything. Idempotent."""
        self.kill()
        self._zookeeper.kill()


@contextmanager
def kafka_39_zk(
    directory: Path, overrides: Mapping[str, str] | None = None, *, java_option: str = ""
) -> Iterator[KafkaWithZooKeeper]:
    """Run Apache Kafka 3.9 in ZooKeeper mode on the loopback address inside the context.

    ``java_option`` is an additional option of the broker's JVM. Raises ``MissingPeer``, ``JavaFailed``.
    """
    kafka = KafkaWithZooKeeper(directory, free_port(), overrides or {}, java_option=java_option)
    try:
        yield kafka
    finally:
        kafka.close()


def _format(properties: Path, log_dir: Path) -> None:
    """Format the folder of a new node. The output of Kafka's tool depends only on its version, so it is cached."""
    kept = ROOT / ".cache" / f"kafka-{KAFKA_4}-formatted"
    if not kept.exists():
        run_java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(properties))
        made = Path(tempfile.mkdtemp(dir=kept.parent))
        shutil.copytree(log_dir, made, dirs_exist_ok=True)
        try:
            made.rename(kept)
        except OSError:  # another process has made it meanwhile
            shutil.rmtree(made)
        return
    shutil.copytree(kept, log_dir)


class Kafka4:
    """A node of Apache Kafka 4 below ``directory``, with its data in ``log_dir``. Raises the same errors as
    ``kafka_39_zk``."""

    def __init__(
        self,
        directory: Path,
        overrides: Mapping[str, str] | None = None,
        more_listeners: Mapping[str, str] | None = None,
        *,
        java_option: str = "",
    ) -> None:
        """``more_listeners`` maps listener names to security protocols; ``listeners`` contains their addresses.

        ``java_option`` is an additional option of the server's JVM.
        """
        self.log_dir = directory / "logs"
        port, controller = free_port(), free_port()
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self.listeners = {name: f"127.0.0.1:{free_port()}" for name in more_listeners or {}}
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **(more_listeners or {})}
        addresses = {"PLAINTEXT": self.bootstrap_servers, "CONTROLLER": f"127.0.0.1:{controller}", **self.listeners}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
            "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
            "log.dirs": str(self.log_dir),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **_KEPT,
            **(overrides or {}),
        }
        properties = directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        _format(properties, self.log_dir)
        java, *words = java_command("kafka.Kafka", str(properties))
        options = [java_option] if java_option else []
        self._command, self._directory = [java, *options, *words], directory
        self.start()

    def start(self) -> None:
        """Start the node, or restart it after ``stop``, and wait until it serves. Raises ``JavaFailed``."""
        self._server = JavaServer(self._command, cwd=self._directory)
        try:
            # It logs nothing when all is well; it serves when it answers.
            AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0}).list_topics(
                timeout=START_SECONDS
            )
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Shut the node down cleanly."""
        self._server.stop()

    def close(self) -> None:
        """Kill the node. May be called again."""
        self._server.kill()
