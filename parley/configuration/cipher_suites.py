"""Cipher suites of a TLS context, by Java's or OpenSSL's names.

Before version 3.15, Python cannot select suites of TLS 1.3, but OpenSSL can. So this module calls OpenSSL's own
function (``SSL_CTX_set_ciphersuites``) with the ``SSL_CTX*`` that is the first field of CPython's context. It does so
only if the listed suites differ from OpenSSL's own list, and verifies the result.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl
import sys
from collections.abc import Iterable, Sequence


class BadSuite(Exception):
    """Raised if a listed suite does not exist, or if this Python cannot select it. The message names the problem."""


def is_tls_1_3(suite: str) -> bool:
    """Return True for the name of a suite of TLS 1.3, which is the same in Java and in OpenSSL."""
    return suite.startswith("TLS_") and "_WITH_" not in suite


def openssl_ciphers(suites: Iterable[str]) -> str:
    """Return the suites of TLS 1.2 among ``suites``, in OpenSSL's notation; empty if there are none."""
    return ":".join(_openssl_name(suite) for suite in suites if not is_tls_1_3(suite))


def choose_suites(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Allow only these suites, which are in order of preference. Raises BadSuite if a suite does not exist, or if this
    Python cannot select it.

    If no suite of a TLS version is listed, all suites of this version stay allowed. The caller must then disable the
    version.
    """
    for suite in suites:  # one by one, because OpenSSL ignores unknown suites beside known ones
        if not is_tls_1_3(suite):
            _set_ciphers(context, suite)
    if ciphers := openssl_ciphers(suites):
        context.set_ciphers(ciphers)
    chosen = list(dict.fromkeys(filter(is_tls_1_3, suites)))
    known = _tls_1_3_suites(context)
    if unknown := [suite for suite in chosen if suite not in known]:
        raise BadSuite(f"OpenSSL has no suite {unknown[0]}")
    if chosen and chosen != known:
        _set_ciphersuites(context, chosen)


def _set_ciphers(context: ssl.SSLContext, suite: str) -> None:
    try:
        context.set_ciphers(_openssl_name(suite))
    except ssl.SSLError:
        raise BadSuite(f"OpenSSL has no suite {suite}") from None


def _tls_1_3_suites(context: ssl.SSLContext) -> list[str]:
    return [each["name"] for each in context.get_ciphers() if is_tls_1_3(each["name"])]


def _set_ciphersuites(context: ssl.SSLContext, suites: list[str]) -> None:
    names = ":".join(suites)
    if sys.version_info >= (3, 15):
        context.set_ciphersuites(names)
    else:
        _call_openssl(context, names)
    if _tls_1_3_suites(context) != suites:
        raise BadSuite(
            "this Python cannot select suites of TLS 1.3: list all of them in OpenSSL's order, or only suites of TLS "
            "1.2, which disables TLS 1.3, or use the Python of the operating system"
        )


def _call_openssl(context: ssl.SSLContext, names: str) -> None:
    """Let OpenSSL select the suites. Has no effect if this Python offers no way to call it."""
    if sys.implementation.name != "cpython":
        return
    try:
        # Looked up through ``_ssl``, so it belongs to the OpenSSL that created the context.
        function = ctypes.CDLL(_ssl.__file__).SSL_CTX_set_ciphersuites
    except (AttributeError, OSError):  # OpenSSL is linked into Python
        return
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    function(ctypes.c_void_p.from_address(id(context) + object.__basicsize__), names.encode())


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite, such as ECDHE-RSA-AES128-GCM-SHA256 for
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    exchange, joined, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not joined:
        return suite
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    return "-".join(([] if exchange == "RSA" else exchange.split("_")) + cipher.split("_"))
