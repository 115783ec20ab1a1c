"""Regular expressions of clients, matched in time that is linear in the text (KIP-1152).

Python's ``re`` backtracks: a hostile pattern could stop the broker. This module matches as RE2 does, which Kafka uses:
it follows all alternatives at once. Options, and classes with names, are an error; what RE2 lacks, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from parley.protocol.errors import ErrorCode, KafkaError

PROGRAM_MAX: Final = 1_000
"""The most steps of a compiled pattern. Counted repetitions multiply them."""
STATES_MAX: Final = 1_000
"""The most combinations of steps that a pattern remembers while it matches (some MB). Then it begins again."""
REPEATS_MAX: Final = 1_000
"""The largest count in a repetition, as in RE2."""
DEPTH_MAX: Final = 100
"""The most groups within each other."""

Accepts = Callable[[str], bool]

_CLASSES: Final[dict[str, Accepts]] = {
    "d": lambda char: "0" <= char <= "9",
    "w": lambda char: char == "_" or (char.isascii() and char.isalnum()),
    "s": lambda char: char in "\t\n\f\r ",
}
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class _Invalid(Exception):
    """What is wrong with a pattern."""


@dataclass(slots=True)
class _Step:
    """A step of the compiled pattern: accept a character and go on at ``next``, or (None) go on at both without one."""

    accepts: Accepts | None = None
    next: int = -1
    other: int = -1


@dataclass(slots=True)
class _Node:
    """A part of the parsed pattern: one character, or parts in sequence, as alternatives, or repeated."""

    accepts: Accepts | None = None
    sequence: list[_Node] = field(default_factory=list)
    alternatives: list[_Node] = field(default_factory=list)
    least: int = 1
    most: int | None = 1


class IdPattern:
    """A compiled pattern. It must match a whole text."""

    def __init__(self, pattern: str) -> None:
        """Raises INVALID_REGULAR_EXPRESSION."""
        try:
            tree = _Parser(pattern).parse()
            self._steps: list[_Step] = []
            self._start = self._compile(tree, self._add(_Step()))
        except _Invalid as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"The pattern is not supported: {error}.") from error
        self._first = self._closure({self._start})
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """True if the pattern matches the whole text."""
        state = self._first
        for char in text:
            key = state, char
            following = self._known.get(key)
            if following is None:
                if len(self._known) >= STATES_MAX:
                    self._known.clear()
                following = self._known[key] = self._follow(state, char)
            if not following:
                return False
            state = following
        return _END in state

    def _follow(self, state: frozenset[int], char: str) -> frozenset[int]:
        steps = self._steps
        reached = set()
        for index in state:
            accepts = steps[index].accepts
            if accepts is not None and accepts(char):
                reached.add(steps[index].next)
        return self._closure(reached)

    def _closure(self, indexes: set[int]) -> frozenset[int]:
        """Return the steps that are reached without a character: those that accept one, and the end."""
        seen, waiting, found = set(indexes), list(indexes), set()
        while waiting:
            index = waiting.pop()
            step = self._steps[index]
            if step.accepts is not None or index == _END:
                found.add(index)
                continue
            for following in (step.next, step.other):
                if following >= 0 and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return frozenset(found)

    # --- Compilation: each part is compiled before the step at which the match goes on after it ---

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= PROGRAM_MAX:
            raise _Invalid("it is too large")
        self._steps.append(step)
        return len(self._steps) - 1

    def _compile(self, node: _Node, after: int) -> int:
        if node.most is None:
            loop = self._add(_Step())
            self._steps[loop].next = self._compile_once(node, loop)
            self._steps[loop].other = after
            after = loop
        else:
            for _ in range(node.most - node.least):
                after = self._add(_Step(next=self._compile_once(node, after), other=after))
        for _ in range(node.least):
            after = self._compile_once(node, after)
        return after

    def _compile_once(self, node: _Node, after: int) -> int:
        if node.accepts is not None:
            return self._add(_Step(node.accepts, after))
        if node.alternatives:
            start = self._compile(node.alternatives[-1], after)
            for alternative in reversed(node.alternatives[:-1]):
                start = self._add(_Step(next=self._compile(alternative, after), other=start))
            return start
        for part in reversed(node.sequence):
            after = self._compile(part, after)
        return after


_END: Final = 0
"""The index of the step at the end of every pattern."""


class _Parser:
    """Parses a pattern. Raises _Invalid."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        if self._text.startswith("^"):
            self._at = 1  # the whole text is matched in any case
        node = self._alternatives()
        if self._at < len(self._text):
            raise _Invalid("an unexpected )")
        return node

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _Invalid("it ends too early")
        self._at += 1
        return char

    def _alternatives(self) -> _Node:
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        return found[0] if len(found) == 1 else _Node(alternatives=found)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "$" and self._at == len(self._text) - 1:
                self._at += 1
                break
            parts.append(self._repeated(self._atom()))
        return _Node(sequence=parts)

    def _repeated(self, node: _Node) -> _Node:
        while (char := self._peek()) in ("*", "+", "?", "{") and char:
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char)
            self._at += 1
            least, most = self._bounds() if bounds is None else bounds
            if self._peek() == "?":
                self._at += 1  # whether a repetition is greedy does not matter to a match of the whole text
            node = _Node(sequence=[node], least=least, most=most)
        return node

    def _bounds(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        first, comma, last = self._text[self._at : end].partition(",")
        if end < 0 or not _is_count(first) or (last and not _is_count(last)):
            raise _Invalid("a malformed repetition")
        self._at = end + 1
        least = int(first)
        most = least if not comma else int(last) if last else None
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise _Invalid("a repetition out of range")
        return least, most

    def _atom(self) -> _Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return _Node(accepts=self._char_class())
        if char == ".":
            return _Node(accepts=lambda each: each != "\n")
        if char == "\\":
            return _Node(accepts=self._escape())
        if char in "*+?^$":
            raise _Invalid(f"an unexpected {char}")
        return _Node(accepts=char.__eq__)

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _Invalid("too many groups within each other")
        if self._peek() == "?":
            if self._peek(2) != "?:":
                raise _Invalid("a group with options")
            self._at += 2
        node = self._alternatives()
        if self._take() != ")":
            raise _Invalid("a missing )")
        self._depth -= 1
        return _Node(sequence=[node])

    def _escape(self) -> Accepts:
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return _negated(_CLASSES[char.lower()])
        return self._escaped(char).__eq__

    @staticmethod
    def _escaped(char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            raise _Invalid(f"the unknown escape \\{char}")
        return char

    def _char_class(self) -> Accepts:
        negated = self._peek() == "^"
        self._at += negated
        parts: list[Accepts] = []
        while not parts or self._peek() != "]":
            if self._peek(2) == "[:":
                raise _Invalid("a named class")
            char = self._take()
            if char == "\\":
                escaped = self._take()
                if escaped.lower() in _CLASSES:
                    self._at -= 1
                    parts.append(self._escape())
                    continue
                char = self._escaped(escaped)
            last = char
            if self._peek() == "-" and self._peek(2)[1:] not in ("]", ""):
                self._at += 1
                last = self._take()
                if last == "\\":
                    last = self._escaped(self._take())
                if last < char:
                    raise _Invalid("a range that ends before it begins")
            parts.append(_between(char, last))
        self._at += 1
        accepts = _any_of(parts)
        return _negated(accepts) if negated else accepts


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _between(first: str, last: str) -> Accepts:
    return lambda char: first <= char <= last


def _any_of(parts: list[Accepts]) -> Accepts:
    return lambda char: any(accepts(char) for accepts in parts)


def _negated(accepts: Accepts) -> Accepts:
    return lambda char: not accepts(char)
