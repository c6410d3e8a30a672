"""
How far an arm's distributions lie from the exact ones, from log-probabilities of a few tokens.

At each position of the exact answer the engine reports, in every arm, the log-probabilities of the tokens
that are likeliest in the exact arm. All other tokens count as one, with the probability that is left. The
KL divergence between the two coarser distributions is a lower bound of the whole one, over the same partition
in every arm, so that arms and floor compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

REST_MIN: Final = 1e-9
"""The least probability that is left for all other tokens: rounding must not take it to zero or below."""


def kl_divergence(exact: Sequence[float], other: Sequence[float]) -> float:
    """
    Return the divergence of `other` from `exact` in nats, from log-probabilities of the same tokens.

    >>> kl_divergence([math.log(0.5)], [math.log(0.5)])
    0.0
    >>> round(kl_divergence([math.log(0.5)], [math.log(0.25)]), 4)
    0.1438

    Raises:
        ValueError: the two are not of the same tokens.
    """
    if len(exact) != len(other):
        raise ValueError(f"{len(exact)} and {len(other)} log-probabilities are not of the same tokens")
    known = math.fsum(math.exp(p) * (p - q) for p, q in zip(exact, other, strict=True))
    left, left_other = _rest(exact), _rest(other)
    # Rounding may leave a trace below zero where the two are equal.
    return max(known + left * (math.log(left) - math.log(left_other)), 0.0)


def mean_kl(exact: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Return the divergence per token, as the mean over an answer's positions."""
    pairs = list(zip(exact, other, strict=True))
    return math.fsum(kl_divergence(one, two) for one, two in pairs) / len(pairs)


def top1_share(exact: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Return the share of positions where the likeliest of the tokens is the same one."""
    pairs = list(zip(exact, other, strict=True))
    return sum(likeliest(one) == likeliest(two) for one, two in pairs) / len(pairs)


def likeliest(logprobs: Sequence[float]) -> int:
    """Return the place of the highest log-probability, the first of equal ones."""
    return max(range(len(logprobs)), key=lambda place: logprobs[place])


def _rest(logprobs: Sequence[float]) -> float:
    return max(1.0 - math.fsum(math.exp(value) for value in logprobs), REST_MIN)
