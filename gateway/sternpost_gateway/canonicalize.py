"""
The canonicalize stage: the body in the form that the engines have seen before.

Three things happen to a body here, each as a splice. Fields that only the gateway may set are taken out of
every request that is looked into, whatever the policy: a client that chose its own salt could share another's
KV, and one that wrote hints could fill the store. Tools take their pinned form, and volatile lines leave the
prefix, where the policy says so. What is after it is the same whether it happens once or twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from sternpost_core.jsonspan import Document, Edit, Span, in_order, value
from sternpost_core.jsonsplice import NewElement, spliced
from sternpost_core.policy import Canonicalize, Policy, VolatileAction
from sternpost_gateway.dialogue import Dialogue, dialogue_of, prompt_end
from sternpost_gateway.identify import CACHE_FIELD, Identified
from sternpost_gateway.kills import REWRITES_OFF
from sternpost_gateway.relocate import Head, Removals, choose, head_of, remove
from sternpost_gateway.tool_pins import Scope, Settled, ToolPins, ToolsOutcome
from sternpost_gateway.volatile import Text, VolatileLine, VolatileLines, texts_of

SALT_FIELD: Final = "cache_salt"
HINT_FIELD: Final = "kv_transfer_params"

RESERVED_FIELDS: Final = frozenset({SALT_FIELD, HINT_FIELD, CACHE_FIELD})
"""Fields of a client's body that never pass."""

REQUIRED: Final = "required"
"""The tool choice, or the mode of one among allowed tools, that leaves no way but to call a tool."""

FINDINGS_MAX: Final = 64
"""Volatile spans of one request that are told of."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of earlier requests."""

    pins: ToolPins
    lines: VolatileLines


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A volatile span of the prefix, by its place and looks, never by its text.

    `path` is that of a message or of its part, `offset` counts characters there; `action` is what was done.
    The prompt goes on for `lost_bytes` from about there.
    """

    path: str
    offset: int
    detector: str
    action: VolatileAction
    lost_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Canonicalized:
    """
    A request in its canonical form.

    `document` is the body to go on with, None where the body is unread; `removed` are the fields of it that
    go. `moved` is where lines of the prefix stand in it now. `tools` is None where there are none to look at.
    """

    identified: Identified
    document: Document | None
    removed: frozenset[str]
    moved: Span | None = None
    tools: ToolsOutcome | None = None
    findings: tuple[Finding, ...] = ()


def canonicalize(
    identified: Identified, pins: ToolPins, lines: VolatileLines, *, takes_later_system: bool = False
) -> Canonicalized:
    """
    Find the reserved fields, and bring tools and prefix into their canonical form.

    `takes_later_system`: the engine's chat template takes a system message behind the first.
    """
    document, policy = identified.received.document, identified.policy
    if document is None:
        return Canonicalized(identified, None, frozenset())
    removed = RESERVED_FIELDS.intersection(document.members)
    received = Canonicalized(identified, document, removed)
    if policy is None or identified.level in REWRITES_OFF or not identified.is_served:
        return received
    dialogue = dialogue_of(document, identified.received.path)
    if dialogue is None or dialogue.is_bare:
        return received
    memory = Memory(pins, lines)
    return _canonical(received, document, dialogue, policy, memory, takes_later_system=takes_later_system)


def _canonical(
    received: Canonicalized,
    document: Document,
    dialogue: Dialogue,
    policy: Policy,
    memory: Memory,
    *,
    takes_later_system: bool,
) -> Canonicalized:
    settled = _settle_tools(received.identified, document, policy, memory.pins)
    texts = texts_of(document, dialogue)
    is_reported = policy.prompt.canonicalize is not Canonicalize.OFF
    found = memory.lines.find(texts, policy.prompt.volatile, report=is_reported)
    head = head_of(document, dialogue, takes_later_system=takes_later_system) if found else None
    chosen = choose(texts, found, may_move=head is not None)
    edits = in_order(_tool_edits(document, settled), remove(document, texts, chosen, head))
    return replace(
        received,
        document=_edited(document, edits, head if chosen.moved else None),
        moved=_moved(edits, head) if chosen.moved else None,
        tools=settled.outcome if settled else None,
        findings=_findings(texts, found, chosen, prompt_end(dialogue)),
    )


def _settle_tools(
    identified: Identified, document: Document, policy: Policy, pins: ToolPins
) -> Settled | None:
    member = document.members.get("tools")
    if member is None or policy.prompt.canonicalize is Canonicalize.OFF:
        return None
    choice = document.members.get("tool_choice")
    if choice is not None and _is_required(value(document, choice.value_span)):
        return Settled(ToolsOutcome.GUIDED)
    scope = Scope(policy.full_name, identified.tenant or "")
    settled = pins.settle(scope, identified.session, document, member.value_span)
    if settled.form is not None and policy.prompt.canonicalize is Canonicalize.REPORT:
        return Settled(ToolsOutcome.DIFFERS)
    return settled


def _is_required(choice: Any) -> bool:
    """Say whether a tool has to be called, so that decoding is guided by the tools as they stand."""
    if not isinstance(choice, dict):
        return bool(choice == REQUIRED)
    allowed = choice.get("allowed_tools")
    return REQUIRED in (choice.get("mode"), allowed.get("mode") if isinstance(allowed, dict) else None)


def _tool_edits(document: Document, settled: Settled | None) -> list[Edit]:
    if settled is None or settled.form is None:
        return []
    return [Edit(*document.members["tools"].value_span, settled.form)]


def _edited(document: Document, edits: Sequence[Edit], head: Head | None) -> Document:
    if not edits:
        return document
    if head is None or head.array is None:
        return spliced(document, edits)
    return spliced(document, edits, NewElement(head.array, _put_at(edits, head)))


def _moved(edits: Sequence[Edit], head: Head | None) -> Span:
    """Return where the moved lines stand once the edits are made."""
    assert head is not None, "lines move only where there is a place for them"
    shift = sum(len(edit.replacement) - (edit.end - edit.start) for edit in edits if edit.end < head.at)
    return Span(head.at + shift, head.at + shift + len(_put_at(edits, head).replacement))


def _put_at(edits: Sequence[Edit], head: Head) -> Edit:
    """Return the edit that puts lines where the middle begins."""
    (edit,) = (edit for edit in edits if edit.start == head.at == edit.end)
    return edit


def _findings(
    texts: Sequence[Text], found: Sequence[VolatileLine], chosen: Removals, end: int
) -> tuple[Finding, ...]:
    findings = (
        Finding(
            texts[line.text].path,
            line.start + hit.start,
            hit.detector,
            _done(line, chosen),
            max(0, end - texts[line.text].span.start - line.start - hit.start),
        )
        for line in found
        for hit in line.hits
    )
    return tuple(islice(findings, FINDINGS_MAX))


def _done(line: VolatileLine, chosen: Removals) -> VolatileAction:
    if line in chosen.moved:
        return VolatileAction.RELOCATE
    return VolatileAction.STRIP if line in chosen.stripped else VolatileAction.REPORT
