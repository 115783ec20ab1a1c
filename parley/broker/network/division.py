"""Division of large requests: a request with many elements is handled as several requests with fewer elements.

A request may contain 65,000 elements. Its handler, its guard, the controller and the coordinators each walk its lists
in one turn of the event loop. The dispatcher therefore divides a large request into parts, has them handled one after
another, and joins their responses. Handlers, guards and decisions are not affected.

This is possible if each element of a request succeeds or fails independently, as in most APIs. Each API that can be
divided has a ``Division``: the lists to split, and the lists of the response to join. Elements that name the same thing
stay in one part, because handlers differ in how they treat duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from copy import copy
from functools import partial
from operator import attrgetter
from typing import Any

from parley.broker.network.unfinished_responses import UnfinishedResponse, UnfinishedResponses
from parley.broker.runtime.places import Place
from parley.broker.runtime.steps import Steps, in_turns
from parley.broker.runtime.turns import next_turn
from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError
from parley.protocol.schema import Response

_Group = list[tuple[str, Any]]
"""Elements that name the same thing, each with the name of the field that contains it."""
_Path = tuple[tuple[str, Any], ...]
"""The elements that contain a group, outermost first, each with the name of the field that contains it."""


@dataclass(frozen=True, slots=True)
class Level:
    """The lists at one depth of a message.

    ``names`` are the fields by which an element names something. They are empty if the element itself is the name, and
    None if no two elements name the same thing. If several elements name the same thing, a handler needs only the first
    and the last, unless ``needs_all``.
    """

    fields: tuple[str, ...]
    names: tuple[str, ...] | None
    needs_all: bool = False

    def key(self) -> Callable[[Any], Hashable]:
        """Return a function that extracts the name from an element."""
        return attrgetter(*self.names) if self.names else lambda element: element


def named(field: str, *names: str, needs_all: bool = False) -> Level:
    """Return the level of the list ``field``. Each element names something by its fields ``names``, or is itself the
    name if there are none. ``Level`` explains ``needs_all``."""
    return Level((field,), names, needs_all)


def in_order(field: str) -> Level:
    """Return the level of a list whose elements have no names. The response contains their results in the same
    order."""
    return Level((field,), None)


def _raised(context: Any, request: Any, error: KafkaError) -> Response:
    raise error


def _never(context: Any, request: Any) -> Steps[KafkaError | None]:
    yield from ()
    return None


@dataclass(frozen=True, slots=True)
class Division:
    """How to divide the requests of one API and join their responses.

    ``request`` and ``response`` are the lists, from the outermost to the innermost. A part contains ``size`` elements
    of the innermost lists. If ``only_reads``, a request is dropped once its client has disconnected. ``refusal``
    returns, in steps, the error for a request that is too large as a whole, and ``refuse`` returns the response that
    reports it. Neither may reveal what the client has no right to know.
    """

    request: tuple[Level, ...]
    response: tuple[Level, ...]
    size: int = 500
    only_reads: bool = False
    refusal: Callable[[Any, Any], Steps[KafkaError | None]] = _never
    refuse: Callable[[Any, Any, KafkaError], Response] = _raised

    def parts(self, request: Any) -> list[Any]:
        """Return the requests that together are equivalent to ``request``, or an empty list if its lists are empty."""
        parts: list[_Part] = []
        for path, group in _groups(request, self.request):
            if not parts or parts[-1].elements + len(group) > self.size:
                parts.append(_Part(request, self.request))
            parts[-1].add(path, group)
        return [each.message for each in parts]


def _groups(struct: Any, levels: tuple[Level, ...]) -> Iterator[tuple[_Path, _Group]]:
    """Yield the groups of innermost elements that name the same thing, each with the elements that contain it."""
    level, below = levels[0], levels[1:]
    for group in _alike(struct, level):
        if not below:
            yield (), group if level.needs_all or len(group) == 1 else [group[0], group[-1]]
            continue
        field, outer = group[0][0], _joined([each for _, each in group], below[0])
        is_empty = True
        for path, inner in _groups(outer, below):
            is_empty = False
            yield ((field, outer), *path), inner
        if is_empty:
            yield (), [(field, outer)]


def _alike(struct: Any, level: Level) -> Iterable[_Group]:
    """Return the elements at a level, grouped by key, in the order of their first occurrence."""
    elements = [(field, each) for field in level.fields for each in getattr(struct, field) or ()]
    if level.names is None:
        return [[each] for each in elements]
    key = level.key()
    groups: dict[Hashable, _Group] = {}
    for each in elements:
        groups.setdefault(key(each[1]), []).append(each)
    return groups.values()


def _joined(elements: list[Any], below: Level) -> Any:
    """Merge elements that name the same thing into one element with all their lists. A null list, which means all,
    stays null."""
    if len(elements) == 1:
        return elements[0]
    joined = copy(elements[0])
    for field in below.fields:
        lists = [getattr(each, field) for each in elements]
        setattr(joined, field, None if None in lists else [item for each in lists for item in each])
    return joined


class _Part:
    """One part of a divided request: a copy of the request with some of its elements."""

    def __init__(self, request: Any, levels: tuple[Level, ...]) -> None:
        self._levels = levels
        self._open: list[tuple[Any, Any]] = []  # the last element at each level except the innermost, and its copy
        self.message = _emptied(request, levels[0])
        self.elements = 0

    def add(self, path: _Path, group: _Group) -> None:
        into = self.message
        for depth, (field, outer) in enumerate(path):
            if depth >= len(self._open) or self._open[depth][0] is not outer:
                del self._open[depth:]
                twin = _emptied(outer, self._levels[depth + 1])
                getattr(into, field).append(twin)
                self._open.append((outer, twin))
            into = self._open[depth][1]
        for field, element in group:
            getattr(into, field).append(element)
        self.elements += len(group)


def _emptied(struct: Any, level: Level) -> Any:
    """Return a copy with empty lists at ``level``."""
    twin = copy(struct)
    for field in level.fields:
        if getattr(struct, field) is not None:
            setattr(twin, field, [])
    return twin


class JoinedResponse:
    """The response to a divided request, joined from the responses to its parts."""

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self._levels = levels
        self._known: dict[Hashable, Any] = {}
        self.response: Any = None

    def add(self, part: Response) -> None:
        """Add the response to the next part: its elements, and its throttle time if that is the longest so far."""
        if self.response is None:
            self.response = _emptied(part, self._levels[0])
        elif (throttled_ms := getattr(part, "throttle_time_ms", 0)) > 0:
            self.response.throttle_time_ms = max(self.response.throttle_time_ms, throttled_ms)
        self._join(self.response, part, self._levels, ())

    def _join(self, into: Any, given: Any, levels: tuple[Level, ...], place: tuple[Hashable, ...]) -> None:
        level, below = levels[0], levels[1:]
        key_of = level.key()
        for field in level.fields:
            elements = getattr(given, field)
            if not below:
                getattr(into, field).extend(elements)
                continue
            for each in elements:
                key = (*place, key_of(each))
                known = self._known.get(key)
                if known is None:
                    known = self._known[key] = _emptied(each, below[0])
                    getattr(into, field).append(known)
                self._join(known, each, below, key)


@dataclass(frozen=True, slots=True)
class Divided:
    """A divided request: the parts, and the request as a whole."""

    division: Division
    parts: list[Any]
    whole: Any


def divided(request: Any, divisions: Iterable[Division]) -> Divided | None:
    """Divide a request by the first division whose lists it contains. Returns None if there is none.

    This takes a long time for large requests: call it in a thread.
    """
    for division in divisions:
        if parts := division.parts(request):
            return Divided(division, parts, request)
    return None


async def handled_in_parts(
    context: Any,
    handler: Callable[[Any, Any], Any],
    request: Divided,
    unfinished: UnfinishedResponses,
    size_of: Callable[[Response], Awaitable[int]],
    place: Place | None = None,
) -> Response | None:
    """Handle the parts of a request one after another, each in its own turn of the event loop. Returns the joined
    response. Ends the request's ``place``, if it has one, when it only waits for events.

    A part waits while other responses in ``unfinished`` hold too much memory; ``size_of`` measures what the part adds.
    A response that waits for an event does not delay the next parts. If a part's response reports an error of the whole
    request, it is returned, and the remaining parts are not handled. Returns None if the client has disconnected and
    the request only reads. Raises the errors of ``handler``.
    """
    refusal = await in_turns(request.division.refusal(context, request.whole))
    if refusal is not None:
        handler = partial(_refused, request.division, refusal)
    response = unfinished.begin(len(request.parts))
    try:
        return await _joined_response(context, handler, request, unfinished, response, size_of, place)
    finally:
        unfinished.end(response)


async def _joined_response(
    context: Any,
    handler: Callable[[Any, Any], Any],
    request: Divided,
    unfinished: UnfinishedResponses,
    own: UnfinishedResponse,
    size_of: Callable[[Response], Awaitable[int]],
    place: Place | None,
) -> Response | None:
    joined = JoinedResponse(request.division.response)
    waiting: list[asyncio.Future[Any]] = []
    try:
        for part in request.parts:
            await unfinished.begin_part(own)
            await next_turn()
            if request.division.only_reads and context.client.has_disconnected:
                return None
            response = handler(context, part)
            while asyncio.iscoroutine(response):
                response = await response
            if isinstance(response, asyncio.Future):
                waiting.append(response)
                unfinished.part_made(own, 0)
            elif getattr(response, "error_code", 0):
                return response  # type: ignore[no-any-return]
            else:
                unfinished.part_made(own, await size_of(response))
                joined.add(response)
        if place is not None:
            place.end()
        for future in waiting:
            joined.add(await future)
            await next_turn()
    finally:
        for future in waiting:
            future.cancel()
    return joined.response  # type: ignore[no-any-return]


def _refused(division: Division, error: KafkaError, context: Any, part: Any) -> Response:
    return division.refuse(context, part, error)
