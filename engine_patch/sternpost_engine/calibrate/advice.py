"""Which settings the figures speak for, as a part of a CachePolicy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from sternpost_core.policy import (
    Calibration,
    Correction,
    Layout,
    Policy,
    Prompt,
    Recompute,
    SuffixCache,
    SuffixMode,
    Tail,
    TailSource,
)
from sternpost_core.policy_write import to_mapping
from sternpost_engine.calibrate.arms import Source
from sternpost_engine.calibrate.scores import Figures

FLOOR_RATIO_MAX: Final = 2.0
"""KL per token, as a multiple of the noise floor's, up to which reuse counts as no worse than a dtype."""

TOP1_LOSS_MAX: Final = 0.01
"""How much less often than in bfloat16 the likeliest token may be the exact one."""

CORRECTIONS: Final = {Source.SCAFFOLD: Correction.NONE, Source.CALIBRATED: Correction.CALIBRATED}
"""What a policy can ask for; a tail that was encoded alone is shown for comparison."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The settings, the figures that speak for them, and whether these keep within the limits."""

    cache: SuffixCache
    figures: Figures
    within: bool


def advise(figures: Sequence[Figures], *, generic: bool, config_map: str) -> Advice | None:
    """
    Return the cheapest settings within the limits, or the closest ones where none is; None without any.

    Settings that compute less afresh than a policy's defaults are not advised, however good their KL is:
    answers that hang on the tail's last instruction, or on one row of a table, show it late.
    """
    allowed = [one for one in figures if _may_be_advised(one)]
    within = [one for one in allowed if keeps_within(one)]
    if not allowed:
        return None
    best = (
        min(within, key=lambda one: (one.prefill_ratio, one.kl_mean))
        if within
        else min(allowed, key=lambda one: one.kl_mean)
    )
    return Advice(_suffix_cache(best, generic, config_map), best, bool(within))


def keeps_within(figures: Figures) -> bool:
    """Whether an arm differs from the exact answer no more than a dtype does."""
    return figures.floor_ratio <= FLOOR_RATIO_MAX and figures.top1_delta >= -TOP1_LOSS_MAX


def snippet(cache: SuffixCache) -> str:
    """Return `spec.suffixCache` as YAML, every default spelled out."""
    policy = Policy(
        name="calibrated",
        pool="calibrated",
        prompt=Prompt(layout=Layout.FIXED_TAIL, tail=Tail(source=TailSource.LAST_SYSTEM_MESSAGE)),
        suffix_cache=cache,
    )
    spec = {"suffixCache": to_mapping(policy)["spec"]["suffixCache"]}
    text: str = yaml.safe_dump({"spec": spec}, sort_keys=False, default_flow_style=None)
    return text


def _may_be_advised(figures: Figures) -> bool:
    arm, least = figures.arm, Recompute()
    return (
        arm.source in CORRECTIONS
        and not arm.anchored
        and arm.last >= least.last
        and (arm.match > 0 or least.match == 0)
    )


def _suffix_cache(figures: Figures, generic: bool, config_map: str) -> SuffixCache:
    arm = figures.arm
    own = Calibration(generic=False, config_map=config_map)
    return SuffixCache(
        mode=SuffixMode.ROTATE,
        recompute=Recompute(head=arm.head, last=arm.last, match=arm.match),
        correction=CORRECTIONS[arm.source],
        calibration=Calibration() if generic else own,
    )
