"""The embedded store, ``local:///path/to/directory``: the processes of one machine share a SQLite database.

::

    store.db  store.db-wal  store.db-shm    the state, in SQLite's WAL mode          (database.py, sql.py)
    live/<process>                          a named pipe held open by each process   (other_processes.py)

It needs a local filesystem. On systems other than Linux it works, but only the TTL reveals that a process was killed.
docs/store-backends.md explains its design.
"""

from parley.consensus.local.backend import LocalBackend

__all__ = ["LocalBackend"]
