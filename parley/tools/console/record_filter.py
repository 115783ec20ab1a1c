"""Record filters: a small expression language with Python's syntax.

``value.amount > 100 and key != "test"`` or ``contains(text, "error") and headers.trace is not None``. Names: key and
value (parsed if they are JSON), text (the value as text), offset, partition, timestamp, headers. Functions: contains,
startswith, endswith, matches (RE2, in linear time). Anything else is rejected, so no other code can run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

LENGTH_MAX: Final = 1000
NESTING_MAX: Final = 100
"""The maximum depth of an expression, far below Python's limit on recursion."""
NAMES: Final = ("key", "value", "text", "offset", "partition", "timestamp", "headers")

_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_FUNCTIONS: Final = ("contains", "startswith", "endswith", "matches")


class BadFilter(ValueError):
    """Raised if the expression is invalid. The text is the reason."""


class RecordFilter:
    """A parsed expression. ``passes`` returns False for records on which it fails, such as 1 < "a"."""

    def __init__(self, text: str) -> None:
        """Parse an expression. Raises BadFilter if it is invalid or not allowed."""
        if len(text) > LENGTH_MAX:
            raise BadFilter(f"a filter has at most {LENGTH_MAX} characters")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadFilter(f"invalid expression: {getattr(error, 'msg', error)}") from None
        if _nests_deeply(self._tree):
            raise BadFilter(f"an expression nests at most {NESTING_MAX} levels")
        self._patterns: dict[str, Any] = {}
        self._check(self._tree)

    def passes(self, names: Mapping[str, Any]) -> bool:
        """Return True if the expression holds for a record, given as the values of ``NAMES``. Returns False if it
        fails."""
        try:
            return bool(self._value(self._tree, names))
        except (TypeError, KeyError, IndexError, AttributeError, ValueError, RecursionError):
            return False  # RecursionError: a comparison of deeply nested values

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.BoolOp() | ast.Compare() | ast.Constant() | ast.List() | ast.Tuple() | ast.Attribute():
                pass
            case ast.Subscript() if not isinstance(node.slice, ast.Slice):
                pass
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                pass
            case ast.Name(id=name) if name in NAMES:
                return
            case ast.Name(id=name):
                raise BadFilter(f"unknown name {name}. Available: {', '.join(NAMES)}")
            case ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]) if name in _FUNCTIONS:
                if name == "matches":
                    self._compile(second)
                self._check(first)
                self._check(second)
                return
            case ast.Call():
                raise BadFilter(f"the functions are {', '.join(_FUNCTIONS)}, each with two arguments")
            case ast.expr_context() | ast.boolop() | ast.cmpop() | ast.unaryop():
                return
            case _:
                raise BadFilter(f"{ast.unparse(node)} cannot be used in a filter")
        for child in ast.iter_child_nodes(node):
            self._check(child)

    def _compile(self, node: ast.AST) -> None:
        import re2

        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            raise BadFilter("matches takes a regular expression in quotes as its second argument")
        options = re2.Options()
        options.log_errors = False
        try:
            self._patterns[node.value] = re2.compile(node.value, options=options)
        except re2.error as error:
            raise BadFilter(f"{node.value!r} is not a valid RE2 expression: {error}") from None

    def _value(self, node: ast.AST, names: Mapping[str, Any]) -> Any:
        match node:
            case ast.BoolOp(op=ast.And()):
                return all(self._value(each, names) for each in node.values)
            case ast.BoolOp():
                return any(self._value(each, names) for each in node.values)
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, names)
            case ast.UnaryOp():
                return -self._value(node.operand, names)
            case ast.Compare():
                left = self._value(node.left, names)
                for kind, right_node in zip(node.ops, node.comparators, strict=True):
                    right = self._value(right_node, names)
                    if not _COMPARISONS[type(kind)](left, right):
                        return False
                    left = right
                return True
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple():
                return [self._value(each, names) for each in node.elts]
            case ast.Name():
                return names[node.id]
            case ast.Attribute():
                found = self._value(node.value, names)
                return found.get(node.attr) if isinstance(found, dict) else None
            case ast.Subscript():
                found, at = self._value(node.value, names), self._value(node.slice, names)
                return found.get(at) if isinstance(found, dict) else found[at]
            case ast.Call(func=ast.Name(id=name)):
                return self._called(name, *(self._value(each, names) for each in node.args))
            case _:
                raise AssertionError(node)

    def _called(self, name: str, subject: Any, argument: Any) -> bool:
        if name == "matches":
            return isinstance(subject, str) and self._patterns[argument].search(subject) is not None
        if name == "contains":
            return subject is not None and argument in subject
        return bool(getattr(subject, name)(argument))


def _nests_deeply(tree: ast.AST) -> bool:
    level = [tree]
    for _ in range(NESTING_MAX):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)
