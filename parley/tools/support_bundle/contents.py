"""The files of a bundle, made from the doctor's snapshots, the configuration and the ends of logs. Uses no network."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from parley.tools.doctor.facts import Cluster, Machine, Metrics
from parley.tools.doctor.findings import Diagnosis
from parley.tools.doctor.report import as_data, as_text
from parley.tools.support_bundle.known_secrets import is_secret
from parley.tools.support_bundle.masks import MASK
from parley.version import VERSION

LOG_BYTES: Final = 4 << 20
"""The maximum number of bytes from the end of each log."""


@dataclass
class Contents:
    """The files by name, not yet masked, and for each missing part a line with the reason."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add_data(self, name: str, data: Any) -> None:
        """Add plain data as a JSON file."""
        self.files[name] = json.dumps(data, indent=2) + "\n"


def add_versions(contents: Contents) -> None:
    """Add the versions of Parley, Python, its packages and the kernel, and the list of compiled modules."""
    from parley import compiled

    packages = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    contents.add_data(
        "versions.json",
        {
            "parley": VERSION,
            "python": platform.python_version(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "modules": compiled.status(),
            "packages": dict(sorted(packages.items(), key=lambda each: each[0].lower())),
        },
    )


def add_configuration(contents: Contents, as_written: Mapping[str, str]) -> None:
    """Add the settings as the file contains them, with references to config providers unresolved and secret values
    masked."""
    contents.add_data("configuration.json", shown_settings(as_written))


def shown_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the values of secret settings masked."""
    return {name: MASK if is_secret(name, value) else value for name, value in settings.items()}


def add_examination(contents: Contents, folder: str, facts: Cluster | Machine, found: Diagnosis) -> None:
    """Add the doctor's findings as text and as data, the underlying facts, and the metrics in Prometheus format."""
    contents.files[f"{folder}/findings.txt"] = "\n".join(as_text(found)) + "\n"
    contents.add_data(f"{folder}/findings.json", as_data(found))
    contents.add_data(f"{folder}/facts.json", _without_metrics(plain(facts)))
    for broker in facts.brokers if isinstance(facts, Cluster) else ():
        if broker.metrics is not None:
            contents.files[f"{folder}/metrics-{broker.id}.prom"] = "\n".join(_exposition(broker.metrics)) + "\n"


def add_log(contents: Contents, path: Path) -> None:
    """Add the last ``LOG_BYTES`` of a log, starting at the beginning of a line. If it cannot be read, adds the reason
    to ``missing``."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode(errors="replace")
    except OSError as error:
        contents.missing.append(f"log {path}: {error.strerror or error}")
        return
    name, number = path.name, 1
    while f"logs/{name}" in contents.files:
        number += 1
        name = f"{number}-{path.name}"
    contents.files[f"logs/{name}"] = text.partition("\n")[2] if size > LOG_BYTES else text


def plain(value: Any) -> Any:
    """Return facts as plain data: objects as their fields, times as text, partitions as ``topic-0``."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat(timespec="seconds")
        case Mapping():
            return {_name(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _ if is_dataclass(value):
            return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        case _:
            return value


def _name(key: object) -> str:
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _without_metrics(facts: dict[str, Any]) -> dict[str, Any]:
    """Remove the samples of metrics, which are in separate files, and mask the brokers' settings. Changes and returns
    ``facts``.

    A broker masks its settings itself, but an older release may not know all secret ones.
    """
    for broker in facts.get("brokers", ()):
        if broker["metrics"] is not None:
            del broker["metrics"]["samples"]
        if broker["settings"] is not None:
            broker["settings"] = shown_settings(broker["settings"])
    return facts


def _exposition(metrics: Metrics) -> Sequence[str]:
    lines = []
    for name, samples in metrics.samples.items():
        for labels, value in samples:
            inner = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
            lines.append(f"{name}{{{inner}}} {value:.17g}" if inner else f"{name} {value:.17g}")
    return lines
