"""Create the users that a secured cluster needs before its first broker starts, in the store itself.

``python -m parley.tools.secured_demo.first_users broker.properties secrets.properties`` does this in another process,
because etcd's client (gRPC) leaves threads behind, and a process with threads cannot start brokers safely.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from parley.configuration.properties import read_properties
from parley.tools.cli import scram_users
from parley.tools.cli.invocation import CommandError, guarded
from parley.tools.cli.store_client import OPEN_MAX_S, run_on_store, store_address
from parley.tools.secured_demo.files import ADMIN, BROKER, MECHANISM, SecuredFiles

if TYPE_CHECKING:
    from parley.consensus.backend import Backend


def create_in_own_process(files: SecuredFiles, broker_properties: Path) -> None:
    """Run ``create_first_users`` in another process. Raises ``CommandError`` if it fails; the process has then printed
    the reason."""
    module = "parley.tools.secured_demo.first_users"
    words = [sys.executable, "-m", module, str(broker_properties), str(files.password_file)]
    if subprocess.run(words, check=False).returncode:
        raise CommandError("The users of the cluster were not created, for the reason above.")


def create_first_users(broker_properties: Path, passwords: Mapping[str, str]) -> None:
    """Create the brokers' user and the administrator, if they are not in the store. Raises ``CommandError`` if the
    store cannot be used.

    This does what ``parley configs --alter --user ... --config broker.properties`` does, for both users.
    """
    address, backend_at = store_address(None, broker_properties)

    async def create(backend: Backend) -> None:
        known = await scram_users.describe_in_store(backend, None)
        missing = [user for user in (BROKER, ADMIN) if user not in known]
        wanted = [
            each
            for user in missing
            for each in scram_users.alterations(user, {MECHANISM: f"password={passwords[user]}"}, ())
        ]
        if wanted:
            await scram_users.alter_in_store(backend, wanted)

    async def opened() -> None:
        backend = await backend_at(address)
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                await backend.open()
            await create(backend)
        finally:
            await backend.close()

    run_on_store(opened)


def main(arguments: list[str]) -> int:
    """Create the users. Returns the exit code."""
    broker_properties, passwords = map(Path, arguments)

    def work() -> int:
        create_first_users(broker_properties, read_properties(passwords))
        return 0

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
