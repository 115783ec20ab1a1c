"""What keeps a server of the pipeline from starting."""

from __future__ import annotations

__all__ = ["ServiceError"]


class ServiceError(Exception):
    """A server cannot start or go on. The text says why, and what to do."""
