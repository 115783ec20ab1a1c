"""``make cluster STORE=etcd``: runs three brokers and a real server of the store on this machine.

All files are below one folder, ``parley-data/on-<store>``, and the next start uses them again. The program prints the
command that starts the brokers: it is the same for every store, except for ``coordination.url``. Ctrl-C stops the
brokers one after another, then the store's server; a second Ctrl-C ends everything at once.
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
from parley.tools.cli.invocation import FAILED, INTERRUPTED
from parley.tools.store_servers import KINDS, StoreServerError, store_server

BROKERS: Final = 3


def main(arguments: Sequence[str]) -> int:
    """Run the cluster until it is interrupted. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m parley.tools.local_cluster", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("store", choices=["local", *KINDS])
    parser.add_argument("--folder", type=Path, help="the folder for all files; parley-data/on-<store> by default")
    parser.epilog = "All other options are for `parley start`."
    options, more = parser.parse_known_args(arguments)
    folder = (options.folder or Path("parley-data") / f"on-{options.store}").absolute()
    try:
        with ExitStack() as stack:
            url = f"local://{folder}/store"
            if options.store != "local":
                print(f"Starting {options.store}; its data and its log file are in {folder}/store.", flush=True)
                url = stack.enter_context(store_server(options.store, folder / "store", usual_port=True))
            settings = (f"coordination.url={url}", f"log.dirs={folder}")
            words = ["--brokers", str(BROKERS), *(word for each in settings for word in ("--override", each)), *more]
            print(f"$ parley start {shlex.join(words)}", flush=True)
            return start.main(words)
    except StoreServerError as error:
        print(f"Error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
