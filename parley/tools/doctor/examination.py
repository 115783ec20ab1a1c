"""Examine a cluster or a properties file: take the snapshot, and apply the checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from parley.protocol.client import Client
from parley.tools.cli.cluster_client import on_cluster
from parley.tools.cli.invocation import CommandError
from parley.tools.doctor.facts import Cluster, Machine, Missing, Part
from parley.tools.doctor.findings import Diagnosis, diagnose
from parley.tools.doctor.gathering_cluster import Gathering, Request, refused_certificates
from parley.tools.doctor.gathering_machine import machine_of
from parley.tools.doctor.steps import STEP_S
from parley.tools.doctor.table import CHECKS
from parley.tools.plurals import plural

_BY_FILE: Final = "To examine a broker that does not start, on its machine: parley doctor broker.properties"


def snapshot(request: Request) -> Cluster:
    """Take the snapshot of a cluster. Raises ``CommandError`` if no broker describes the cluster in time. If the reason
    is that the brokers' certificates have expired, returns a snapshot that contains only this."""

    async def take(client: Client) -> Cluster:
        return await Gathering(client, request).cluster()

    patience_ms = int(min(STEP_S, request.limit_s) * 1000)
    try:
        return on_cluster(request.bootstrap, request.properties, take, timeout_ms=patience_ms)
    except TimeoutError as error:
        raise CommandError(f"{request.bootstrap} did not describe the cluster in time. {_BY_FILE}") from error
    except CommandError as error:
        found = refused_certificates(request, str(error))
        if found is None:
            raise CommandError(f"{error} {_BY_FILE}") from error
        return found


def diagnosed(found: Cluster) -> Diagnosis:
    """Apply the checks to the snapshot of a cluster. Leaves out the checks that only apply to Parley if the brokers are
    Kafka's."""
    if found.cluster_id is None and not found.brokers:
        return diagnose(CHECKS, found, "Cluster: this client rejects its brokers' certificates")
    kind = "Parley" if found.is_parley else "Apache Kafka"
    topics = len({each.topic for each in found.partitions})
    down = {id_ for each in found.partitions for id_ in each.replicas} | {each.id for each in found.brokers}
    down -= {each.id for each in found.running}
    brokers = plural(len(found.running), "broker") + (f" and {len(down)} down" if down else "")
    subject = (
        f"Cluster {found.cluster_id} ({kind}): {brokers}, {plural(topics, 'topic')}, "
        f"{plural(len(found.partitions), 'partition')}"
    )
    if found.is_parley:
        return diagnose(CHECKS, found, subject)
    left_out = ", ".join(each.name for each in CHECKS if each.of_parley and each.in_cluster)
    of_parley = Missing(Part.BROKERS, f"checks that require Parley's brokers: {left_out}", has_failed=False)
    checks = [each for each in CHECKS if not each.of_parley]
    return diagnose(checks, replace(found, missing=(*found.missing, of_parley)), subject)


def examine_file(path: Path, progress: Callable[[str], None], limit_s: float) -> Diagnosis:
    """Examine a broker's properties file and this machine within ``limit_s`` seconds. Raises ``CommandError`` if the
    file cannot be read."""
    return diagnosed_machine(asyncio.run(machine_of(path, progress, limit_s)))


def diagnosed_machine(found: Machine) -> Diagnosis:
    """Apply the checks to a properties file and its machine."""
    state = f"runs as {found.running}" if found.running else "does not run here"
    broker = "the broker" if found.broker_id is None else f"broker {found.broker_id}"
    return diagnose(CHECKS, found, f"{found.path}: {broker} {state}")
