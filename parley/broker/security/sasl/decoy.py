"""Decoys: fake credentials for users that do not exist. A client cannot distinguish them from real credentials.

The form of a salt depends on the tool that created it: Kafka's salts are random numbers of 130 bits in base 36 (24 to
26 digits), librdkafka's are 64 bytes. A decoy therefore has the form of a stored credential.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import astuple
from typing import Final

from parley.light_dataclasses import dataclass
from parley.protocol.security.scram import HASHES, ITERATIONS_MIN, ScramCredential

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKA_BITS: Final = 130
_KAFKA_DIGITS: Final = range(24, 27)


@dataclass(frozen=True, slots=True)
class Form:
    """The properties of a credential that a client sees before it has authenticated, apart from the salt itself.

    ``salt_bytes`` is 0 for a salt in Kafka's form, whose length varies.
    """

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = 16
    is_base_36: bool = False


TOKEN_FORM: Final = Form(salt_bytes=32)
"""The form of the credentials of delegation tokens."""


def form_of(credential: ScramCredential) -> Form:
    """Return the form of a stored credential."""
    salt = credential.salt
    is_base_36 = all(byte in _DIGITS for byte in salt)
    if is_base_36 and len(salt) in _KAFKA_DIGITS:
        return Form(credential.iterations, 0, is_base_36=True)
    return Form(credential.iterations, len(salt), is_base_36)


def decoy_credential(secret: bytes, mechanism: str, user: str, forms: Collection[Form] = ()) -> ScramCredential:
    """Return the decoy for a user: the same in each call, and unpredictable without ``secret``.

    It has one of ``forms``, or, if ``forms`` is empty, the form that ``parley configs`` creates. If a form is added,
    only the decoys that take this form change.
    """

    def derived(purpose: str) -> bytes:
        return hmac.digest(secret, f"{purpose}\0{mechanism}\0{user}".encode(), HASHES[mechanism])

    form = max(forms, key=lambda each: derived(f"form {astuple(each)}"), default=Form())
    random = hashlib.shake_256(derived("salt"))
    if form.salt_bytes == 0:
        salt = _in_base_36(int.from_bytes(random.digest(_KAFKA_BITS // 8 + 1)) >> (-_KAFKA_BITS % 8))
    elif form.is_base_36:
        salt = bytes(_DIGITS[byte % len(_DIGITS)] for byte in random.digest(form.salt_bytes))
    else:
        salt = random.digest(form.salt_bytes)
    keys = derived("keys")
    return ScramCredential(salt, form.iterations, keys, keys)


def _in_base_36(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
