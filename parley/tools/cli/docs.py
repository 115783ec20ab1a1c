"""``parley docs``: generate the documentation pages that are derived from code, so that they cannot contradict it."""

from __future__ import annotations

import difflib
import io
import json
import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from parley.tools.cli.app import App
from parley.tools.cli.invocation import FAILED, CommandError, run

app = App(
    "Generate the documentation pages that are derived from code: configuration, metrics, tools and manual pages.",
    examples=[
        ("parley docs", "write the pages below docs/"),
        ("parley docs --check", "only list the pages that are out of date; exit with 1 if there are any"),
    ],
)

TOOLS_PAGE: Final = "docs/tools.md"
STORES_PAGE: Final = "docs/stores.md"
CHECKS_PAGE: Final = "docs/security-checks.md"
DOCTOR_PAGE: Final = "docs/doctor.md"
OPENAPI_FILE: Final = "docs/openapi/connect.json"
_TABLE_BEGIN: Final = "<!-- measured: made by `parley docs` from docs/measured/ -->\n\n"
_TABLE_END: Final = "\n<!-- end of measured -->"
_DIFFERENCE_LINES: Final = 20
_INTRODUCTION: Final = """\
# The `parley` command

This page is generated from the commands' help texts (`parley docs`).

Flags, output and exit codes are those of Kafka's tools: the exit code is 0 on success and 1 on failure, and 3 if a
check (`parley security check`, `parley check`) found no problem, but could not examine everything. Data goes to
standard output, everything else to standard error. `parley doctor` exits with 1 for warnings, 2 for errors and 3 if it
could not examine everything. Unlike Kafka's tools, `parley groups`, `parley configs` and
`parley dump-log` also exit with 1 if they print an error and continue. The end of this page shows what each command
prints with `--output json`. [command-line.md](command-line.md) shows what all commands have in common.

Settings in a client's properties file that belong to Kafka's Java client alone are ignored with a warning.
"""

_JSON_INTRODUCTION: Final = """
## JSON

The output of each command with `--output json` and `--json`, with types instead of values. `<name>` stands for any key,
a key that ends with `?` may be missing, and `|` separates alternative types.
"""


def pages() -> dict[str, str]:
    """Return the text of every page, by its path below the repository's root. Raises ``CommandError`` outside a
    checkout of Parley."""
    from parley.broker.docs.pages import PAGES
    from parley.tools.cli.manual import manual_pages
    from parley.tools.doctor.page import doctor_page
    from parley.tools.security_check.page import security_checks_page

    made = {path: make() for path, make in PAGES.items()}
    return {
        **made,
        TOOLS_PAGE: tools_page(),
        STORES_PAGE: stores_page(),
        CHECKS_PAGE: security_checks_page(),
        DOCTOR_PAGE: doctor_page(),
        OPENAPI_FILE: openapi_file(),
        **manual_pages(),
    }


def openapi_file() -> str:
    """Return the OpenAPI document of Connect's REST API, which its workers also serve."""
    from parley.pipeline.connect.rest.app import application

    return json.dumps(application(None).openapi(), indent=2) + "\n"


def stores_page() -> str:
    """Return the page about stores, with its table regenerated from the conformance results in ``docs/measured/``.
    Raises ``CommandError`` outside a checkout of Parley."""
    from parley.consensus.conformance.table import table

    page = (_root() / STORES_PAGE).read_text(encoding="utf-8")
    reports = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (_root() / "docs" / "measured").glob("*.json")
    }
    ordered = sorted(reports, key=lambda store: (store not in ("memory", "local"), store))
    before, begin, rest = page.partition(_TABLE_BEGIN)
    _, end, after = rest.partition(_TABLE_END)
    return f"{before}{begin}{table({store: reports[store] for store in ordered})}{end}{after}"


def tools_page() -> str:
    """Return the page with the help text of every command."""
    from parley.tools.cli import COMMANDS

    parts = [_INTRODUCTION]
    for name, command in COMMANDS.items():
        like = f" Kafka's tool for this: {command.kafka_tool}." if command.kafka_tool else ""
        summary = command.summary[0].upper() + command.summary[1:]
        parts.append(f"\n## parley {name}\n\n{summary}.{like}\n\n```text\n{help_of(name)}\n```\n")
        parts += [f"\n### parley {name} {part}\n\n```text\n{help_of(name, part)}\n```\n" for part in _parts_of(name)]
    return "".join([*parts, shapes_section()])


def shapes_section() -> str:
    """Return the section that shows the shape of each command's JSON output."""
    from parley.tools.cli.json_shapes import SHAPES

    parts = [_JSON_INTRODUCTION]
    for name, (about, shape) in SHAPES.items():
        words = f": {about}" if about else ""
        parts.append(f"\n`parley {name}`{words}\n\n```json\n{json.dumps(shape, indent=2)}\n```\n")
    return "".join(parts)


def _parts_of(name: str) -> list[str]:
    """Return the subcommands of a command. The result is empty if there are none."""
    from parley.tools.cli import COMMANDS

    if name == "start":
        return []
    app = import_module(f"parley.tools.cli.{COMMANDS[name].module}").app
    names = [
        one.name or (one.callback.__name__ if one.callback else "") for one in app.registered_commands if not one.hidden
    ]
    return names if len(names) > 1 or app.registered_callback is not None else []


def help_of(name: str, *part: str) -> str:
    """Return the help text of a command, independent of the terminal's width."""
    from parley.tools.cli import COMMANDS

    module = import_module(f"parley.tools.cli.{COMMANDS[name].module}")
    text = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "110"
    try:
        with redirect_stdout(text):
            words = [*part, "--help"]
            code = module.main(words) if name == "start" else run(module.app, f"parley {name}", words)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    assert code == 0
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def _root() -> Path:
    root = Path(__file__).parents[3]
    if not (root / "docs").is_dir():
        raise CommandError(f"{root} contains no folder docs: run this command in a checkout of Parley.")
    return root


@app.only_command()
def docs(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a page is out of date.")] = False,
) -> None:
    root = _root()
    stale = []
    for name, text in pages().items():
        path = root / name
        before = path.read_text() if path.exists() else ""
        if before == text:
            continue
        stale.append(name)
        if check:
            difference = difflib.unified_diff(
                before.splitlines(), text.splitlines(), name, "from code", n=0, lineterm=""
            )
            for _, line in zip(range(_DIFFERENCE_LINES), difference, strict=False):
                print(line, file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if check and stale:
        print(f"Error: {', '.join(stale)} out of date; `parley docs` writes them.", file=sys.stderr)
        raise typer.Exit(FAILED)
