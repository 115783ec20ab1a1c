"""The intruders of ``make quickstart SECURE=1``: each tries to get into the cluster in some way, and must be refused.

Most attempts are commands that a user could type. If one succeeds, the program ends with an error.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parley.configuration.properties import read_properties
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import HANDSHAKE_FAILED, INVALID_CERTIFICATE
from parley.protocol.messages.cluster_metadata import FetchMetadataRequest
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.security.client_security import client_security
from parley.tools.cli.cluster_client import CLOSES_CONNECTIONS
from parley.tools.cli.store_client import STORE_REFUSED
from parley.tools.secured_demo.certificates import Authority
from parley.tools.secured_demo.files import ADMIN, SecuredFiles

USER: Final = "alice"
_REFUSED: Final = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_BYTES: Final = 1024
_WRONG: Final = ErrorCode.SASL_AUTHENTICATION_FAILED.name
_DENIED: Final = "authorization failed"  # librdkafka's text


@dataclass(frozen=True, slots=True)
class Attempt:
    """An intruder's command. It must fail with a message that contains ``refusal``. If ``refusal`` is empty, it must
    succeed and its output must not contain ``secret``."""

    title: str
    words: Sequence[str]
    refusal: str = ""
    secret: str = ""
    typed: str = ""
    """The command's standard input."""


class NotRefused(SystemExit):
    """Raised if the cluster carried out an intruder's command. Ends the program."""


def without_account(files: SecuredFiles, bootstrap: str, store: str) -> list[Attempt]:
    """Return attempts without an account, against a broker and against the store at the URL ``store``."""
    foreign = _foreign_authority(files)
    certificate = foreign.issue(files.folder / "foreign.pem", "broker")
    known = files.passwords[ADMIN]

    def topics(name: str, **client: Any) -> tuple[str, ...]:
        file = files.write_client_properties(f"{name}.properties", **client)
        return ("topics", "--list", "--bootstrap-server", bootstrap, "--command-config", shown(file))

    forged = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
    misled = {"ssl.truststore.location": str(foreign.certificate_file)}
    attempts = [
        Attempt("Without TLS", ("topics", "--list", "--bootstrap-server", bootstrap), CLOSES_CONNECTIONS),
        Attempt("Without a login", topics("no-login"), CLOSES_CONNECTIONS),
        Attempt("With a guessed password", topics("guess", user=ADMIN, password="admin"), _WRONG),
        Attempt(
            "As a user that does not exist: same response", topics("nobody", user="nobody", password="admin"), _WRONG
        ),
        Attempt(
            "With a certificate of another authority, although the password is right",
            topics("forged", user=ADMIN, password=known, more=forged),
            HANDSHAKE_FAILED,
        ),
        Attempt(
            "A client that trusts another authority sends these brokers no password",
            topics("misled", user=ADMIN, password=known, more=misled),
            INVALID_CERTIFICATE,
        ),
    ]
    if not store.startswith("local:"):
        address = store.partition("?")[0]
        trusting = f"{address}?ca-file={shown(files.authority.certificate_file)}"
        attempts += [
            Attempt("At the store, without TLS", ("coordination", "status", address), "Error:"),
            Attempt("At the store, without an account", ("coordination", "status", trusting), STORE_REFUSED),
        ]
    return attempts


def without_rights(bootstrap: str, topic: str, client: Path) -> list[Attempt]:
    """Return attempts of a user who can log in but has no permissions. ``client`` is the user's properties file."""
    to = ("--bootstrap-server", bootstrap, "--command-config", shown(client))
    rights = ("--add", "--allow-principal", f"User:{USER}", "--cluster", "--force")
    return [
        Attempt(f"{USER} sees no topic's name", ("topics", "--list", *to), secret=topic),
        Attempt(f"{USER} may not write", ("produce", "--topic", topic, *to), _DENIED, typed="a line\n"),
        Attempt(f"{USER} may not read", ("consume", "--topic", topic, "--from-beginning", *to), _DENIED),
        Attempt(f"{USER} may not grant rights", ("acls", *rights, *to), ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name),
    ]


def shown(path: Path) -> str:
    """Return the path of a file relative to the current folder, in which the printed commands are run."""
    return os.path.relpath(path)


def _foreign_authority(files: SecuredFiles) -> Authority:
    folder = files.folder / "foreign"
    folder.mkdir(mode=0o700, exist_ok=True)
    return Authority(folder, "Another authority")


def refuse(attempts: Iterable[Attempt]) -> None:
    """Run the commands, and show how each is refused. Raises NotRefused if one is not refused."""
    for attempt in attempts:
        print(f"\n# {attempt.title}:\n$ parley {shlex.join(attempt.words)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "parley", *attempt.words],
            input=attempt.typed,
            capture_output=True,
            text=True,
            check=False,
        )
        output = (done.stdout + done.stderr).strip()
        print(textwrap.indent(output or "(nothing)", "  "), flush=True)
        if attempt.refusal:
            is_refused = done.returncode != 0 and attempt.refusal in output
        else:
            is_refused = done.returncode == 0 and attempt.secret not in output
        if not is_refused:
            raise NotRefused(f"{attempt.title}: the cluster did not refuse this (exit code {done.returncode}).")


def refuse_forged_broker(bootstrap: str, topic: str, client: Path) -> None:
    """Send requests that only brokers may send, as the user whose properties file is ``client``. Raises NotRefused if
    one is not refused."""
    print(f"\n# {USER} poses as broker 2: fetches as a follower, and requests the controller's metadata:")
    for name, code in asyncio.run(_pose(bootstrap, topic, client)).items():
        print(f"  {name}: {code.name}", flush=True)
        if code not in _REFUSED:
            raise NotRefused(f"{USER} posed as a broker: the response to {name} was {code.name}.")


async def _pose(bootstrap: str, topic: str, client: Path) -> dict[str, ErrorCode]:
    wanted = FetchRequest.FetchTopic(
        topic=topic,
        partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=_BYTES)],
    )
    follower = FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[wanted])
    async with Client(bootstrap, security=client_security(read_properties(client))) as posing:
        fetched = await posing.send(follower, version=11)
        codes = [fetched.error_code, *(each.error_code for topic_ in fetched.responses for each in topic_.partitions)]
        found = {"Fetch": ErrorCode(max(codes, key=abs))}
        try:
            pulled = await posing.send(FetchMetadataRequest(broker_id=2, max_wait_ms=0))
            found["FetchMetadata"] = ErrorCode(pulled.error_code)
        except KafkaError as error:
            found["FetchMetadata"] = error.code
    return found


def show_private(folder: Path) -> None:
    """Print the permissions of the embedded store's folder. Raises NotRefused if other users have any."""
    mode = folder.stat().st_mode
    print("\n# Another user of this machine, at the embedded store:")
    print(f"$ stat -c '%A %n' {shown(folder)}\n  {stat.filemode(mode)} {shown(folder)}", flush=True)
    if stat.S_IMODE(mode) & 0o077:
        raise NotRefused(f"other users can open {folder}: chmod 700 {folder}")
