"""Decoys have the form of stored credentials."""

from __future__ import annotations

from parley.broker.security.sasl.decoy import Form, decoy_credential, form_of
from parley.protocol.security.scram import ScramCredential

KAFKAS = form_of(ScramCredential(b"1abcdefghij0klmnopqrstuvw", 4096, b"", b""))
LIBRDKAFKAS = form_of(ScramCredential(bytes(range(64)), 8192, b"", b""))
NAMES = [f"user-{index}" for index in range(100)]


def test_a_decoy_has_the_form_of_a_stored_credential() -> None:
    assert Form(4096, 0, is_base_36=True) == KAFKAS
    assert Form(8192, 64) == LIBRDKAFKAS
    for form in (KAFKAS, LIBRDKAFKAS, Form(), Form(4096, 12, is_base_36=True)):
        found = {form_of(decoy_credential(b"secret", "SCRAM-SHA-256", name, [form])) for name in NAMES}
        assert found == {form}


def test_a_salt_like_kafkas_is_a_number_of_130_bits() -> None:
    salts = [decoy_credential(b"secret", "SCRAM-SHA-256", name, [KAFKAS]).salt for name in NAMES]
    numbers = [int(salt, 36) for salt in salts]
    assert max(numbers) < 1 << 130
    assert {len(salt) for salt in salts} >= {25, 26}
    assert {chr(salt[0]) for salt in salts if len(salt) == 26} == {"1"}, "no larger number has 130 bits"
    assert not any(salt.startswith(b"0") for salt in salts)
    assert len(set(numbers)) == len(NAMES)


def test_forms_are_shared_out_and_stay_with_most_users() -> None:
    def forms(*of: Form) -> list[Form]:
        return [form_of(decoy_credential(b"secret", "SCRAM-SHA-512", name, of)) for name in NAMES]

    both = forms(KAFKAS, LIBRDKAFKAS)
    assert set(both) == {KAFKAS, LIBRDKAFKAS}
    assert forms(LIBRDKAFKAS, KAFKAS) == both
    more = forms(KAFKAS, LIBRDKAFKAS, Form())
    assert all(after in (before, Form()) for before, after in zip(both, more, strict=True))
