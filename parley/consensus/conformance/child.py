"""The process that a ``ProcessPeer`` starts: a client of the store, in one role."""

from __future__ import annotations

import asyncio
import json
import sys

from parley.consensus.conformance.processes import load
from parley.consensus.conformance.roles import play


async def main(backend: str, url: str, role: str, arguments: str) -> None:
    """Play the role; a line of JSON on standard output for each thing said."""
    client = load(backend).from_url(url)
    await client.open()
    await play(role, client, lambda words: print(json.dumps(words), flush=True), json.loads(arguments))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
