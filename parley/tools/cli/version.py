"""``parley version``: show versions, and which modules are compiled."""

from __future__ import annotations

import json
import platform

from parley.tools.cli.app import App
from parley.tools.cli.common_options import AsJson
from parley.version import VERSION

app = App(
    "Show the versions of Parley, Python and librdkafka, and which modules are compiled.",
    examples=[
        ("parley version", "the versions as text"),
        ("parley version --json", "the same as JSON"),
    ],
)


@app.only_command()
def version(json_output: AsJson = False) -> None:
    from confluent_kafka import libversion

    from parley import compiled

    modules = compiled.status()
    if json_output:
        facts = {"parley": VERSION, "python": platform.python_version(), "modules": modules}
        print(json.dumps({**facts, "librdkafka": libversion()[0]}))
        return
    print(f"parley {VERSION} (Python {platform.python_version()}, librdkafka {libversion()[0]})")
    for module, form in modules.items():
        print(f"  {module}: {form}")
