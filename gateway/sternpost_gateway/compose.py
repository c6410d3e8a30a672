"""
The compose stage: the body for one engine, and what that engine is expected to reuse.

All edits are splices into the bytes that the client sent; a request that needs none keeps its very bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sternpost_core.hint import HINT_FIELD as HINT_KEY
from sternpost_core.hint import Hint, Operation
from sternpost_core.jsonspan import Document, Edit, apply, edit_members, edit_object, in_order, members
from sternpost_core.policy import SuffixCache
from sternpost_gateway.builder import Wish
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.canonicalize import HINT_FIELD, SALT_FIELD
from sternpost_gateway.dialogue import raw_member
from sternpost_gateway.fleet import Engine, Info, Plugin
from sternpost_gateway.plan import Planned
from sternpost_gateway.receive import RESPONSES_PATH
from sternpost_gateway.tails import Refused, Tails, TailState
from sternpost_gateway.tokens import TailFacts

STREAM_OPTIONS: Final = "stream_options"
INCLUDE_USAGE: Final = "include_usage"
CONTINUOUS_USAGE: Final = "continuous_usage_stats"
"""Asks for usage in every chunk, and for nothing where usage is not asked for at all."""

DECLINED: Final = frozenset({None, b"null", b"false"})
"""What a client says that asks for no usage; engines take more than `true` for a yes."""


class Metering(StrEnum):
    """How an answer's usage is read."""

    NONE = "none"
    BODY = "body"
    STREAM = "stream"
    FILTER = "filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What one engine is expected to do: `bypass`: why it reuses nothing; `wanted`: what is to be built."""

    hint: Hint | None = None
    reuse_tokens: int = 0
    bypass: Bypass | None = None
    wanted: Wish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A request ready for one engine; `body` is None where the client's streams through."""

    planned: Planned
    engine: Engine
    outlook: Outlook
    body: bytes | None
    metering: Metering


def compose(planned: Planned, engine: Engine, info: Info, tails: Tails, *, tripped: bool = False) -> Composed:
    """Make the body for `engine`; one that is `tripped` gets no suffix reads."""
    outlook = look_out(planned, engine, info, tails, tripped=tripped)
    document = planned.segmented.canonicalized.document
    if document is None:
        return Composed(planned=planned, engine=engine, outlook=outlook, body=None, metering=Metering.NONE)
    metering = _metering(document, planned.identified.received.path)
    if outlook.hint is None and metering is Metering.FILTER:
        # Only what was asked for is read: a body that needs no hint is not edited for the sake of statistics.
        metering = Metering.NONE
    fields = _fields(planned, outlook.hint)
    edits = in_order(planned.edits, _field_edits(planned, document, fields, metering))
    body = apply(document.body, edits)
    return Composed(planned=planned, engine=engine, outlook=outlook, body=body, metering=metering)


def look_out(planned: Planned, engine: Engine, info: Info, tails: Tails, *, tripped: bool = False) -> Outlook:
    """Say what the engine is expected to reuse for a request, and what it is told."""
    has_plugin = info.plugin is Plugin.READY
    wish = planned.wish
    if has_plugin and (planned.off or (tripped and wish is not None)):
        return Outlook(
            hint=Hint(op=Operation.OFF, epoch=planned.identified.epoch),
            bypass=planned.bypass or Bypass.TRIPPED,
        )
    if wish is None:
        return Outlook(bypass=planned.bypass)
    if not has_plugin:
        return Outlook(bypass=Bypass.UNSUPPORTED if info.plugin is Plugin.UNSUPPORTED else Bypass.NO_PLUGIN)
    facts = tails.facts(wish.template.template_id)
    if facts is None:
        return Outlook(bypass=Bypass.TAIL_UNKNOWN, wanted=wish)
    if isinstance(facts, Refused):
        return Outlook(bypass=facts.reason)
    if (unfit := _unfit(len(facts.tail), wish, info)) is not None:
        return Outlook(bypass=unfit)
    return _read(planned, wish, facts, tails.state(engine, wish.key))


def _unfit(tail_tokens: int, wish: Wish, info: Info) -> Bypass | None:
    if tail_tokens < max(wish.tokens_min, info.tail_tokens_min):
        return Bypass.TAIL_TOO_SHORT
    if 0 < info.tail_tokens_max < tail_tokens:
        return Bypass.TAIL_TOO_LONG
    return None


def _read(planned: Planned, wish: Wish, facts: TailFacts, state: TailState) -> Outlook:
    """
    Ask for a read whatever is believed of the engine: another gateway may have had the tail built.

    The engine compares tokens and says what it found, so that a wrong belief costs nothing and is mended.
    """
    assert planned.policy and planned.policy.suffix_cache, "a wish comes from a policy with a suffix cache"
    hint = _read_hint(planned.policy.suffix_cache, wish, facts)
    if state is TailState.BUILT:
        return Outlook(hint=hint, reuse_tokens=max(0, hint.tail_tokens - hint.head - hint.last))
    if state is TailState.BUILDING:
        return Outlook(hint=hint, bypass=Bypass.BUILDING)
    return Outlook(hint=hint, bypass=Bypass.NOT_BUILT, wanted=wish)


def _read_hint(suffix_cache: SuffixCache, wish: Wish, facts: TailFacts) -> Hint:
    return Hint(
        op=Operation.READ,
        prefix_tokens=facts.prefix_tokens,
        tail_tokens=len(facts.tail),
        epoch=wish.key.epoch,
        mode=wish.mode,
        anchor=wish.anchor,
        head=suffix_cache.recompute.head,
        last=suffix_cache.recompute.last,
        match=suffix_cache.recompute.match,
        scaffold=facts.scaffold_id,
        correction=wish.correction,
    )


def _fields(planned: Planned, hint: Hint | None) -> dict[str, bytes]:
    """Return the body fields that the gateway sets, as raw JSON."""
    fields: dict[str, bytes] = {}
    if planned.salt is not None:
        fields[SALT_FIELD] = json.dumps(planned.salt).encode()
    if hint is not None:
        fields[HINT_FIELD] = json.dumps({HINT_KEY: hint.to_mapping()}, separators=(",", ":")).encode()
    return fields


def _field_edits(
    planned: Planned, document: Document, fields: Mapping[str, bytes], metering: Metering
) -> Iterable[Edit]:
    removed = planned.segmented.canonicalized.removed - fields.keys()
    if metering is not Metering.FILTER:
        return edit_members(document, fields, removed) if fields or removed else ()
    options = document.members.get(STREAM_OPTIONS)
    if options is None or document.body[slice(*options.value_span)] == b"null":
        asked = {STREAM_OPTIONS: b'{"' + INCLUDE_USAGE.encode() + b'":true}'}
        return edit_members(document, {**fields, **asked}, removed)
    found = members(document, options.value_span)
    asked = {INCLUDE_USAGE: b"true"} | ({CONTINUOUS_USAGE: b"false"} if CONTINUOUS_USAGE in found else {})
    inner = edit_object(document, options.value_span, found, asked, ())
    return in_order(edit_members(document, fields, removed), inner)


def _metering(document: Document, path: str) -> Metering:
    """Say how the answer's usage is read: a stream's has to be asked for, unless the client has."""
    if raw_member(document, "stream") != b"true":
        return Metering.BODY
    if path == RESPONSES_PATH:
        # The events of a streamed response say what was used unasked, and in a form of their own.
        return Metering.NONE
    options = document.members.get(STREAM_OPTIONS)
    raw = raw_member(document, STREAM_OPTIONS)
    if options is None or raw is None or raw == b"null":
        return Metering.FILTER
    if not raw.startswith(b"{"):
        # The engine will refuse this body, in its own words.
        return Metering.NONE
    asked = members(document, options.value_span).get(INCLUDE_USAGE)
    said = None if asked is None else document.body[slice(*asked.value_span)]
    return Metering.FILTER if said in DECLINED else Metering.STREAM
