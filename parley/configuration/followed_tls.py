"""A TLS context that reads changed files again, so that a renewed certificate does not require a restart."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Self

from parley.configuration.file_changes import fingerprint_of
from parley.configuration.tls import TlsSettings, tls_settings

__all__ = ["FollowedContext"]

_log = logging.getLogger(__name__)


class FollowedContext(ssl.SSLContext):
    """A TLS context that checks its files at each handshake, and reads them again if they have changed.

    If the new files cannot be used, the old certificates stay in use. Only ``wrap_bio`` and ``wrap_socket`` use the
    newest files. Attributes that are set on this object have no effect.
    """

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, properties: Mapping[str, str], make: Callable[[TlsSettings], ssl.SSLContext]) -> None:
        """Read the files that the ``ssl.*`` keys in ``properties`` name. ``make`` creates a context from the settings.

        Blocks. Raises BadKeyStore if the files or the settings are unusable.
        """
        self._properties = properties
        self._make = make
        settings = tls_settings(properties)
        self._files = settings.files
        self._read_from = fingerprint_of(self._files)
        self._newest = make(settings)

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:
        """Do the same as ``SSLContext.wrap_bio``, with the newest certificates. Blocks if files have changed."""
        return self._followed().wrap_bio(*given, **named)

    def wrap_socket(self, *given: Any, **named: Any) -> ssl.SSLSocket:
        """Do the same as ``SSLContext.wrap_socket``, with the newest certificates. Blocks if files have changed."""
        return self._followed().wrap_socket(*given, **named)

    def _followed(self) -> ssl.SSLContext:
        found = fingerprint_of(self._files)
        if found != self._read_from:
            self._read_from = found
            try:
                self._newest = self._make(tls_settings(self._properties))
            except ValueError as error:
                _log.error("the new certificates cannot be used; the old ones stay in use: %s", error)
            else:
                _log.info("certificates were read again: %s", ", ".join(self._files))
        return self._newest
