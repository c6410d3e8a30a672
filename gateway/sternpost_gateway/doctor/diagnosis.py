"""From what two probes showed to the first place where things part; a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sternpost_core.hint import Reason
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.doctor.probe import Seen

SETTLING: Final = frozenset({Bypass.TAIL_UNKNOWN, Bypass.NOT_BUILT, Bypass.BUILDING, Bypass.NOT_LEARNED})
"""Bypasses that end by themselves, once the tail is learned and built."""

PREDICTION_GAP_MAX: Final = 0.1
"""Of the prompt: by so much may the engine's count and the gateway's differ."""

REUSED_SHARE_MIN: Final = 0.5
TIME_RATIO_MAX: Final = 0.8
"""A prompt of which at least half was reused must begin in less time than this, of one that was computed."""


class Place(StrEnum):
    """Where things part, on a request's way."""

    GATEWAY = "gateway"
    ROUTER = "router"
    ENGINE = "engine"
    STORE = "store"
    SPLICE = "splice"


@dataclass(frozen=True, slots=True)
class Finding:
    """The first place where things part, what was seen there, and what to do."""

    place: Place
    seen: str
    advice: str


def diagnose(first: Seen, last: Seen) -> Finding | None:
    """
    Return the first place where predicted, reported and timed reuse part, or None where they agree.

    `first` is the first probe, `last` the one that was to find everything warm.
    """
    for look in (_gateway, _engine, _store, _router, _splice):
        found = look(first, last)
        if found is not None:
            return found
    return None


def _gateway(first: Seen, last: Seen) -> Finding | None:
    if last.status != 200:
        return Finding(
            Place.GATEWAY, f"status {last.status}", "look at /readyz?verbose and the gateway's log"
        )
    if last.policy is None:
        advice = "match the model and headers of the probe in a policy, or turn x-sternpost headers on"
        return Finding(Place.GATEWAY, "no policy matches, or headers are off", advice)
    if last.bypass is not None and last.bypass not in SETTLING and not _needs_no_store(last):
        return Finding(Place.GATEWAY, f"bypass {last.bypass}", "the guide of the gateway says what it means")
    return None


def _engine(first: Seen, last: Seen) -> Finding | None:
    if last.report is not None or (_needs_no_store(last) and last.cached_tokens is not None):
        return None
    if last.cached_tokens is None:
        advice = "run it with the plugin, or at least with --enable-prompt-tokens-details"
        return Finding(Place.ENGINE, "its usage does not say what was cached", advice)
    return Finding(Place.ENGINE, "it runs without the plugin: no report", "the guide of the engine says how")


def _store(first: Seen, last: Seen) -> Finding | None:
    if _needs_no_store(last):
        return None
    reason = last.report.reason if last.report is not None else None
    if last.bypass in SETTLING:
        advice = "look at sternpost_gateway_builds_total, and at the gateway's log about builds"
        return Finding(Place.STORE, f"the tail is still not there: bypass {last.bypass}", advice)
    if reason in (None, Reason.HIT, Reason.PREFIX_COVERS):
        return None
    return Finding(Place.STORE, f"the engine says {reason}", "ask the engine's /sternpost/v1/info and /tails")


def _router(first: Seen, last: Seen) -> Finding | None:
    if last.report is None or last.predicted is None or not last.prompt_tokens:
        return None
    gap = abs(last.predicted - last.report.suffix_tokens)
    if gap <= PREDICTION_GAP_MAX * last.prompt_tokens:
        return None
    seen = f"predicted {last.predicted} tokens from the suffix store, reported {last.report.suffix_tokens}"
    return Finding(Place.ROUTER, seen, "an engine has started anew or evicts; probe once more")


def _splice(first: Seen, last: Seen) -> Finding | None:
    if _reused_share(first) >= REUSED_SHARE_MIN or _reused_share(last) < REUSED_SHARE_MIN:
        # There is nothing to compare: the first probe was warm already, or the last one is not.
        return None
    ratio = last.first_token_seconds / first.first_token_seconds if first.first_token_seconds else 0.0
    if ratio < TIME_RATIO_MAX:
        return None
    seen = f"{last.cached_tokens} of {last.prompt_tokens} tokens reused, and {ratio:.2f} of the time taken"
    return Finding(Place.SPLICE, seen, "look at sternpost_suffix_copy_seconds, and at the engine's load")


def _needs_no_store(seen: Seen) -> bool:
    """Say whether the policy has the tail in front, where the engine's own prefix cache holds it."""
    return seen.bypass == Bypass.TAIL_FIRST


def _reused_share(seen: Seen) -> float:
    return (seen.cached_tokens or 0) / seen.prompt_tokens if seen.prompt_tokens else 0.0
