"""The errors of a configuration: one ``Problem`` per invalid value, and one ``ConfigError`` that contains
all of them."""

from __future__ import annotations

from collections.abc import Iterable

from parley.configuration.extras import how_to_install


class Problem(Exception):
    """One invalid value: its key, its text (``[hidden]`` for a secret), and what is allowed."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        what = f"{self.key}={self.value} is not allowed" if self.value else f"{self.key} is empty"
        return f"{what}: it must be {self.allowed}"


class MissingExtra(Problem):
    """A valid value that cannot be used, because an optional dependency (an extra of Parley's package) is missing."""

    def __init__(self, key: str, value: str, extra: str, reason: str) -> None:
        super().__init__(key, value, f"used with the extra {extra}: {how_to_install(extra)} ({reason})")

    def __str__(self) -> str:
        return f"{self.key}={self.value} can only be {self.allowed}"


class ThreadCountStep(Problem):
    """A new number of threads that differs too much from the current number. The message is Kafka's."""

    def __str__(self) -> str:
        return f"Dynamic thread count update validation failed for {self.key}={self.value}, value should {self.allowed}"


class ConfigError(ValueError):
    """The configuration cannot be used. ``problems`` lists all reasons; the message contains one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownKey(Problem):
    """An unknown key, with the key that the user probably meant (None if no key is similar)."""

    def __init__(self, key: str, value: str, meant: str | None) -> None:
        super().__init__(key, value, f"left out, or {meant}" if meant else "left out")
        self.meant = meant

    def __str__(self) -> str:
        return f"{self.key} is not a configuration key" + (f": did you mean {self.meant}?" if self.meant else "")
