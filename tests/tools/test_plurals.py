"""Numbers with their nouns, in the sentences of commands."""

from __future__ import annotations

from parley.tools.plurals import plural


def test_a_single_thing_has_the_singular() -> None:
    assert plural(1, "partition") == "1 partition"
    assert plural(0, "partition") == "0 partitions"
    assert plural(2000, "partition") == "2,000 partitions"
    assert plural(1, "copy", "copies") == "1 copy"
    assert plural(2, "copy", "copies") == "2 copies"
