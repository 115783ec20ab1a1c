"""The embedded store, ``local:///path/to/directory``: the processes of one machine share a SQLite database.

::

    store.db  store.db-wal  store.db-shm    the state, in SQLite's WAL mode          (database.py, sql.py)
    live/<process>                          a named pipe held open by each process   (other_processes.py)

It needs a local filesystem on Linux. Elsewhere it works, but only the TTL reveals that a process was killed. The
reasons for its design are in docs/store-backends.md.
"""

from parley.consensus.local.backend import LocalBackend

__all__ = ["LocalBackend"]
