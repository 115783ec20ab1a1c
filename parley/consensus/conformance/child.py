"""The program of a ``ProcessPeer``: a client of the store that plays one role."""

from __future__ import annotations

import asyncio
import json
import sys

from parley.consensus.conformance.processes import load
from parley.consensus.conformance.roles import play


async def main(backend: str, url: str, role: str, arguments: str) -> None:
    """Play ``role`` with a new client. Prints each message to the check as a line of JSON."""
    client = load(backend).from_url(url)
    await client.open()
    await play(role, client, lambda words: print(json.dumps(words), flush=True), json.loads(arguments))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
