"""``parley version``: show versions, and which modules are compiled."""

from __future__ import annotations

import platform

from parley.tools.cli.app import App
from parley.tools.cli.common_options import OutputFormat
from parley.tools.cli.output import print_data
from parley.version import VERSION

app = App(
    "Show the versions of Parley, Python and librdkafka, and which modules are compiled.",
    examples=[
        ("parley version", "the versions as text"),
        ("parley version --json", "the same as JSON"),
    ],
)


@app.only_command()
def version(output_format: OutputFormat = None) -> None:
    from confluent_kafka import libversion

    from parley import compiled

    modules = compiled.status()
    if output_format:
        facts = {"parley": VERSION, "python": platform.python_version(), "modules": modules}
        print_data({**facts, "librdkafka": libversion()[0]}, output_format)
        return
    print(f"parley {VERSION} (Python {platform.python_version()}, librdkafka {libversion()[0]})")
    for module, form in modules.items():
        print(f"  {module}: {form}")
