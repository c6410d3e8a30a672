"""The planner's model beside what was measured: fitted to plain vLLM, it predicts the other targets; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.evaluation.targets import ANY_ENGINE, NO_CACHE, PLAIN, STERNPOST
from sternpost_gateway.bench.recipes import load_recipes
from sternpost_gateway.bench.workload import Closed
from sternpost_gateway.capacity.speed import Point, Speed, Work, fit

FITTED: Final = (NO_CACHE, PLAIN)
PREDICTED: Final = (ANY_ENGINE, STERNPOST)
"""Targets whose hop costs next to nothing; one that adds as much as a prefill is not what is planned."""

TTFT: Final = "ttft_mean"
COMPUTED: Final = "computed_tokens"
PROMPT: Final = "prompt_tokens"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One workload at one target: mean times to first token in seconds, predicted and measured."""

    workload: str
    target: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """Return by what share of the measurement the prediction is off; below zero where it is too low."""
        return self.predicted / self.measured - 1


def fitted(rows: Sequence[Mapping[str, Any]]) -> Speed:
    """
    Return the speed that fits plain vLLM's rows best.

    Raises:
        OperatingError: there are too few.
    """
    return fit([point for target in FITTED for point in _points(rows, target).values()])


def predictions(rows: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """
    Return what the fitted speed says of the other targets, where one request waits for no other.

    Raises:
        OperatingError: there are too few rows to fit.
    """
    speed = fitted(rows)
    return [
        Prediction(workload, target, speed.first_token_seconds(point.work), point.ttft)
        for target in PREDICTED
        for workload, point in _points(rows, target).items()
    ]


def _points(rows: Sequence[Mapping[str, Any]], target: str) -> dict[str, Point]:
    alone = {recipe.name for recipe in load_recipes() if recipe.arrivals == Closed(1)}
    values = {
        (row["workload"], row["metric"]): row["value"]
        for row in rows
        if row["target"] == target and row["workload"] in alone
    }
    workloads = dict.fromkeys(workload for workload, _ in values)
    return {
        workload: Point(Work(values[workload, COMPUTED], values[workload, PROMPT]), values[workload, TTFT])
        for workload in workloads
        if {(workload, COMPUTED), (workload, PROMPT), (workload, TTFT)} <= set(values)
    }
