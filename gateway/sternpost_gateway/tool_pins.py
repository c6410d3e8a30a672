"""
Pins: the first-seen byte form of a tool list and of each tool, reused for every equivalent form.

Tools are put in the order of type and name, so that gateways that know nothing of each other agree; only
within a session do the tools that it had keep their places, and new ones follow. A list whose tools
steer guided decoding, or whose tools share a name, is left as it is.

Pins are kept for each policy and tenant apart, least recently used first out. What is forgotten costs reuse
and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from sternpost_core.content import ContentId
from sternpost_core.jsonspan import Document, Span, elements
from sternpost_core.tool_form import Label, Tool, read_tool
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
need not be read again. With 20 tools that is some 1,000 sessions.
"""

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
class _Listed:
    tool: Tool
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a list from its bytes: why it is left alone, or its tools' order and keys."""

    outcome: ToolsOutcome | None
    order: Order = ()
    keys: tuple[ContentId, ...] = ()

    @property
    def size(self) -> int:
        """Return how many bytes it takes, about."""
        return sum(len(label.type) + len(label.name) for label in self.order) + sum(map(len, self.keys))


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
        self._seen: BoundedSize[tuple[bytes, Order], _Seen] = BoundedSize(ORDERS_BYTES_MAX)
        self._orders: BoundedSize[str, Order] = BoundedSize(ORDERS_BYTES_MAX)

    def settle(self, session: str | None, document: Document, span: Span) -> Settled:
        """Decide from memory where the very bytes have been seen after the same order."""
        before = (self._orders.get(session) if session else None) or ()
        raw = document.body[span.start : span.end]
        known = (hashlib.sha256(raw).digest(), before)
        seen = self._seen.get(known)
        form = self._lists.get(seen.keys) if seen else None
        if seen is None or (seen.outcome is None and form is None):
            seen, form = self._look(raw, _read(document, span), before)
            self._seen.put(known, seen, seen.size)
        if session and seen.order:
            self._orders.put(session, seen.order, len(session) + seen.size)
        if seen.outcome is not None:
            return Settled(seen.outcome)
        return Settled(ToolsOutcome.SAME) if form == raw else Settled(ToolsOutcome.PINNED, form)

    def _look(
        self, raw: bytes, listed: Sequence[_Listed] | None, before: Order
    ) -> tuple[_Seen, bytes | None]:
        """Read a list, and return its pinned form if it has one."""
        if listed is None:
            return _Seen(ToolsOutcome.NOT_TOOLS), None
        if any(one.tool.is_strict for one in listed):
            return _Seen(ToolsOutcome.GUIDED), None
        if len({one.tool.label for one in listed}) < len(listed):
            return _Seen(ToolsOutcome.DUPLICATE_TOOL_NAME), None
        ordered = _ordered(listed, before)
        keys = tuple(one.tool.key for one in ordered)
        order = tuple(one.tool.label for one in ordered)
        return _Seen(None, order, keys), self._form(raw, listed, ordered, keys)

    def _form(
        self, raw: bytes, listed: Sequence[_Listed], ordered: Sequence[_Listed], keys: tuple[ContentId, ...]
    ) -> bytes:
        """Return the pinned form of a list in this order; an unknown list's own, if nothing is against it."""
        form = self._lists.get(keys)
        if form is None:
            tools = [self._tool_form(one) for one in ordered]
            form = raw if tools == [one.raw for one in listed] else b"[" + b",".join(tools) + b"]"
            self._lists.put(keys, form, len(form))
        return form

    def _tool_form(self, listed: _Listed) -> bytes:
        form = self._tools.get(listed.tool.key)
        if form is None:
            form = listed.raw
            self._tools.put(listed.tool.key, form, len(form))
        return form


def _read(document: Document, span: Span) -> list[_Listed] | None:
    """Return the list's tools, None if something else is among them."""
    listed: list[_Listed] = []
    for element in elements(document, span):
        raw = document.body[element.start : element.end]
        tool = read_tool(raw)
        if tool is None:
            return None
        listed.append(_Listed(tool, raw))
    return listed


def _ordered(listed: Sequence[_Listed], before: Order) -> list[_Listed]:
    """Put the tools that were there before first, in their places, then the others by type and name."""
    places = {label: place for place, label in enumerate(before)}
    return sorted(listed, key=lambda one: (places.get(one.tool.label, len(places)), one.tool.label))
