"""The number of examples that Hypothesis tries: all of them in ``make soak``, a fraction in other runs."""

from __future__ import annotations

from hypothesis import settings

_SOAK_EXAMPLES = settings.get_profile("soak").max_examples


def examples(count: int) -> int:
    """Return ``count`` in ``make soak``, or the fraction of it that the current profile uses."""
    return max(2, count * settings().max_examples // _SOAK_EXAMPLES)
