"""``make cluster STORE=etcd``: runs three brokers and a real server of the store on this machine.

All files are below the folder ``parley-data/on-<store>``, and the next run uses them again. The program prints the
command that starts the brokers: apart from ``coordination.url``, it is the same for every store. Ctrl-C stops the
brokers one after another, then the store's server. A second Ctrl-C ends everything immediately.

With ``--secure`` (``SECURE=1``) the brokers and the store accept only clients that log in over TLS, and the folder is
``parley-data/on-<store>-secured``. The program then prints the properties that clients need (docs/security.md).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from parley.tools.cli import start
from parley.tools.cli.invocation import FAILED, INTERRUPTED, CommandError
from parley.tools.store_locks import Lock
from parley.tools.store_servers import KINDS, StoreServerError, store_server

BROKERS: Final = 3
PORT: Final = 9092


def main(arguments: Sequence[str]) -> int:
    """Run the cluster until it is interrupted. Returns the exit code."""
    options, more = _options(arguments)
    suffix = "-secured" if options.secure else ""
    folder = (options.folder or Path("parley-data") / f"on-{options.store}{suffix}").absolute()
    try:
        with ExitStack() as stack:
            if options.secure:
                words = _secured(stack, options.store, folder)
            else:
                settings = (f"coordination.url={_store(stack, options.store, folder)}", f"log.dirs={folder}")
                words = [word for each in settings for word in ("--override", each)]
            words = [*words, "--brokers", str(BROKERS), *more]
            print(f"$ parley start {shlex.join(words)}", flush=True)
            return start.main(words)
    except (StoreServerError, CommandError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m parley.tools.local_cluster", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("store", choices=["local", *KINDS])
    parser.add_argument("--folder", type=Path, help="the folder for all files; parley-data/on-<store> by default")
    parser.add_argument("--secure", action="store_true", help="with TLS, logins, ACLs and a locked store")
    parser.epilog = "All other options are for `parley start`."
    return parser.parse_known_args(arguments)


def _store(stack: ExitStack, store: str, folder: Path, lock: Lock | None = None) -> str:
    """Run the store's server until the stack is closed. Returns its URL. ``local``, the embedded store, needs no
    server."""
    if store == "local":
        return f"local://{folder}/store"
    print(f"Starting {store}; its data and its log file are in {folder}/store.", flush=True)
    return stack.enter_context(store_server(store, folder / "store", usual_port=True, lock=lock))


def _secured(stack: ExitStack, store: str, folder: Path) -> list[str]:
    """Prepare a secured cluster, and print the properties that its clients need. Returns the options that start its
    brokers."""
    from parley.tools.secured_demo.files import SecuredFiles
    from parley.tools.secured_demo.first_users import create_in_own_process

    files = SecuredFiles(folder)
    lock = None if store == "local" else files.store_lock()
    url = _store(stack, store, folder, lock)
    broker_properties = files.write_broker_properties(url, brokers=BROKERS, data=folder, port=PORT)
    create_in_own_process(files, broker_properties)
    client = files.write_admin_properties()
    print(f"The administrator's commands, and Kafka's tools, need --command-config {client}:")
    print("".join(f"  {line}\n" for line in files.shown(client)), end="", flush=True)
    return [str(broker_properties)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
