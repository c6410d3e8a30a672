"""
The plan stage: what is done with a request, as far as that does not depend on the engine.

The kill level decides first, then the policy, then the request. Everything that changes the prompt is
decided here, so that it is the same whichever engine gets the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sternpost_core import policy as policies
from sternpost_core.hint import Correction, Mode
from sternpost_core.jsonspan import Document, Edit, Span, move_element_before, move_element_to_end
from sternpost_core.keys import cache_salt, conversation_key
from sternpost_core.policy import (
    Isolation,
    Layout,
    Policy,
    SuffixCache,
    SuffixMode,
    TailSource,
    VolatileAction,
)
from sternpost_gateway.builder import Wish
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.dialogue import Dialogue, raw_member
from sternpost_gateway.identify import Identified
from sternpost_gateway.kills import AFFINITY_OFF, READS_OFF, REWRITES_OFF
from sternpost_gateway.rendering import template_of
from sternpost_gateway.segment import Chat, Segmented, TailPlace, tail_source
from sternpost_gateway.shadow.verdicts import TailVersion
from sternpost_gateway.tails import TailKey
from sternpost_gateway.versions import Versions

CONTINUE_FIELD: Final = "continue_final_message"
"""Asks for an answer that goes on with the words of the last message."""

UNREPEATABLE_FIELDS: Final = (
    "add_generation_prompt",
    CONTINUE_FIELD,
    "documents",
    "previous_input_messages",
    "prompt_embeds",
    "reasoning",
    "reasoning_effort",
    "suffix",
    "mm_processor_kwargs",
)
"""Fields that the rendering depends on, and that /tokenize does not take in the same way."""

TOOL_CALLS: Final = b'"tool_calls"'
TOOL_CALLS_BYTES_MAX: Final = 64 * 1024
"""What earlier tool calls are known by, and how much of a body is searched for them."""

READS_OFF_FOR: Final = frozenset({Bypass.KILLED, Bypass.NOT_IN_ROLLOUT, Bypass.CLIENT_OFF, Bypass.DEMOTED})
"""Reasons for which the engine is told to leave its suffix store alone."""

PROMPT_OPENING_BYTES: Final = 1024
"""How much of a plain prompt tells conversations apart."""


IsDemoted = Callable[[TailVersion, Policy, int], bool]
"""Says whether a tail of a policy is read no more, at an epoch."""


def nothing_demoted(tail: TailVersion, policy: Policy, epoch: int) -> bool:
    """Say that every tail may be read."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """
    A request and what is to be done with it.

    `edits` move the tail. `salt` is the engine's cache salt, None where it stays without. `conversation` is
    the key that the request is routed by, None for the least loaded engine. `wish` is the tail to reuse;
    `bypass` says why there is none. With `off`, the engine is told to leave its suffix store alone.
    """

    segmented: Segmented
    edits: tuple[Edit, ...] = ()
    salt: str | None = None
    conversation: str | None = None
    wish: Wish | None = None
    bypass: Bypass | None = None
    off: bool = False
    versions: str = ""

    @property
    def identified(self) -> Identified:
        """Return what the request was identified as."""
        return self.segmented.canonicalized.identified

    @property
    def policy(self) -> Policy | None:
        """Return the policy that the request gets."""
        return self.identified.policy


def plan(
    segmented: Segmented, secret: bytes, versions: Versions, is_demoted: IsDemoted = nothing_demoted
) -> Planned:
    """Decide what is done with a request."""
    identified = segmented.canonicalized.identified
    document, policy = segmented.canonicalized.document, identified.policy
    if document is None:
        return Planned(segmented=segmented)
    rewrites = policy is not None and identified.level not in REWRITES_OFF and identified.is_served
    salt = _salt(segmented, document, secret) if rewrites else None
    bypass = _bypass(segmented, document, is_demoted) if policy else None
    return Planned(
        segmented=segmented,
        edits=tuple(_moves(segmented.chat, document, policy)) if rewrites and policy else (),
        salt=salt,
        conversation=_conversation(segmented, document, salt),
        wish=_wish(segmented, document, salt) if bypass is None and salt else None,
        bypass=bypass,
        off=salt is not None and segmented.chat is not None and _turns_reads_off(policy, bypass),
        versions=_versions(segmented, policy, versions) if policy else "",
    )


def wants_stream(planned: Planned) -> bool:
    """Say whether a request asks for a stream, whose first byte comes with the first token."""
    document = planned.segmented.canonicalized.document
    return document is not None and raw_member(document, "stream") == b"true"


def depends_on_template(planned: Planned) -> bool:
    """Say whether what is done with a request, or learned from it, depends on what the chat template does."""
    policy, chat = planned.policy, planned.segmented.chat
    if policy is None or chat is None or chat.dialogue.is_bare or not planned.identified.is_served:
        return False
    if planned.identified.level in REWRITES_OFF:
        return False
    document = planned.segmented.canonicalized.document
    relocates = any(rule.action is VolatileAction.RELOCATE for rule in policy.prompt.volatile)
    return relocates or (document is not None and TOOL_CALLS in document.body[:TOOL_CALLS_BYTES_MAX])


def _bypass(segmented: Segmented, document: Document, is_demoted: IsDemoted) -> Bypass | None:
    """Return why the request goes without tail reuse, None if nothing speaks against it so far."""
    identified, chat = segmented.canonicalized.identified, segmented.chat
    policy = identified.policy
    assert policy is not None, "only a policy's request is bypassed"
    tail_is_last = chat is not None and chat.tail_is_last
    may_move = chat is None or chat.tail_may_move
    tail_first = is_tail_first(policy)
    is_learned = tail_source(policy) is TailSource.LEARNED
    tail = tail_version_of(segmented)
    reasons = (
        (identified.held in REWRITES_OFF, Bypass.NOT_IN_ROLLOUT),
        (identified.held in READS_OFF and not tail_first, Bypass.NOT_IN_ROLLOUT),
        (identified.level in REWRITES_OFF, Bypass.KILLED),
        (not identified.is_served, Bypass.NOT_AVAILABLE),
        (policy.suffix_cache is None and not tail_first, Bypass.OBSERVING),
        (chat is None, Bypass.NOT_CHAT),
        # A tail that stands in front is in the prefix cache, which these levels leave alone.
        (identified.level in READS_OFF and not tail_first, Bypass.KILLED),
        (identified.reuse_off, Bypass.CLIENT_OFF),
        (chat is not None and chat.place is None and is_learned, Bypass.NOT_LEARNED),
        (chat is not None and chat.place is None, Bypass.NO_TAIL),
        (policy.prompt.layout is Layout.PRESERVE and not tail_is_last, Bypass.TAIL_NOT_LAST),
        (not may_move and (tail_first or not tail_is_last), Bypass.TAIL_NOT_MOVABLE),
        (tail_first, Bypass.TAIL_FIRST),
        (tail is not None and is_demoted(tail, policy, identified.epoch), Bypass.DEMOTED),
        (_is_set(document, UNREPEATABLE_FIELDS), Bypass.TEMPLATE_OPTIONS),
    )
    return next((reason for holds, reason in reasons if holds), None)


def tail_version_of(segmented: Segmented) -> TailVersion | None:
    """Return the tail of a policy's request as replays judge it, None where there is none."""
    identified, chat = segmented.canonicalized.identified, segmented.chat
    if identified.policy is None or chat is None or chat.tail_id is None:
        return None
    return TailVersion(identified.policy.full_name, identified.model or "", chat.tail_id)


def is_tail_first(policy: Policy) -> bool:
    """Say whether the tail goes where the engine's own prefix cache holds it, so that no hint is needed."""
    return policy.prompt.layout is Layout.TAIL_FIRST


def _turns_reads_off(policy: Policy | None, bypass: Bypass | None) -> bool:
    """Say whether the engine is told to leave its suffix store alone."""
    has_hints = policy is not None and not is_tail_first(policy)
    return has_hints and bypass in READS_OFF_FOR


def _moves(chat: Chat | None, document: Document, policy: Policy) -> list[Edit]:
    place, dialogue = (chat.place, chat.dialogue) if chat and chat.tail_may_move else (None, None)
    if place is None or dialogue is None or _continues_elsewhere(document, place, dialogue, policy):
        return []
    assert dialogue.array is not None and place.first is not None, "only an element of a list is moved"
    match policy.prompt.layout:
        case Layout.FIXED_TAIL:
            return move_element_to_end(document, dialogue.array, place.first)
        case Layout.TAIL_FIRST:
            return move_element_before(document, dialogue.array, place.first, dialogue.opening)
        case Layout.PRESERVE:
            return []


def _continues_elsewhere(document: Document, place: TailPlace, dialogue: Dialogue, policy: Policy) -> bool:
    """Say whether the answer is to go on from the last message, and would from another if the tail moved."""
    if raw_member(document, CONTINUE_FIELD) != b"true":
        return False
    is_last = place.first == len(dialogue.messages) - 1
    return is_last if is_tail_first(policy) else not is_last


def _salt(segmented: Segmented, document: Document, secret: bytes) -> str | None:
    """
    Return the salt of the policy's sharing scope.

    A request with reuse turned off gets one that nobody else has, so that it finds and leaves nothing.
    """
    identified = segmented.canonicalized.identified
    policy = identified.policy
    if policy is None or not _is_salted(policy):
        return None
    isolation, session = policy.tenancy.isolation, identified.session or ""
    if identified.reuse_off:
        isolation, session = Isolation.SESSION, f"off {identified.received.request_id}"
    elif isolation is Isolation.SESSION and not session:
        session = _opening_key(segmented, document, "")
    return cache_salt(
        secret,
        isolation=isolation,
        policy=policy.full_name,
        tenant=identified.tenant or "",
        session=session,
        prefix_epoch=policy.tenancy.prefix_epoch,
    )


def _is_salted(policy: Policy) -> bool:
    """Say whether a policy's KV is kept apart; an epoch needs that, so that what came before is not met."""
    return policy.suffix_cache is not None or is_tail_first(policy) or policy.tenancy.prefix_epoch > 0


def _conversation(segmented: Segmented, document: Document, salt: str | None) -> str | None:
    identified = segmented.canonicalized.identified
    if identified.level in AFFINITY_OFF:
        return None
    return _opening_key(segmented, document, salt or identified.tenant or "", identified.session)


def _opening_key(segmented: Segmented, document: Document, scope: str, session: str | None = None) -> str:
    """Return the conversation key; without a session it is made of what every later turn repeats."""
    model = segmented.canonicalized.identified.model or ""
    opening = () if session else _opening(segmented, document)
    return conversation_key(model=model, scope=scope, session=session, opening=opening)


def _opening(segmented: Segmented, document: Document) -> list[tuple[str, bytes]]:
    chat = segmented.chat
    if chat is None:
        return [("prompt", (raw_member(document, "prompt") or b"")[:PROMPT_OPENING_BYTES])]
    moved, dialogue = segmented.canonicalized.moved, chat.dialogue
    first = dialogue.middle[:1]
    if dialogue.text is not None:
        text = _without(document.body, dialogue.text, moved)
        return [("prefix", chat.prefix_id.encode()), ("prompt", text[:PROMPT_OPENING_BYTES])]
    return [
        ("prefix", chat.prefix_id.encode()),
        *(("first", _without(document.body, span, moved)) for span in first),
    ]


def _without(body: bytes, span: Span, moved: Span | None) -> bytes:
    """Return the bytes at `span` without what was moved there: that differs from turn to turn."""
    if moved is None or not span.start <= moved.start < span.end:
        return body[span.start : span.end]
    return body[span.start : moved.start] + body[moved.end : span.end]


def _wish(segmented: Segmented, document: Document, salt: str) -> Wish:
    identified, chat = segmented.canonicalized.identified, segmented.chat
    policy = identified.policy
    assert policy and policy.suffix_cache and chat and chat.place, "nothing speaks against reuse"
    template = template_of(document, chat)
    tail = policy.prompt.tail
    return Wish(
        template=template,
        key=TailKey(policy.full_name, template.template_id, salt, identified.epoch),
        tokens_min=tail.min_tokens if tail else 0,
        mode=hint_mode(policy.suffix_cache),
        anchor=policy.suffix_cache.anchor if policy.suffix_cache.mode is SuffixMode.ANCHOR else 0,
        correction=hint_correction(policy.suffix_cache),
    )


def hint_mode(suffix_cache: SuffixCache) -> Mode:
    """Return the policy's mode as hints say it."""
    return Mode.ANCHOR if suffix_cache.mode is SuffixMode.ANCHOR else Mode.ROTATE


def hint_correction(suffix_cache: SuffixCache) -> Correction:
    """Return the policy's correction as hints say it."""
    is_calibrated = suffix_cache.correction is policies.Correction.CALIBRATED
    return Correction.CALIBRATED if is_calibrated else Correction.NONE


def _versions(segmented: Segmented, policy: Policy, versions: Versions) -> str:
    chat, identified = segmented.chat, segmented.canonicalized.identified
    if chat is None:
        return ""
    # A session is its tenant's own: two tenants may name theirs alike.
    conversation = f"{identified.tenant!r} {identified.session!r}" if identified.session else None
    prefix = None if chat.dialogue.is_bare else chat.prefix_id
    segments = [("prefix", prefix), ("tail", chat.tail_id)]
    return ",".join(
        f"{name}=v{versions.version(policy.full_name, name, found, conversation)}"
        for name, found in segments
        if found is not None
    )


def _is_set(document: Document, names: tuple[str, ...]) -> bool:
    return any(raw_member(document, name) not in (None, b"null") for name in names)
