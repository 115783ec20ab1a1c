"""Distinguished names in the form that Java prints (``X500Principal.getName``), which ACLs and mapping rules use.

This is the form of RFC 2253: the last part of the name comes first, ``CN=alice,OU=sales,O=Example``. An attribute
without a keyword in that RFC is printed as its object identifier and encoded value:
``1.2.840.113549.1.9.1=#1605612e622e63``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANKS: Final = " \r"


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate. Raises ValueError if the certificate cannot be read."""
    from cryptography.x509 import load_der_x509_certificate  # slow to import, and needed only by TLS listeners

    name = load_der_x509_certificate(certificate).subject
    return ",".join("+".join(map(_attribute, rdn)) for rdn in reversed(name.rdns))


def _attribute(attribute: NameAttribute[str | bytes]) -> str:
    oid, value = attribute.oid.dotted_string, attribute.value
    keyword = _KEYWORDS.get(oid)
    if keyword is None or isinstance(value, bytes):
        return f"{oid}=#{_der(attribute).hex()}"
    escaped = "".join("\\00" if each == "\0" else f"\\{each}" if each in _ESCAPED else each for each in value)
    lead = len(escaped) - len(escaped.lstrip(_BLANKS))
    trail = len(escaped.rstrip(_BLANKS)) if lead < len(escaped) else len(escaped)
    text = "".join(f"\\{each}" for each in escaped[:lead]) + escaped[lead:trail]
    return f"{keyword}={text}" + "".join(f"\\{each}" for each in escaped[trail:])


def _der(attribute: NameAttribute[str | bytes]) -> bytes:
    """Encode the value of an attribute exactly as the certificate contains it."""
    from cryptography.x509.name import _ASN1Type  # the type of the value has no public name

    kind: _ASN1Type = attribute._type
    value = attribute.value
    if isinstance(value, bytes):
        content = value
    else:
        encodings = {_ASN1Type.BMPString: "utf_16_be", _ASN1Type.UniversalString: "utf_32_be"}
        content = value.encode(encodings.get(kind, "utf-8"))
    if len(content) < 0x80:
        length = bytes([len(content)])
    else:
        size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
        length = bytes([0x80 | len(size)]) + size
    return bytes([kind.value]) + length + content
