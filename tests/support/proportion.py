"""How many examples Hypothesis tries: all of them in ``make soak``, a proportion in the other runs."""

from __future__ import annotations

from hypothesis import settings

_SOAK_EXAMPLES = settings.get_profile("soak").max_examples


def examples(count: int) -> int:
    """``count`` in ``make soak``; elsewhere as many fewer as the profile in force tries fewer than ``soak`` does."""
    return max(2, count * settings().max_examples // _SOAK_EXAMPLES)
