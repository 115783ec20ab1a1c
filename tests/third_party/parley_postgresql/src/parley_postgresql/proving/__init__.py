"""For the conformance kit: a real server of one's own, and the faults."""

from parley_postgresql.proving.harness import PostgresqlHarness
from parley_postgresql.proving.server import PostgresqlServer, running

__all__ = ["PostgresqlHarness", "PostgresqlServer", "running"]
