"""Decodes data with an Avro schema, after a check that the size of the data bounds the decoder's work.

A client that may register schemas and write to a topic chooses both. Three kinds of schemas make a few bytes expensive:
arrays whose items take no bytes, records of records that multiply their fields, and types that contain themselves,
whose data may be nested so deeply that fastavro's compiled reader overflows the stack.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

from parley.pipeline.schemas.avro import NAMED, PRIMITIVES
from parley.pipeline.schemas.model import BadSchema

PARTS_MAX: Final = 50_000
"""The maximum number of fields of a record, with those of the records in it."""


class AvroShape:
    """The shape of an Avro schema, whose named types are in ``names``."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._empty: dict[str, bool] = {}
        self._parts_of: dict[str, int] = {}

    def reader(
        self, root: Any, written: Any, wanted: Any = None, *, return_named_type: bool = False
    ) -> Callable[[bytes, int], Any]:
        """Return the function that decodes data from a position to its end.

        The data is of the schema ``written``, which has the shape of ``root``. If ``wanted`` is given, the data is read
        as that schema (Avro's resolution). Raises BadSchema if data of the schema has no bound. The function raises
        ValueError.
        """
        import fastavro
        from fastavro import _read_py

        self._check_bounded(root)
        # The compiled reader overflows the stack if data is nested deeply. The one in Python raises RecursionError.
        decode = (_read_py if self._contains_itself(root) else fastavro).schemaless_reader

        def read(data: bytes, begin: int) -> Any:
            stream = io.BytesIO(data)
            stream.seek(begin)
            try:
                value = decode(stream, written, wanted, return_named_type=return_named_type)
            except RecursionError:
                raise ValueError("the data is nested too deeply") from None
            except Exception as error:  # malformed bytes can make the reader raise any error
                reason = "it ends too early" if isinstance(error, EOFError) else f"{type(error).__name__}, {error}"
                raise ValueError(f"the data is damaged, or was written with another schema ({reason})") from None
            if stream.tell() != len(data):
                raise ValueError(f"{len(data) - stream.tell()} bytes are left over")
            return value

        return read

    def _contains_itself(self, root: Any) -> bool:
        open_names: set[str] = set()
        done: set[str] = set()

        def visit(node: Any) -> bool:
            name = node["name"] if isinstance(node, dict) and node["type"] in NAMED else ""
            if name in done or name in open_names:
                return name in open_names
            if name:
                open_names.add(name)
            found = any(visit(one) for one in self._parts(node))
            if name:
                open_names.remove(name)
                done.add(name)
            return found

        return visit(self._resolved(root))

    def _check_bounded(self, root: Any) -> None:
        """Raise BadSchema if a few bytes of data can stand for billions of parts."""
        if self._has_empty_items(root):
            raise BadSchema("The Avro schema has an array whose items take no bytes, so its data has no bound")
        for name, node in self._names.items():
            if self._parts_at_least(node, set()) > PARTS_MAX:
                raise BadSchema(
                    f"The Avro schema's record {name} has more than {PARTS_MAX:,} fields, nested ones included"
                )

    def _has_empty_items(self, root: Any) -> bool:
        done: set[str] = set()

        def visit(node: Any) -> bool:
            if isinstance(node, dict) and node["type"] in NAMED:
                if node["name"] in done:
                    return False
                done.add(node["name"])
            if isinstance(node, dict) and node["type"] == "array" and self._is_empty(node["items"], set()):
                return True
            return any(visit(one) for one in self._parts(node))

        return visit(self._resolved(root))

    def _parts_at_least(self, given: Any, within: set[str]) -> int:
        """Return the number of parts that every value of the type has, without those in arrays, maps and unions.

        ``within`` contains the names of the records around it.
        """
        node = self._resolved(given)
        if not isinstance(node, dict) or node["type"] not in ("record", "error") or node["name"] in within:
            return 1
        name = node["name"]
        if name not in self._parts_of:
            inner = within | {name}
            self._parts_of[name] = 1 + sum(self._parts_at_least(one["type"], inner) for one in node["fields"])
        return self._parts_of[name]

    def _is_empty(self, given: Any, within: set[str]) -> bool:
        """Return True if a value of the type takes no bytes."""
        node = self._resolved(given)
        if not isinstance(node, dict):
            return isinstance(node, str) and node == "null"
        if node["type"] == "fixed":
            return bool(node["size"] == 0)
        if node["type"] in ("record", "error"):
            if node["name"] in within:
                return False
            name = node["name"]
            if name not in self._empty:
                inner = within | {name}
                self._empty[name] = all(self._is_empty(one["type"], inner) for one in node["fields"])
            return self._empty[name]
        return node["type"] not in ("array", "map", "enum") and self._is_empty(node["type"], within)

    def _parts(self, node: Any) -> list[Any]:
        if isinstance(node, list):
            return [self._resolved(one) for one in node]
        if not isinstance(node, dict):
            return []
        if "fields" in node:
            return [self._resolved(one["type"]) for one in node["fields"]]
        inner = node.get("items", node.get("values", node["type"] if node["type"] not in NAMED else None))
        return [] if inner is None else [self._resolved(inner)]

    def _resolved(self, node: Any) -> Any:
        return self._names.get(node, node) if isinstance(node, str) and node not in PRIMITIVES else node
