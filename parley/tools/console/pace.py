"""The rate of work in progress, computed from the amounts done at earlier observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
WINDOW_S: Final = 30.0
_LOOKS_MAX: Final = 20


def remaining_ms(left: int | None, rate: float | None) -> int | None:
    """Return the time in milliseconds that the rest of the work takes at this rate per second, or None if either is
    unknown or the rate is 0."""
    return round(1000 * left / rate) if rate and left is not None and left >= 0 else None


class Pace(Generic[K]):
    """The rates of several works in progress, from the amounts observed during the last ``WINDOW_S``."""

    def __init__(self) -> None:
        self._looks: dict[K, deque[tuple[float, int]]] = {}

    def look(self, now: float, done: Mapping[K, int]) -> dict[K, float | None]:
        """Record the amount done so far of each work in progress at the time ``now`` (in seconds), and return the rates
        per second. A rate is None at the first observation, and after its amount has decreased. Work that is not in
        ``done`` is forgotten."""
        self._looks = {work: self._looks.get(work) or deque(maxlen=_LOOKS_MAX) for work in done}
        return {work: _rate(looks, now, done[work]) for work, looks in self._looks.items()}


def _rate(looks: deque[tuple[float, int]], now: float, done: int) -> float | None:
    if looks and looks[-1][1] > done:
        looks.clear()
    while looks and looks[0][0] < now - WINDOW_S:
        looks.popleft()
    looks.append((now, done))
    began, amount = looks[0]
    return (done - amount) / (now - began) if now > began else None
