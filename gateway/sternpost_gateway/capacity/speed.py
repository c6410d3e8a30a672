"""How long an engine takes for a prompt: told by the user, or fitted to a run of `sternpost bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.summary import answered

POINTS_MIN: Final = 8
"""Fewer requests say nothing about a rate."""


@dataclass(frozen=True, slots=True)
class Speed:
    """
    An engine's speed: each prompt takes `fixed_seconds`, and its computed tokens so many in a second.

    `decode_rate` is how many answer tokens an engine makes in a second, all requests together.
    """

    prefill_rate: float
    fixed_seconds: float = 0.0
    decode_rate: float = float("inf")

    def first_token_seconds(self, computed_tokens: float) -> float:
        """Return the time to the first token of a request that waits for nobody."""
        return self.fixed_seconds + computed_tokens / self.prefill_rate

    def busy_seconds(self, computed_tokens: float, answer_tokens: float) -> float:
        """Return how long a request keeps an engine busy, its answer included."""
        return self.first_token_seconds(computed_tokens) + answer_tokens / self.decode_rate


@dataclass(frozen=True, slots=True)
class Point:
    """A request that waited for nobody: what it had to compute, and when its first token came."""

    computed_tokens: float
    ttft: float


def fit(points: Sequence[Point], decode_rate: float = float("inf")) -> Speed:
    """
    Return the speed whose predictions are off by the least share, in the mean of squares.

    Shares, not seconds: otherwise long prompts alone would decide, and short ones be off by half.

    Raises:
        OperatingError: there are too few points, or they do not get slower with more tokens.
    """
    if len(points) < POINTS_MIN:
        raise OperatingError(f"{len(points)} requests are too few to fit a speed; {POINTS_MIN} at least")
    # Minimise the sum of (fixed / ttft + per_token * computed / ttft - 1) squared: two linear equations.
    ones = [1 / point.ttft for point in points]
    sizes = [point.computed_tokens / point.ttft for point in points]
    aa, ab, bb = _dot(ones, ones), _dot(ones, sizes), _dot(sizes, sizes)
    determinant = aa * bb - ab * ab
    fixed = (sum(ones) * bb - sum(sizes) * ab) / determinant if determinant else 0.0
    per_token = (sum(sizes) * aa - sum(ones) * ab) / determinant if determinant else 0.0
    if fixed < 0:
        fixed, per_token = 0.0, sum(sizes) / bb
    if per_token <= 0:
        raise OperatingError("no speed fits: requests with more tokens to compute were not slower")
    return Speed(1 / per_token, fixed, decode_rate)


def points_of(units: Sequence[Unit], target: str) -> list[Point]:
    """Return one target's measured requests as points."""
    chosen = [unit for unit in units if unit.target == target]
    by_workload: dict[str, list[Unit]] = {}
    for unit in chosen:
        by_workload.setdefault(unit.workload, []).append(unit)
    samples = [sample for group in by_workload.values() for sample in answered(group).values()]
    return [Point(sample.computed_tokens, sample.ttft) for sample in samples]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))
