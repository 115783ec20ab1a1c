"""What is wrong with a configuration: one ``Problem`` for each bad value, one ``ConfigError`` for all."""

from __future__ import annotations

from collections.abc import Iterable


class Problem(Exception):
    """One bad value: its key, what was written (``[hidden]`` for a secret) and what is allowed."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.key}={self.value} is not allowed: it must be {self.allowed}"


class ConfigError(ValueError):
    """A configuration cannot be used. ``problems`` has every reason; the text has one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownKey(Problem):
    """A name that is no key there, with the one that is probably meant."""

    def __init__(self, key: str, value: str, meant: str | None) -> None:
        super().__init__(key, value, f"left out, or {meant}" if meant else "left out")
        self.meant = meant

    def __str__(self) -> str:
        return f"{self.key} is not a key of the configuration" + (f": is {self.meant} meant?" if self.meant else "")
