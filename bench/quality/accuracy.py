"""
Answers chosen among candidates, and what two arms' right and wrong answers say about each other.

A small model prefers some answers whatever the question is. So an answer's score is its log-probability less
the mean one that it has, on the exact path, over the owner's prompts: contextual calibration, after Zhao et
al., "Calibrate Before Use" (2021). The same means count in every arm, so that an arm which shifts all answers
loses by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95
"""Of the intervals."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of successes with the ends of its Wilson interval."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Flips:
    """Prompts that only the exact arm answers right, and those that only the other one does."""

    lost: int
    won: int

    @property
    def p_value(self) -> float:
        """Of the two-sided sign test: the chance of so uneven flips where either kind is equally likely."""
        return sign_test(self.lost, self.won)


def prior_of(logprobs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """
    Return each answer's mean log-probability over prompts.

    Raises:
        ValueError: there are no prompts.
    """
    if not logprobs:
        raise ValueError("without prompts there is no prior")
    return tuple(math.fsum(column) / len(logprobs) for column in zip(*logprobs, strict=True))


def choose(logprobs: Sequence[float], prior: Sequence[float]) -> int:
    """
    Return the place of the answer that gains most over its prior.

    >>> choose([-1.0, -2.0], [-0.5, -3.0])
    1
    """
    gains = [value - usual for value, usual in zip(logprobs, prior, strict=True)]
    return max(range(len(gains)), key=lambda place: gains[place])


def wilson(successes: int, count: int) -> Share:
    """
    Return the share of successes with its 95% Wilson score interval.

    Raises:
        ValueError: `count` is not positive, or `successes` are not from 0 to `count`.
    """
    if count < 1 or not 0 <= successes <= count:
        raise ValueError(f"{successes} of {count} is no share")
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share = successes / count
    spread = z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / count / 4) / (1 + spread)
    # Rounding must not take the interval past the share itself.
    return Share(share, min(centre - half, share), max(centre + half, share), count)


def flips_of(exact: Sequence[bool], other: Sequence[bool]) -> Flips:
    """Return how many prompts, paired by place, changed from right to wrong and the other way."""
    pairs = list(zip(exact, other, strict=True))
    return Flips(
        lost=sum(before and not after for before, after in pairs),
        won=sum(after and not before for before, after in pairs),
    )


def sign_test(lost: int, won: int) -> float:
    """
    Return the two-sided p-value of an exact sign test.

    >>> sign_test(0, 0), sign_test(5, 0), sign_test(3, 4)
    (1.0, 0.0625, 1.0)
    """
    flips = lost + won
    tail: float = sum(math.comb(flips, k) for k in range(min(lost, won) + 1)) / 2**flips
    return min(2.0 * tail, 1.0)
