"""What was seen of each arm on each middle, and the figures that this comes to; all of it pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sternpost_engine.calibrate.arms import FLOOR, Arm

HIGH_SHARE = 0.95
"""The percentile beside every mean."""


@dataclass(frozen=True, slots=True)
class Observation:
    """
    One arm on one middle, against the exact answer in float32.

    For the first token and each later one of the exact answer, teacher-forced: `kl`, the Kullback-Leibler
    divergence of the arm's distribution from the exact one in nats, and `agrees`, whether both find the same
    token likeliest. `computed` and `prompt` count tokens behind the prefix, which any engine's cache holds.
    """

    kl: tuple[float, ...]
    agrees: tuple[bool, ...]
    computed: int
    prompt: int

    @property
    def greedy(self) -> float:
        """
        The share of the answer's leading tokens that the arm's own greedy answer has in common.

        A greedy answer follows the exact one for as long as each likeliest token is the same, so this needs
        no decoding.
        """
        leading = next((place for place, same in enumerate(self.agrees) if not same), len(self.agrees))
        return leading / len(self.agrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    One arm over all middles.

    `kl_first` is for the first token, `kl` per token of the answers, both in nats. `floor_ratio` is `kl` over
    the noise floor's, `top1_delta` is `top1` less the noise floor's. `prefill_ratio` is computed tokens over
    the prompt's, `time_ratio` the same in measured seconds, None where it was not measured.
    """

    arm: Arm
    middles: int
    kl_first_mean: float
    kl_first_p95: float
    kl_mean: float
    kl_p95: float
    floor_ratio: float
    top1: float
    top1_delta: float
    greedy: float
    prefill_ratio: float
    time_ratio: float | None = None


def summarize(
    observations: Mapping[Arm, Sequence[Observation]], time_ratios: Mapping[Arm, float]
) -> tuple[Figures, ...]:
    """Return each arm's figures; the noise floor's observations must be there."""
    floor_kl = mean([value for seen in observations[FLOOR] for value in seen.kl])
    floor_top1 = _top1(observations[FLOOR])
    return tuple(
        _figures(arm, seen, floor_kl, floor_top1, time_ratios.get(arm)) for arm, seen in observations.items()
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean of some values."""
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, interpolated between neighbours."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def _figures(
    arm: Arm,
    seen: Sequence[Observation],
    floor_kl: float,
    floor_top1: float,
    time_ratio: float | None,
) -> Figures:
    first = [observation.kl[0] for observation in seen]
    every = [value for observation in seen for value in observation.kl]
    top1 = _top1(seen)
    return Figures(
        arm=arm,
        middles=len(seen),
        kl_first_mean=mean(first),
        kl_first_p95=percentile(first, HIGH_SHARE),
        kl_mean=mean(every),
        kl_p95=percentile(every, HIGH_SHARE),
        floor_ratio=mean(every) / floor_kl if floor_kl > 0 else math.inf,
        top1=top1,
        top1_delta=top1 - floor_top1,
        greedy=mean([observation.greedy for observation in seen]),
        prefill_ratio=sum(one.computed for one in seen) / sum(one.prompt for one in seen),
        time_ratio=time_ratio,
    )


def _top1(seen: Sequence[Observation]) -> float:
    return mean([float(same) for observation in seen for same in observation.agrees])
