"""``parley.protocol.records.crc32c`` loads the function of the package ``crc32c``, and no other part of it."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
import pytest

from parley.protocol.records.crc32c import crc32c

CHECK = 0xE3069283
"""The checksum of ``123456789`` in the catalogues of CRCs."""


@pytest.mark.parametrize("data", [b"123456789", bytearray(b"123456789"), memoryview(b"x123456789")[1:]])
def test_checksums_are_those_of_the_package(data: bytes | bytearray | memoryview) -> None:
    assert crc32c(data) == package.crc32c(data) == CHECK
    assert crc32c(b"6789", crc32c(b"12345")) == CHECK


HIDDEN = """
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "_crc32c" else found(name, *rest)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "loads_package"), [("", False), (HIDDEN, True)], ids=["found", "not found"])
def test_the_whole_package_is_loaded_only_if_its_extension_is_not_found(before: str, loads_package: bool) -> None:
    program = f"""
{before}
import sys
from parley.protocol.records.crc32c import crc32c
print(crc32c(b"123456789") == {CHECK}, "crc32c" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(loads_package)]
