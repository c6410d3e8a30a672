"""The statistics of benchmarks: percentiles, bootstrap intervals and agreement; all of it pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

RESAMPLES: Final = 2000
"""Enough for the ends of a 95% interval to move little from one seed to the next."""

INTERVAL_SHARE: Final = 0.95
"""The share of resamples that lie within an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, the ends of its 95% bootstrap interval, and how many requests or pairs it is from."""

    value: float
    low: float
    high: float
    count: int


def percentile(values: Sequence[float], share: float) -> float:
    """
    Return the value below which `share` of the values lie, interpolated between neighbours.

    The median of 1, 2, 4 is `percentile([4, 1, 2], 0.5) == 2`, that of 1, 2, 4, 8 is 3.

    Raises:
        ValueError: there are no values, or `share` is not from 0 to 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"{len(values)} values and share {share} are not allowed; allowed: values, 0 to 1")
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    between = ranked[below] + (ranked[above] - ranked[below]) * (place - below)
    # Rounding must not take it past its neighbour.
    return min(between, ranked[above])


def mean(values: Sequence[float]) -> float:
    """
    Return the mean.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values have no mean")
    return math.fsum(values) / len(values)


def percentile_ratio(candidate: Sequence[float], baseline: Sequence[float], share: float) -> float:
    """Return the candidate's percentile over the baseline's."""
    return percentile(candidate, share) / percentile(baseline, share)


def mean_ratio(candidate: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the candidate's mean over the baseline's."""
    return mean(candidate) / mean(baseline)


def estimate(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], chance: Random
) -> Estimate:
    """Return `statistic` of the values, with its interval."""
    return bootstrap(len(values), lambda places: statistic([values[place] for place in places]), chance)


def estimate_paired(
    candidate: Sequence[float],
    baseline: Sequence[float],
    statistic: Callable[[Sequence[float], Sequence[float]], float],
    chance: Random,
) -> Estimate:
    """
    Return `statistic` of candidate and baseline, with its interval.

    The two are paired by place and drawn as pairs: what makes a question slow in both arms cancels out.

    Raises:
        ValueError: the two differ in length.
    """
    if len(candidate) != len(baseline):
        raise ValueError(f"{len(candidate)} and {len(baseline)} values are not pairs")
    return bootstrap(
        len(candidate),
        lambda places: statistic(
            [candidate[place] for place in places], [baseline[place] for place in places]
        ),
        chance,
    )


def common_share(one: Sequence[int], other: Sequence[int]) -> float:
    """
    Return the share of the longer sequence that both begin with; 1 when both are empty.

    `common_share([1, 2, 3, 4], [1, 2, 9]) == 0.5`.
    """
    longest = max(len(one), len(other))
    common = next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )
    return common / longest if longest else 1.0


def bootstrap(count: int, statistic: Callable[[Sequence[int]], float], chance: Random) -> Estimate:
    """
    Return `statistic` of the places 0 to `count` - 1, with its interval from places drawn with replacement.

    What must be drawn together, such as the turns of a conversation, stands at one place.
    """
    value = statistic(range(count))
    drawn = [statistic(chance.choices(range(count), k=count)) for _ in range(RESAMPLES)]
    outside = (1 - INTERVAL_SHARE) / 2
    return Estimate(
        value=value, low=percentile(drawn, outside), high=percentile(drawn, 1 - outside), count=count
    )
