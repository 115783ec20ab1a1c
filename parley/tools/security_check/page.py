"""Generate docs/security-checks.md: the table of checks."""

from __future__ import annotations

from typing import Final

from parley.tools.security_check.checks import CHECKS

_INTRODUCTION: Final = """\
# Security checks

`make docs` generates this page from the table in `parley/tools/security_check/checks.py`, which `parley security check`
evaluates:

```sh
parley security check server.properties
parley security check --bootstrap-server broker1:9093 --command-config admin.properties
```

The first form reads a broker's properties file, and the files, certificates and store that it names. The second form
queries a running cluster, as a client with the rights to describe its configuration and its ACLs, and as a client
without an account. Each form sees what the other cannot. The exit code is 0 if only notes are found, 1 if something is
open, and 3 if nothing is open but a check failed, for example because the store did not respond. With `--json` the
findings are JSON.

| check | severity | question | how to close it |
|---|---|---|---|
"""


def security_checks_page() -> str:
    """Return the whole page, as Markdown."""
    rows = [f"| `{row.name}` | {row.severity.name.lower()} | {row.asks} | {row.advice} |" for row in CHECKS]
    return _INTRODUCTION + "\n".join(rows) + "\n"
