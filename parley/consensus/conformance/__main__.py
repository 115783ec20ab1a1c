"""``python -m parley.consensus.conformance STORE [--json FILE] [--check NAME]...``: run the kit, print the results.

STORE is ``memory:``, ``local:``, the address of a server (``etcd://host:2379``; each check works below a separate
prefix and deletes it afterwards), or the harness of a backend as ``package.module:Class``. The exit code is 0 if every
check passed, 1 if a check failed, and 2 if the store or a check is unknown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from parley.consensus.conformance.harness import Harness
from parley.consensus.conformance.runner import Result, all_checks, run

_BUILT_IN = {
    "memory": "parley.consensus.conformance.stores.memory:MemoryHarness",
    "local": "parley.consensus.conformance.stores.local:LocalHarness",
}
_ON_A_SERVER = {
    "consul": "parley.consensus.conformance.stores.consul:ConsulHarness",
    "etcd": "parley.consensus.conformance.stores.etcd:EtcdHarness",
    "zookeeper": "parley.consensus.conformance.stores.zookeeper:ZookeeperHarness",
}
"""The harnesses that take the address of a server."""
_STORE_HELP = "memory:, local:, the address of a server, or the harness of your backend as package.module:Class"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code, or raises SystemExit if the arguments are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m parley.consensus.conformance", description="Check that a coordination store keeps the contract."
    )
    parser.add_argument("store", help=_STORE_HELP)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file, for programs")
    parser.add_argument("--check", action="append", metavar="NAME", help="run only this check (while you work on it)")
    options = parser.parse_args(arguments)
    names = {each.name: each for each in all_checks()}
    if unknown := [name for name in options.check or () if name not in names]:
        parser.error(f"unknown check {unknown[0]}; available: {', '.join(names)}")
    try:
        make = find_harness(options.store)
    except (ImportError, AttributeError, TypeError) as error:
        parser.error(f"{options.store}: {error}")
    checks = [names[name] for name in options.check] if options.check else None
    results = run(make(), checks, on_result=_show)
    failed = sum(not result.passed for result in results)
    complete = "" if checks is None else f" (of {len(names)}; a store must pass all of them)"
    print(f"\n{len(results) - failed} passed, {failed} failed{complete}, {sum(r.seconds for r in results):.1f} s")
    if options.json:
        text = json.dumps({"store": options.store, "checks": [result.as_json() for result in results]}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if failed else 0


def find_harness(store: str) -> Callable[[], Harness]:
    """Return a function that creates the harness for a command-line argument.

    Raises ImportError, AttributeError or TypeError if there is no such harness.
    """
    scheme, on_a_server, _ = store.partition("://")
    if on_a_server:
        if scheme not in _ON_A_SERVER:
            raise TypeError(f"expected the address of {' or '.join(_ON_A_SERVER)}")
        return partial(_harness_class(_ON_A_SERVER[scheme]), store)
    return _harness_class(_BUILT_IN.get(store.rstrip(":"), store))


def _harness_class(target: str) -> Callable[..., Harness]:
    module, _, name = target.partition(":")
    if not name:
        raise TypeError(f"expected {_STORE_HELP}")
    found: object = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, Harness)):
        raise TypeError("not a parley.consensus.conformance.Harness")
    return found


def _show(result: Result) -> None:
    mark = "passed" if result.passed else "FAILED"
    measured = "; ".join(map(str, result.measures))
    print(f"{result.name:<34} {mark} {result.seconds:6.2f} s  {measured}", flush=True)
    if not result.passed:
        print(f"    {result.promise}\n    {result.error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
