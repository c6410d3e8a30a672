"""
Pins: the first-seen byte form of a tool list and of each tool, reused for every equivalent form.

Tools are put in the order of type and name, so that gateways that know nothing of each other agree; only
within a session do the tools that it had keep their places, and new ones follow. The agents of one session
may have different tools and take turns: each list goes on from the one that it shares most of its beginning
with. A list whose tools steer guided decoding, or whose tools share a name, is left as it is.

Pins are kept for each policy and tenant apart, least recently used first out. What is forgotten costs reuse
and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Final, NamedTuple

from sternpost_core.content import ContentId
from sternpost_core.jsonspan import Document, Span, elements
from sternpost_core.tool_form import Label, read_tool
from sternpost_gateway.bounded import Bounded, BoundedSize

SCOPES_MAX: Final = 256
"""Policies and tenants, paired, whose pins are kept."""

PINS_BYTES_MAX: Final = 512 * 1024
"""Bytes of tools, and again of lists, that are kept for one policy and tenant."""

LIST_BYTES_MAX: Final = 256 * 1024
"""Bytes of one list that is looked into; a longer one is left as it is."""

ORDERS_BYTES_MAX: Final = 2 * 1024 * 1024
"""
Bytes of names and keys that are kept for one policy and tenant: of sessions' tools, and again of lists that
need not be read again. With 20 tools that is some 1,000 sessions of one agent.
"""

AGENTS_MAX: Final = 8
"""Orders of one session that are remembered, the last one first."""

Order = tuple[Label, ...]


class ToolsOutcome(StrEnum):
    """What is done about a request's tools; the values are metric labels."""

    SAME = "same"
    """They have the pinned form already."""

    PINNED = "pinned"
    """They take the pinned form."""

    DIFFERS = "differs"
    """They would take the pinned form, if the policy did more than report."""

    GUIDED = "guided"
    """A tool is strict, or one is required: decoding is guided by the bytes as they are."""

    DUPLICATE_TOOL_NAME = "duplicate_tool_name"
    """Two tools share type and name, so that their order may tell them apart."""

    NOT_TOOLS = "not_tools"
    """There is something else than a list of objects."""

    TOO_LARGE = "too_large"
    """The list is longer than what is looked into."""


class Scope(NamedTuple):
    """Whose pins: nobody's form reaches anybody else."""

    policy: str
    tenant: str


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of a list: `form` takes its place, None leaves it."""

    outcome: ToolsOutcome
    form: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a list from its bytes: why it is left alone, or its tools' keys, by type and name."""

    outcome: ToolsOutcome | None
    keys: Mapping[Label, ContentId] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return how many bytes it takes, about."""
        return _size(self.keys) + sum(map(len, self.keys.values()))


class ToolPins:
    """The pins of all policies and tenants."""

    def __init__(self, scopes_max: int = SCOPES_MAX, bytes_max: int = PINS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._scopes: Bounded[Scope, _ScopePins] = Bounded(scopes_max)

    def settle(self, scope: Scope, session: str | None, document: Document, span: Span) -> Settled:
        """Decide about the list of tools at `span`, and pin what is new in it."""
        if document.body[span.start : span.start + 1] != b"[":
            return Settled(ToolsOutcome.NOT_TOOLS)
        if span.end - span.start > LIST_BYTES_MAX:
            return Settled(ToolsOutcome.TOO_LARGE)
        pins = self._scopes.get(scope)
        if pins is None:
            pins = _ScopePins(self._bytes_max)
            self._scopes.put(scope, pins)
        return pins.settle(session, document, span)


class _ScopePins:
    """The pins of one policy and tenant."""

    def __init__(self, bytes_max: int) -> None:
        self._tools: BoundedSize[ContentId, bytes] = BoundedSize(bytes_max)
        self._lists: BoundedSize[tuple[ContentId, ...], bytes] = BoundedSize(bytes_max)
        self._seen: BoundedSize[bytes, _Seen] = BoundedSize(ORDERS_BYTES_MAX)
        self._orders: BoundedSize[str, tuple[Order, ...]] = BoundedSize(ORDERS_BYTES_MAX)

    def settle(self, session: str | None, document: Document, span: Span) -> Settled:
        """Decide from memory where the very bytes have been seen before."""
        raw = document.body[span.start : span.end]
        digest = hashlib.sha256(raw).digest()
        seen = self._seen.get(digest)
        if seen is None:
            seen = _look(_raws(document, span))
            self._seen.put(digest, seen, seen.size)
        if seen.outcome is not None:
            return Settled(seen.outcome)
        order = self._order(session, seen.keys)
        form = self._form(document, span, [seen.keys[label] for label in order])
        return Settled(ToolsOutcome.SAME) if form == raw else Settled(ToolsOutcome.PINNED, form)

    def _order(self, session: str | None, labels: Collection[Label]) -> Order:
        """Return the order that a session's tools take, and remember it; without a session, their own."""
        if not session or not labels:
            return tuple(labels)
        before = self._orders.get(session) or ()
        order = _following(before, labels)
        if before[:1] != (order,):
            orders = (order, *(one for one in before if one != order))[:AGENTS_MAX]
            self._orders.put(session, orders, len(session) + sum(map(_size, orders)))
        return order

    def _form(self, document: Document, span: Span, keys: Sequence[ContentId]) -> bytes:
        """Return the pinned form of a list in this order; an unknown list's own, if nothing is against it."""
        form = self._lists.get(tuple(keys))
        if form is None:
            raws = _raws(document, span)
            own = {tool.key: raw for raw in raws if (tool := read_tool(raw)) is not None}
            tools = [self._tool_form(key, own[key]) for key in keys]
            form = document.body[slice(*span)] if tools == raws else b"[" + b",".join(tools) + b"]"
            self._lists.put(tuple(keys), form, len(form))
        return form

    def _tool_form(self, key: ContentId, raw: bytes) -> bytes:
        form = self._tools.get(key)
        if form is None:
            form = raw
            self._tools.put(key, form, len(form))
        return form


def _raws(document: Document, span: Span) -> list[bytes]:
    return [document.body[slice(*element)] for element in elements(document, span)]


def _look(raws: Sequence[bytes]) -> _Seen:
    """Say what is known of a list of tools from their bytes."""
    tools = [tool for raw in raws if (tool := read_tool(raw)) is not None]
    if len(tools) < len(raws):
        return _Seen(ToolsOutcome.NOT_TOOLS)
    if any(tool.is_strict for tool in tools):
        return _Seen(ToolsOutcome.GUIDED)
    keys = {tool.label: tool.key for tool in sorted(tools, key=lambda tool: tool.label)}
    return _Seen(ToolsOutcome.DUPLICATE_TOOL_NAME) if len(keys) < len(tools) else _Seen(None, keys)


def _following(before: Sequence[Order], labels: Collection[Label]) -> Order:
    """
    Return the order in which tools follow what a session had before.

    Of its earlier orders that counts whose beginning is all there for longest: so much stays cached. Of equal
    ones the last counts. What is left of it stays in place, and new tools follow.
    """
    closest = max(before, key=lambda order: _shared(order, labels), default=())
    kept = [label for label in closest if label in labels]
    new = set(labels).difference(kept)
    return (*kept, *(label for label in labels if label in new))


def _shared(order: Order, labels: Collection[Label]) -> int:
    """Return how many tools an order begins with that are all there."""
    return len(list(takewhile(labels.__contains__, order)))


def _size(labels: Collection[Label]) -> int:
    """Return how many bytes names take, about."""
    return sum(len(label.type) + len(label.name) for label in labels)
