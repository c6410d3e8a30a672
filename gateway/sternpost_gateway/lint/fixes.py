"""Fixes: what a policy can do about a finding, and the policies that some of them make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sternpost_core.policy import (
    Canonicalize,
    Detector,
    Layout,
    Match,
    Policy,
    Prompt,
    SuffixCache,
    Tail,
    TailSource,
    VolatileAction,
    VolatileRule,
)

PIN: Final = "Pin"
TAIL: Final = "Tail"
"""What the fixes are called that are for no single detector; the others have the detector's name."""

STRIPPED: Final = frozenset({Detector.BILLING_HEADER})
"""Spans that no user needs, so that they go instead of moving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One thing that a policy does; `advice` says it in a few words."""

    name: str
    advice: str
    pins: bool = False
    rule: VolatileRule | None = None
    layout: Layout | None = None
    suffix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNames:
    """What a proposed policy is called, which pool serves it, and which models it is for."""

    name: str = "proposed"
    namespace: str = "default"
    pool: str = "engines"
    models: tuple[str, ...] = ()


def pin_fix() -> Fix:
    """Return the fix that gives equivalent tool lists one form."""
    return Fix(name=PIN, advice="canonicalize: Pin", pins=True)


def detector_fix(detector: Detector) -> Fix:
    """Return the fix that takes lines with such a span out of the prefix."""
    action = VolatileAction.STRIP if detector in STRIPPED else VolatileAction.RELOCATE
    rule = VolatileRule(name=_rule_name(detector), detect=detector, action=action)
    return Fix(name=detector.value, advice=f"{action.value} {detector.value}", rule=rule)


def tail_fix(layout: Layout) -> Fix:
    """Return the fix that has the closing rules reused: in front, or by the suffix store."""
    suffix = layout is not Layout.TAIL_FIRST
    words = "suffix store" if suffix else "prefix cache"
    return Fix(name=TAIL, advice=f"layout: {layout.value}, {words}", layout=layout, suffix=suffix)


def policy_of(fixes: Iterable[Fix], names: PolicyNames, *, report: bool = False) -> Policy:
    """Return the policy that does what the fixes say; with `report` it also tells of what it does not do."""
    chosen = tuple(fixes)
    layout = next((fix.layout for fix in chosen if fix.layout), None)
    idle = Canonicalize.REPORT if report else Canonicalize.OFF
    return Policy(
        name=names.name,
        namespace=names.namespace,
        pool=names.pool,
        match=Match(models=names.models),
        prompt=Prompt(
            layout=layout or Layout.PRESERVE,
            canonicalize=Canonicalize.PIN if any(fix.pins for fix in chosen) else idle,
            volatile=tuple(fix.rule for fix in chosen if fix.rule),
            tail=Tail(source=TailSource.LAST_SYSTEM_MESSAGE) if layout else None,
        ),
        suffix_cache=SuffixCache() if any(fix.suffix for fix in chosen) else None,
    )


def _rule_name(detector: Detector) -> str:
    """Return the detector's name as rules are named: WorkingDirectory becomes working-directory."""
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in detector.value)
    return words.removeprefix("-")
