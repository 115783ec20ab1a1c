"""The brokers to measure, each in a separate process: Parley, and Apache Kafka in KRaft mode."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).parent.parent
KAFKA = ROOT / ".cache" / "kafka-4.3.1"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 180.0
"""The time that a broker may take to stop. Kafka needs a minute to close thousands of logs."""


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Measured:
    """A broker process whose CPU time and memory can be read."""

    name = ""
    stop_seconds_max = STOP_SECONDS_MAX

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Return the command line that starts the broker."""
        raise NotImplementedError

    def start(self) -> float:
        """Start the broker. Returns the seconds until its first metadata response. Raises SystemExit if it ends or does
        not respond in time."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Start the broker without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command()
        output = (self.folder / "output.log").open("ab")
        self._began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.folder)

    def wait_until_ready(self) -> float:
        """Wait for the first metadata response. Returns the seconds since the start. Raises SystemExit if the broker
        ends, or does not respond within ``START_SECONDS_MAX``."""
        assert self.process is not None
        began = self._began
        while time.perf_counter() - began < START_SECONDS_MAX:
            if self._answers():
                return time.perf_counter() - began
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise SystemExit(f"{self.name} did not start: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self.folder / "output.log").read_text(errors="replace").split("\n")
        return " ".join(line.strip() for line in lines[-4:])[-400:]

    def _answers(self) -> bool:
        from bench.first_response import responds_to_metadata

        return responds_to_metadata("127.0.0.1", self.port)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, and wait until the broker confirms it. Raises KafkaException if the broker rejects the
        request."""
        from confluent_kafka.admin import NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, so that its pages leave the page cache."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result()

    def cpu_seconds(self) -> float:
        """Return the broker's CPU time so far, user and system."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_mb(self) -> float:
        """Return the broker's resident memory in MB."""
        assert self.process is not None
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 1e6

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self.stop_seconds_max)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)


class Parley(Measured):
    name = "Parley"

    def command(self) -> list[str]:
        words = ["start", "--override", f"listeners=PLAINTEXT://{self.bootstrap}"]
        words += ["--override", f"log.dirs={self.folder / 'data'}", "--override", "metrics.listener="]
        return [sys.executable, "-m", "parley", *words]


class Kafka(Measured):
    name = "Apache Kafka 4.3.1"

    def settings(self) -> dict[str, str]:
        """Return the properties of a single node. Those of a cluster add the controllers' addresses."""
        controller = free_port()
        return {
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }

    def command(self) -> list[str]:
        properties = self.folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            **self.settings(),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        logging = self.folder / "log4j2.properties"
        logging.write_text("rootLogger.level=off\n")
        java = ["java", "-cp", f"{KAFKA / 'libs'}/*", f"-Dlog4j2.configurationFile={logging}"]
        identity = "MkU3OEVBNTcwNTJENDM2Qg"
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(properties), "--ignore-formatted"],
            check=True,
            capture_output=True,
        )
        # The options of Kafka's start script.
        tuning = ["-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        tuning += ["-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"]
        return [*java, *tuning, "kafka.Kafka", str(properties)]
