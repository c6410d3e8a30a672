"""
Comparing what two paths think of the same tokens of an answer.

Each path gives, for each token, its most probable candidates. The first choices agree or not; how far the
distributions are apart is the Kullback-Leibler divergence of the exact path from the path with reused KV, in
nats. What both paths tell of is compared candidate by candidate and all else as one: that never makes the
divergence larger than it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Candidates = Mapping[int, float]
"""The most probable tokens of one place, by id, with the natural logarithm of their probability."""

REST_MIN: Final = 1e-9
"""The least probability of all else together: a sum of rounded figures may come to more than one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many tokens were compared, how many first choices agreed, and the sum of divergences, in nats."""

    tokens: int
    agreed: int
    nats: float

    @property
    def disagreement(self) -> float:
        """Return the share of first choices that differ."""
        return 1.0 - self.agreed / self.tokens

    @property
    def divergence(self) -> float:
        """Return the mean divergence, in nats per token."""
        return self.nats / self.tokens


def compare(exact: Sequence[Candidates], reused: Sequence[Candidates]) -> Comparison:
    """
    Compare two paths, token by token; there is one token at least.

    Raises:
        ValueError: they do not tell of the same number of tokens.
    """
    pairs = list(zip(exact, reused, strict=True))
    agreed = sum(bool(first_choices(one) & first_choices(other)) for one, other in pairs)
    return Comparison(len(pairs), agreed, sum(divergence(one, other) for one, other in pairs))


def first_choices(candidates: Candidates) -> frozenset[int]:
    """Return the most probable tokens: several where figures of few bits make them equal."""
    most = max(candidates.values())
    return frozenset(token for token, logprob in candidates.items() if logprob == most)


def divergence(exact: Candidates, reused: Candidates) -> float:
    """Return the divergence of `exact` from `reused` over what both tell of and the rest, in nats."""
    common = exact.keys() & reused.keys()
    nats = sum(math.exp(exact[token]) * (exact[token] - reused[token]) for token in common)
    rest, rest_reused = _rest(exact, common), _rest(reused, common)
    return max(0.0, nats + rest * math.log(rest / rest_reused))


def _rest(candidates: Candidates, common: frozenset[int] | set[int]) -> float:
    return max(REST_MIN, 1.0 - sum(math.exp(candidates[token]) for token in common))
