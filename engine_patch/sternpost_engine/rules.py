"""
Which requests may use the suffix store: rules that need the request alone.

Every refusal has a reason that is counted and reported. What depends on the store's state, or on the room
in a step, is the planner's to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.errors import HintError
from sternpost_core.hint import HINT_FIELD, Hint, Mode, Operation, Reason, parse_hint

DEFERRALS_MAX: Final = 200
"""So many scheduler steps a read may wait for room; then it is computed like any other request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What a tail must be, in tokens and as a share of the prompt, to be worth a place in the store.

    `positions_max` is how many positions an anchored request may reach to; 0 where the engine cannot shift
    positions. `long_middles` says that a middle which no step has room for may be computed in chunks first,
    after which the running request jumps over its tail.
    """

    tail_tokens_min: int = 256
    tail_tokens_max: int = 4096
    tail_share_min: float = 0.2
    deferrals_max: int = DEFERRALS_MAX
    positions_max: int = 0
    long_middles: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    What the planner needs to know of a request.

    `transfer` is the request's `kv_transfer_params` as the engine received it. `lora` is the adapter's
    identity, `adapter` the engine's own object for it, and `adapter_unknown` says that its content could not
    be read. `cache_off` says that the request may read no cached KV, `remote_kv` that another engine takes
    part in the prefill, `resumable` that the prompt may grow later. `answer_tokens` is how long the answer
    may become.
    """

    request_id: str
    prompt: Sequence[int]
    transfer: object = None
    salt: str = ""
    lora: str = ""
    adapter: object = None
    adapter_unknown: bool = False
    cache_off: bool = False
    pooling: bool = False
    prompt_logprobs: bool = False
    multimodal: bool = False
    remote_kv: bool = False
    resumable: bool = False
    answer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """A hint that passed the rules, or the reason why the request goes on without the store."""

    hint: Hint | None
    reason: Reason


def read_wish(facts: Facts, limits: Limits) -> Wish:
    """Decide what a request may ask of the store."""
    hint, refusal = _read_hint(facts.transfer)
    if hint is None:
        return Wish(None, refusal)
    refusal_of_kind = _refuse_kind(facts)
    if refusal_of_kind is not None:
        return Wish(None, refusal_of_kind)
    refusal_of_hint = (
        _refuse_build(facts, hint) if hint.op is Operation.BUILD else _refuse_read(facts, hint, limits)
    )
    refusal_of_hint = refusal_of_hint or _refuse_tail(hint, limits) or _refuse_anchor(facts, hint, limits)
    if refusal_of_hint is not None:
        return Wish(None, refusal_of_hint)
    return Wish(hint, Reason.NOT_BUILT)


def _read_hint(transfer: object) -> tuple[Hint | None, Reason]:
    if not isinstance(transfer, dict) or HINT_FIELD not in transfer:
        return None, Reason.NOT_ASKED
    try:
        hint = parse_hint(transfer[HINT_FIELD])
    except HintError:
        return None, Reason.BAD_HINT
    return (None, Reason.OFF) if hint.op is Operation.OFF else (hint, Reason.NOT_BUILT)


def _refuse_kind(facts: Facts) -> Reason | None:
    refusals = (
        (facts.pooling, Reason.POOLING),
        (facts.prompt_logprobs, Reason.PROMPT_LOGPROBS),
        (facts.multimodal, Reason.MULTIMODAL),
        (facts.remote_kv or facts.resumable, Reason.REMOTE_KV),
        (facts.adapter_unknown, Reason.UNSUPPORTED),
    )
    return next((reason for refused, reason in refusals if refused), None)


def _refuse_build(facts: Facts, hint: Hint) -> Reason | None:
    """
    Refuse a build that has anything but scaffold and tail in it.

    This is what keeps one user's text out of another's answers: a prompt with a middle cannot become a
    stored tail, whatever the hint says.
    """
    exact = hint.prefix_tokens + hint.tail_tokens == len(facts.prompt)
    return None if exact else Reason.BAD_HINT


def _refuse_read(facts: Facts, hint: Hint, limits: Limits) -> Reason | None:
    if hint.tail_tokens >= len(facts.prompt):
        return Reason.BAD_HINT
    if facts.cache_off:
        return Reason.OFF
    if hint.tail_tokens < limits.tail_share_min * len(facts.prompt):
        return Reason.TAIL_SHARE_TOO_SMALL
    return None


def _refuse_tail(hint: Hint, limits: Limits) -> Reason | None:
    if hint.tail_tokens < limits.tail_tokens_min or hint.head + max(hint.last, 1) >= hint.tail_tokens:
        return Reason.TAIL_TOO_SHORT
    if hint.tail_tokens > limits.tail_tokens_max:
        return Reason.TAIL_TOO_LONG
    return None


def _refuse_anchor(facts: Facts, hint: Hint, limits: Limits) -> Reason | None:
    if hint.mode is not Mode.ANCHOR:
        return None
    if hint.anchor + hint.tail_tokens + facts.answer_tokens > limits.positions_max:
        return Reason.ANCHOR_UNSUPPORTED
    over = len(facts.prompt) - hint.tail_tokens > hint.anchor
    return Reason.MIDDLE_OVER_ANCHOR if over else None
