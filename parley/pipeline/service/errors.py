"""The error raised when a server cannot start."""

from __future__ import annotations


class ServiceError(Exception):
    """Raised if a server cannot start or continue. The message says why, and what to do."""
