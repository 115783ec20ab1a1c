"""``python -m bench.security``: the cost of TLS, logins and ACLs, compared with Apache Kafka with the same clients.

The brokers take turns. Each has a listener without TLS, a listener with TLS 1.3 (an ECDSA certificate), and a listener
with logins. The figures are the broker's CPU time, because the clients share the machine's cores with it: per GB for
records over TLS, and as handshakes, logins and requests per CPU second. A handshake or login includes the connection
and one request (ApiVersions). The last figures are the response times of a client without TLS during a thousand
handshakes.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.clusters import KAFKA, Kafka, Measured, Parley, free_port
from bench.figures import Figures, report
from bench.secured_load import round_trip
from bench.turns import in_turns, turns_parser
from tests.support.certificates import Authority

USER, PASSWORD = "alice", "secret"
MODULES = "org.apache.kafka.common.security"
PLAIN_LINE = f'{MODULES}.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}"'
SCRAM_LINE = f'{MODULES}.scram.ScramLoginModule required username="{USER}" password="{PASSWORD}"'
STORM = 1000
PROBE_S = 0.001
"""The pause between two requests of the client without TLS."""
ACLS = 10_000
ACLS_AT_ONCE = 500
TOPICS = 100
"""The number of topics, half of which the user may describe."""
WARM_UP_BYTES = 200_000_000
WAIT_S = 60.0
CPU_MIN_S = 0.1
"""The minimum CPU time of a measurement: ten ticks of the system's clock."""


class Secured(Measured):
    """A broker with three listeners. Clients of two of them are super users; clients that log in need ACLs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tls, self.login = f"localhost:{free_port()}", f"127.0.0.1:{free_port()}"
        folder.mkdir(parents=True)
        authority = Authority()
        self.authority = str(authority.write(folder / "authority.pem"))
        authority.issue("CN=broker", "localhost").write_pem(folder / "broker.pem")

    def security(self) -> dict[str, str]:
        """Return the properties of the listeners, users and permissions."""
        name = "listener.name.sasl_plaintext"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{name}.plain.sasl.jaas.config": f'{PLAIN_LINE} user_{USER}="{PASSWORD}";',
            f"{name}.scram-sha-512.sasl.jaas.config": f"{SCRAM_LINE};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def addresses(self) -> str:
        return f"PLAINTEXT://{self.bootstrap},SSL://{self.tls},SASL_PLAINTEXT://{self.login}"


class SecuredParley(Secured, Parley):
    name = Parley.name

    def command(self) -> list[str]:
        settings = {
            **self.security(),
            "listeners": self.addresses(),
            "log.dirs": str(self.folder / "data"),
            "metrics.listener": "",
        }
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [sys.executable, "-m", "parley", "start", str(properties)]


class SecuredKafka(Secured, Kafka):
    name = Kafka.name

    def settings(self) -> dict[str, str]:
        settings = super().settings()
        controller = settings["listeners"].rpartition(",")[2]
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
        return {
            **settings,
            **self.security(),
            "listeners": f"{self.addresses()},{controller}",
            "listener.security.protocol.map": protocols,
        }


def run(module: str, *words: str) -> Any:
    """Run a program of the benchmark, and return the JSON object that it prints. Raises CalledProcessError if it
    fails."""
    output = subprocess.run([sys.executable, "-m", module, *words], check=True, capture_output=True, text=True)
    return json.loads(output.stdout)


def logged_in(mechanism: str) -> list[str]:
    """Return command-line options with the properties of a client that logs in."""
    line = PLAIN_LINE if mechanism == "PLAIN" else SCRAM_LINE
    found = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": f"{line};"}
    return [f"--property={key}={value}" for key, value in found.items()]


class Turn:
    """The measurements of one turn of one broker."""

    def __init__(self, broker: Secured, figures: Figures) -> None:
        self._broker = broker
        self._figures = figures
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def _note(self, label: str, value: float) -> None:
        self._figures[label, self._broker.name].append(value)

    def _cost(self, module: str, *words: str) -> tuple[Any, float]:
        """Return the work that a program has done, and the broker's CPU time for it. Short work is repeated."""
        before, times, cpu = self._broker.cpu_seconds(), 0, 0.0
        while cpu < CPU_MIN_S:
            done = run(module, *words)
            times += 1
            cpu = self._broker.cpu_seconds() - before
        return done, cpu / times

    def transfer(self, size: int, total: int) -> None:
        """Produce and consume over TLS."""
        topic = f"tls-{size}"
        self._broker.create_topic(topic, 1)
        over_tls = ["--set", "security.protocol=ssl", "--set", f"ssl.ca.location={self._broker.authority}"]
        for work in ("produce", "consume"):
            words = [work, self._broker.tls, topic, "--size", str(size), "--bytes", str(total), *over_tls]
            done, cpu = self._cost("bench.load", *words)
            self._note(f"TLS {work} {size} B: broker CPU s/GB", cpu / (done["bytes"] / 1e9))
        self._broker.delete_topic(topic)

    def handshakes(self, count: int) -> None:
        """Measure full handshakes, and handshakes that resume a session."""
        for label, more in (("full", []), ("resumed", ["--resume"])):
            words = [
                "handshakes",
                self._broker.tls,
                "--count",
                str(count),
                "--authority",
                self._broker.authority,
                *more,
            ]
            done, cpu = self._cost("bench.secured_load", *words)
            self._note(f"TLS handshakes, {label}: per broker CPU s", done["count"] / cpu)
            if more:
                self._note("sessions resumed, %", 100 * done["resumed"] / done["count"])

    def logins(self, count: int) -> None:
        """Measure logins by SCRAM-SHA-512 and PLAIN."""
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            words = ["logins", self._broker.login, "--count", str(count), *logged_in(mechanism)]
            done, cpu = self._cost("bench.secured_load", *words)
            self._note(f"logins by {mechanism}: per broker CPU s", done["count"] / cpu)

    def create_user(self) -> None:
        """Create the user that may use half of the topics."""
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(USER, credentials, PASSWORD.encode())
        self._admin.alter_user_scram_credentials([upsertion])[USER].result(WAIT_S)
        for number in range(TOPICS):
            self._broker.create_topic(f"topic-{number}", 1)
        self._allow([_allowed(f"topic-{number}") for number in range(0, TOPICS, 2)])

    def add_acls(self) -> None:
        """Add ACLs of other users for other topics, some with prefixes."""
        bindings = [_of_another(number) for number in range(ACLS)]
        for start in range(0, ACLS, ACLS_AT_ONCE):
            self._allow(bindings[start : start + ACLS_AT_ONCE])

    def _allow(self, bindings: list[AclBinding]) -> None:
        for done in self._admin.create_acls(bindings, request_timeout=WAIT_S).values():
            done.result(WAIT_S)

    def requests(self, count: int, label: str) -> None:
        """Measure requests of a user that is not a super user: produce, metadata of one topic, metadata of all topics.
        Raises SystemExit if the broker shows the user a wrong number of topics."""
        user = ["security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN"]
        user += [f"sasl.username={USER}", f"sasl.password={PASSWORD}"]
        words = ["produce", self._broker.login, "topic-0", "--size", "100", "--bytes", str(100 * count)]
        words += [word for each in (*user, "batch.num.messages=1", "linger.ms=0") for word in ("--set", each)]
        done, cpu = self._cost("bench.load", *words)
        self._note(f"produce of one record, {label}: per broker CPU s", done["records"] / cpu)
        for what, topics, number in (("one topic", ["--topic=topic-0"], count // 4), ("all topics", [], count // 20)):
            words = ["metadata", self._broker.login, "--count", str(number), *logged_in("PLAIN"), *topics]
            done, cpu = self._cost("bench.secured_load", *words)
            if done["topics"] != (1 if topics else TOPICS // 2):
                raise SystemExit(f"{self._broker.name} shows the user {done['topics']} topics")
            self._note(f"metadata of {what}, {label}: per broker CPU s", done["count"] / cpu)

    def storm(self, seconds: float) -> None:
        """Measure the response times of a client without TLS, alone and during ``STORM`` simultaneous handshakes."""
        began = time.perf_counter()
        alone = self._probe(lambda: time.perf_counter() - began < seconds)
        words = ["storm", self._broker.tls, "--count", str(STORM), "--authority", self._broker.authority]
        command = [sys.executable, "-m", "bench.secured_load", *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            clients.stdout.readline()
            before = self._broker.cpu_seconds()
            clients.stdin.write("go\n")
            clients.stdin.flush()
            meanwhile = self._probe(lambda: clients.poll() is None)
        self._note(f"{STORM} handshakes at once: broker CPU s", self._broker.cpu_seconds() - before)
        for label, times in (("alone", alone), (f"beside {STORM} handshakes", meanwhile)):
            times.sort()
            for percent in (50, 99):
                self._note(f"client without TLS {label}: p{percent} ms", 1000 * times[len(times) * percent // 100])

    def _probe(self, goes_on: Any) -> list[float]:
        times = []
        host, _, port = self._broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while goes_on():
                began = time.perf_counter()
                round_trip(sock)
                times.append(time.perf_counter() - began)
                time.sleep(PROBE_S)
        return times


def _allowed(topic: str) -> AclBinding:
    return _binding(topic, f"User:{USER}", AclOperation.ALL, ResourcePatternType.LITERAL)


def _of_another(number: int) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if number % 10 == 0 else ResourcePatternType.LITERAL
    operation = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)[number % 3]
    return _binding(f"of-{number}", f"User:user-{number % 1000}", operation, pattern)


def _binding(topic: str, principal: str, operation: AclOperation, pattern: ResourcePatternType) -> AclBinding:
    return AclBinding(ResourceType.TOPIC, topic, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def measure(broker: Secured, given: argparse.Namespace, figures: Figures) -> None:
    """Measure a broker for one turn, after a warm-up in which the JVM compiles its hot code."""
    warm_up, turn = Turn(broker, defaultdict(list)), Turn(broker, figures)
    warm_up.create_user()
    warm_up.transfer(100, min(WARM_UP_BYTES, given.mb * 1_000_000))
    warm_up.handshakes(given.count)
    warm_up.logins(given.count)
    warm_up.requests(given.requests, "")
    for size in given.sizes:
        turn.transfer(size, given.mb * 1_000_000)
    turn.handshakes(given.count)
    turn.logins(given.count)
    turn.requests(given.requests, "few ACLs")
    turn.add_acls()
    turn.requests(given.requests, f"{ACLS:,} ACLs")
    turn.storm(given.seconds)


def main() -> None:
    parser = turns_parser("bench.security", __doc__, rounds=3)
    parser.add_argument("--mb", type=int, default=400, help="megabytes of each transfer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="record sizes in bytes")
    parser.add_argument("--count", type=int, default=2000, help="handshakes and logins of each kind")
    parser.add_argument("--requests", type=int, default=20_000, help="requests of each kind, those of metadata fewer")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long the client without TLS is measured alone")
    given = parser.parse_args()
    kinds: list[type[Secured]] = [SecuredParley]
    if not given.alone and KAFKA.exists():
        kinds.insert(0, SecuredKafka)
    report(in_turns(kinds, given.rounds, lambda broker, figures: measure(broker, given, figures)))


if __name__ == "__main__":
    main()
