"""The Helm chart, rendered and checked by the programs of ``make peers``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.system.peers import CACHE, GO_PROGRAMS, KUBERNETES, SCHEMAS

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "parley"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
NEWEST = KUBERNETES[-1]

Manifest = dict[str, Any]


def program(name: str) -> str:
    """Return the path of a program that was built from source, or that ``PARLEY_HELM`` names."""
    path = os.environ.get(f"PARLEY_{name.upper()}") or str(CACHE / f"{name}-{GO_PROGRAMS[name][1]}" / name)
    assert Path(path).is_file(), f"{name} is missing: run `make peers`"
    return path


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Helm without any configuration or cluster of this machine's user."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    return subprocess.run([program("helm"), *words], env=environment, capture_output=True, text=True, check=False)


def rendered(
    values: Path | None = None, settings: Mapping[str, object] | None = None, *, kubernetes: str = NEWEST
) -> str:
    """Return the output of ``helm template`` for the release ``kafka``."""
    files = ["--values", str(values)] if values is not None else []
    options = [*files, *_set(settings or {})]
    done = helm("template", "kafka", str(CHART), "--kube-version", kubernetes, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(settings: Mapping[str, object]) -> str:
    """Return Helm's error for these settings."""
    done = helm("template", "kafka", str(CHART), "--kube-version", NEWEST, *_set(settings))
    assert done.returncode != 0, done.stdout
    return done.stderr


def _set(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


def manifests(text: str) -> dict[tuple[str, str], Manifest]:
    """Return the objects by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}


def conforms(text: str, kubernetes: str) -> str:
    """Check the objects against the strict schemas of this version of Kubernetes. Returns the errors, or an
    empty text."""
    location = f"{SCHEMAS}/{kubernetes}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    words = [program("kubeconform"), "-strict", "-kubernetes-version", kubernetes, "-schema-location", location]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
