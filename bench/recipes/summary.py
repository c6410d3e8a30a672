"""Records as figures per task and recipe; all of it pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.common.results import Row
from bench.demo.report import table
from bench.quality.accuracy import Flips, Share, choose, flips_of, prior_of, wilson
from bench.recipes.recipes import RECIPES, ROUGH
from bench.recipes.workbench import EXACT, Reading
from sternpost_gateway.bench.stats import mean

ALL: Final = "all tasks"
"""Names the figures over the prompts of every task together."""

ACCURACY_MIN: Final = 0.6
"""A task that exact prefill itself does less often says nothing about reuse."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt: the place of its right answer, the answers' priors, and every reading by name."""

    right: int
    prior: tuple[float, ...]
    readings: Mapping[str, Reading]

    def is_right(self, name: str) -> bool:
        """Tell whether the right answer was chosen."""
        return choose(self.readings[name].answers, self.prior) == self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One way of computing on one task; `computed` is the mean share of tokens behind the prefix."""

    task: str
    name: str
    accuracy: Share
    flips: Flips
    kl: float
    kl_ratio: float
    computed: float


def make_cases(
    rights: Sequence[int], owner: Sequence[Reading], test: Sequence[Mapping[str, Reading]]
) -> list[Case]:
    """Return the cases of one task; the prior is exact prefill's over the owner's prompts."""
    prior = prior_of([reading.answers for reading in owner])
    return [Case(right, prior, readings) for right, readings in zip(rights, test, strict=True)]


def summarize(cases: Mapping[str, Sequence[Case]]) -> list[Figures]:
    """Return the figures by task, and then of all tasks that exact prefill can do together."""
    done = [case for task in cases.values() if is_done(task) for case in task]
    parts = [*cases.items(), *([(ALL, done)] if done else [])]
    names = (EXACT, *(recipe.name for recipe in RECIPES))
    return [_figures(task, name, of_task) for task, of_task in parts for name in names]


def is_done(cases: Sequence[Case]) -> bool:
    """Whether exact prefill itself does the task."""
    return mean([float(case.is_right(EXACT)) for case in cases]) >= ACCURACY_MIN


def result_rows(figures: Sequence[Figures]) -> list[Row]:
    """Return the rows of the result file."""
    return [row for figure in figures for row in _rows(figure)]


def report(figures: Sequence[Figures]) -> str:
    """Return accuracy, flips and divergence as a Markdown table, one row per recipe."""
    tasks = list(dict.fromkeys(figure.task for figure in figures))
    names = list(dict.fromkeys(figure.name for figure in figures))
    found = {(figure.name, figure.task): figure for figure in figures}
    head = ("recipe", *tasks, "p", "x floor", "computed")
    return table([head, *(_line(name, tasks, found) for name in names)])


def _line(name: str, tasks: Sequence[str], found: Mapping[tuple[str, str], Figures]) -> tuple[str, ...]:
    last = found[name, tasks[-1]]
    cells = [_cell(found[name, task]) for task in tasks]
    return (name, *cells, f"{last.flips.p_value:.2f}", f"{last.kl_ratio:.1f}", f"{last.computed:.2f}")


def _cell(figure: Figures) -> str:
    if figure.name == EXACT:
        return f"{figure.accuracy.value:.3f}"
    return f"{figure.accuracy.value:.3f} ({figure.flips.lost}/{figure.flips.won})"


def _figures(task: str, name: str, cases: Sequence[Case]) -> Figures:
    right = [case.is_right(name) for case in cases]
    readings = [case.readings[name] for case in cases]
    floor = mean([case.readings[ROUGH.name].kl for case in cases])
    whole = sum(case.readings[EXACT].computed for case in cases)
    kl = mean([reading.kl for reading in readings])
    return Figures(
        task=task,
        name=name,
        accuracy=wilson(sum(right), len(cases)),
        flips=flips_of([case.is_right(EXACT) for case in cases], right),
        kl=kl,
        kl_ratio=kl / floor if floor > 0 else float("inf"),
        computed=sum(reading.computed for reading in readings) / whole,
    )


def _rows(figure: Figures) -> list[Row]:
    workload, accuracy = f"{figure.task}: {figure.name}", figure.accuracy
    rows = [
        Row(
            workload=workload,
            metric="accuracy",
            value=accuracy.value,
            n=accuracy.count,
            low=accuracy.low,
            high=accuracy.high,
        )
    ]
    if figure.name != EXACT:
        single = (
            ("flips_lost", figure.flips.lost),
            ("flips_won", figure.flips.won),
            ("flips_p_value", figure.flips.p_value),
            ("kl_ratio_to_bf16", figure.kl_ratio),
            ("computed_share", figure.computed),
        )
        rows += [Row(workload=workload, metric=m, value=v, n=accuracy.count) for m, v in single]
    return rows
