"""How long an engine takes for a prompt: told by the user, or fitted to a run of `sternpost bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.summary import answered

POINTS_MIN: Final = 8
"""Fewer requests say nothing about a rate."""

PER_TOKEN: Final = "token"
FIXED: Final = "prompt"
PER_PAIR: Final = "pair"
"""What a prompt's time is made of: so much a computed token, a prompt, and a pair that attention looks at."""

FITS: Final = (
    (PER_TOKEN,),
    (FIXED,),
    (PER_TOKEN, FIXED),
    (PER_TOKEN, PER_PAIR),
    (PER_TOKEN, FIXED, PER_PAIR),
)
"""What is tried, the fewest costs first."""

ERROR_DIGITS: Final = 9
"""Fits whose errors differ behind these are equally good."""

SINGULAR: Final = 1e-12
"""A pivot below this is rounding: the points do not tell two costs apart."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one prompt takes: its tokens, and those of them that an engine has to compute."""

    computed_tokens: float
    prompt_tokens: float

    @property
    def pairs(self) -> float:
        """
        Return the pairs of a computed token and a token before it, which attention looks at.

        The computed ones are taken for the prompt's last: those before them came from a cache.
        """
        return self.computed_tokens * (self.prompt_tokens - self.computed_tokens / 2)


@dataclass(frozen=True, slots=True)
class Speed:
    """
    An engine's speed: each prompt takes `fixed_seconds`, and its computed tokens so many in a second.

    `pair_seconds` is what attention takes for each earlier token that a computed one looks at, so that few
    tokens behind a long cached prefix take longer than few tokens alone. `decode_rate` is how many answer
    tokens an engine makes in a second, all requests together.
    """

    prefill_rate: float
    fixed_seconds: float = 0.0
    decode_rate: float = float("inf")
    pair_seconds: float = 0.0

    def first_token_seconds(self, work: Work) -> float:
        """Return the time to the first token of a request that waits for nobody."""
        attention = work.pairs * self.pair_seconds
        return self.fixed_seconds + work.computed_tokens / self.prefill_rate + attention

    def busy_seconds(self, work: Work, answer_tokens: float) -> float:
        """Return how long a request keeps an engine busy, its answer included."""
        return self.first_token_seconds(work) + answer_tokens / self.decode_rate


@dataclass(frozen=True, slots=True)
class Point:
    """A request that waited for nobody: what it took, and when its first token came, in seconds."""

    work: Work
    ttft: float


def fit(points: Sequence[Point], decode_rate: float = float("inf")) -> Speed:
    """
    Return the speed whose predictions are off by the least share, in the mean of squares.

    Shares, not seconds: otherwise long prompts alone would decide, and short ones be off by half. Nothing in
    it is below zero: what would be is left out, and the rest fitted without it.

    Raises:
        OperatingError: there are too few points, or they do not get slower with more tokens.
    """
    if len(points) < POINTS_MIN:
        raise OperatingError(f"{len(points)} requests are too few to fit a speed; {POINTS_MIN} at least")
    columns = {
        PER_TOKEN: [point.work.computed_tokens / point.ttft for point in points],
        FIXED: [1 / point.ttft for point in points],
        PER_PAIR: [point.work.pairs / point.ttft for point in points],
    }
    found = [
        (_squares(columns, costs), costs)
        for kept in FITS
        if (costs := _least_squares(columns, kept)) is not None
    ]
    # Of fits that are equally good, the one with the fewest costs is taken.
    _, best = min(found, key=lambda one: round(one[0], ERROR_DIGITS))
    if PER_TOKEN not in best:
        raise OperatingError("no speed fits: requests with more tokens to compute were not slower")
    return Speed(1 / best[PER_TOKEN], best.get(FIXED, 0.0), decode_rate, best.get(PER_PAIR, 0.0))


def points_of(units: Sequence[Unit], target: str) -> list[Point]:
    """Return one target's measured requests as points."""
    chosen = [unit for unit in units if unit.target == target]
    by_workload: dict[str, list[Unit]] = {}
    for unit in chosen:
        by_workload.setdefault(unit.workload, []).append(unit)
    samples = [sample for group in by_workload.values() for sample in answered(group).values()]
    return [Point(Work(sample.computed_tokens, sample.prompt_tokens), sample.ttft) for sample in samples]


def _least_squares(columns: Mapping[str, Sequence[float]], kept: Sequence[str]) -> dict[str, float] | None:
    """Return what each of the kept costs comes to; None where one is not above zero, or none is certain."""
    equations = [
        [*(_dot(columns[row], columns[column]) for column in kept), sum(columns[row])] for row in kept
    ]
    solved = _solved(equations)
    if solved is None or min(solved) <= 0:
        return None
    return dict(zip(kept, solved, strict=True))


def _solved(equations: Sequence[Sequence[float]]) -> list[float] | None:
    """Solve linear equations by Gaussian elimination; None where they have no single solution."""
    rows = [[value / max(map(abs, row)) for value in row] for row in equations]
    for place in range(len(rows)):
        pivot = max(range(place, len(rows)), key=lambda index: abs(rows[index][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        if abs(rows[place][place]) < SINGULAR:
            return None
        for index, row in enumerate(rows):
            if index != place:
                factor = row[place] / rows[place][place]
                rows[index] = [value - factor * above for value, above in zip(row, rows[place], strict=True)]
    return [row[-1] / row[place] for place, row in enumerate(rows)]


def _squares(columns: Mapping[str, Sequence[float]], costs: Mapping[str, float]) -> float:
    """Return the mean square of the shares by which predictions are off."""
    predicted = zip(*([cost * value for value in columns[name]] for name, cost in costs.items()), strict=True)
    shares = [sum(parts) - 1 for parts in predicted]
    return _dot(shares, shares) / len(shares)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))
