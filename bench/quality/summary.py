"""All records as figures per task and arm, and what the bounds make of them; all of it pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.common.results import Bound, Row, row_of
from bench.quality.accuracy import Flips, Share, choose, flips_of, wilson
from bench.quality.arms import ARMS, EXACT, FLOOR, LAST, Arm
from bench.quality.asking import Reading
from bench.quality.fidelity import mean_kl, top1_share
from bench.quality.form import Ending, is_ended, is_named, named_mass
from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.stats import Estimate, estimate, estimate_paired, mean, mean_ratio

SEED: Final = 8
"""Of the bootstrap, so that the same records always give the same intervals."""

ALL: Final = "all tasks"
"""Names the figures over the prompts of every task together."""

RECOMPUTE_SHARE_MAX: Final = 0.05
KL_RATIO_MAX: Final = 2.0
TOP1_DELTA_MIN: Final = -0.01
TASK_DELTA_MIN: Final = -0.01


@dataclass(frozen=True, slots=True)
class Case:
    """
    One prompt: which candidate is right, the candidates' priors, and what each arm made of it.

    `ending` is where the answer is to end, None where the tail asks for no such thing.
    """

    right: int
    prior: tuple[float, ...]
    readings: Mapping[str, Reading]
    ending: Ending | None = None

    def is_right(self, arm: Arm) -> bool:
        """Tell whether the arm chose the right answer."""
        return choose(self.readings[arm.name].answers, self.prior) == self.right

    def kl(self, arm: Arm) -> float:
        """Return the arm's divergence from the exact one, per token."""
        return mean_kl(self.readings[EXACT.name].positions, self.readings[arm.name].positions)

    def top1(self, arm: Arm) -> float:
        """Return the share of positions where the arm's likeliest token is the exact one's."""
        return top1_share(self.readings[EXACT.name].positions, self.readings[arm.name].positions)


@dataclass(frozen=True, slots=True)
class Kept:
    """The share of prompts that an arm does something on, and how they changed against the exact arm."""

    share: Share
    flips: Flips


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    One arm on one task.

    `named` counts answers that begin as one that the tail allows, and `named_mass` is the mean probability
    of that; `ended` counts answers that end behind their first word, None where no tail asks for it.
    """

    task: str
    arm: Arm
    accuracy: Share
    task_delta: Estimate
    flips: Flips
    kl: Estimate
    kl_ratio: Estimate
    top1: Estimate
    top1_delta: Estimate
    recompute_share: Estimate
    computed_share: Estimate
    named: Kept
    named_mass: Estimate
    ended: Kept | None

    @property
    def workload(self) -> str:
        """The name in the result file."""
        return f"{self.task}: {self.arm.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a figure reaches its bound."""

    bound: Bound
    value: float
    holds: bool


def summarize(cases: Mapping[str, Sequence[Case]], arms: Sequence[Arm] = ARMS) -> list[Figures]:
    """
    Return the figures of these arms over all tasks together, then by task.

    The exact arm and the floor must be among them.

    Raises:
        OperatingError: the floor does not differ from the exact arm, so that nothing is a multiple of it.
    """
    together = [case for task in cases.values() for case in task]
    return [
        _figures(task, arm, of_task) for task, of_task in [(ALL, together), *cases.items()] for arm in arms
    ]


def result_rows(figures: Sequence[Figures]) -> list[Row]:
    """Return the rows of the result file."""
    return [row for figure in figures for row in _rows(figure)]


def bounds_of(figure: Figures) -> tuple[Verdict, ...]:
    """Hold an arm's figures to the bounds that a reused tail must keep."""
    values = (
        ("recompute_share", figure.recompute_share.value, RECOMPUTE_SHARE_MAX, True),
        ("kl_ratio_to_bf16", figure.kl_ratio.value, KL_RATIO_MAX, True),
        ("top1_delta_to_bf16", figure.top1_delta.value, TOP1_DELTA_MIN, False),
        ("task_delta", figure.task_delta.value, TASK_DELTA_MIN, False),
    )
    verdicts = []
    for metric, value, limit, at_most in values:
        bound = Bound(workload=figure.workload, metric=metric, limit=limit, at_most=at_most)
        # For tails this short the bound on the share gives way to the one on the count.
        by_count = metric == "recompute_share" and figure.arm.match == 0
        verdicts.append(Verdict(bound, value, by_count or bound.holds(value)))
    return tuple(verdicts)


def _figures(task: str, arm: Arm, cases: Sequence[Case]) -> Figures:
    right, right_exact = ([case.is_right(one) for case in cases] for one in (arm, EXACT))
    kl, kl_floor = ([case.kl(one) for case in cases] for one in (arm, FLOOR))
    top1, top1_floor = ([case.top1(one) for case in cases] for one in (arm, FLOOR))
    readings = [case.readings[arm.name] for case in cases]
    if not any(kl_floor):
        raise OperatingError(f"{task}: {FLOOR.name} shows no divergence from float32; was it computed in it?")
    return Figures(
        task=task,
        arm=arm,
        accuracy=wilson(sum(right), len(cases)),
        task_delta=_paired_delta([*map(float, right)], [*map(float, right_exact)]),
        flips=flips_of(right_exact, right),
        kl=_mean(kl),
        kl_ratio=estimate_paired(kl, kl_floor, mean_ratio, Random(SEED)),
        top1=_mean(top1),
        top1_delta=_paired_delta(top1, top1_floor),
        recompute_share=_mean([reading.recompute_share for reading in readings]),
        computed_share=_mean([reading.computed_tokens / reading.prompt_tokens for reading in readings]),
        named=_named(arm, cases),
        named_mass=_mean([named_mass(reading) for reading in readings]),
        ended=_ended(arm, cases),
    )


def _named(arm: Arm, cases: Sequence[Case]) -> Kept:
    one, exact = ([is_named(case.readings[of.name]) for case in cases] for of in (arm, EXACT))
    return Kept(wilson(sum(one), len(one)), flips_of(exact, one))


def _ended(arm: Arm, cases: Sequence[Case]) -> Kept | None:
    asked = [(case, case.ending) for case in cases if case.ending is not None]
    if not asked:
        return None
    one, exact = ([is_ended(case.readings[of.name], ending) for case, ending in asked] for of in (arm, EXACT))
    return Kept(wilson(sum(one), len(one)), flips_of(exact, one))


def _mean(values: Sequence[float]) -> Estimate:
    return estimate(values, mean, Random(SEED))


def _paired_delta(candidate: Sequence[float], baseline: Sequence[float]) -> Estimate:
    return estimate_paired(candidate, baseline, lambda one, two: mean(one) - mean(two), Random(SEED))


def _rows(figure: Figures) -> Iterator[Row]:
    accuracy, workload = figure.accuracy, figure.workload
    yield _share_row(workload, "accuracy", accuracy)
    yield row_of(workload, "kl_per_token", figure.kl, "nat")
    yield row_of(workload, "top1_agreement", figure.top1)
    yield row_of(workload, "named_mass", figure.named_mass)
    yield from _kept_rows(workload, "named", figure.named)
    if figure.ended is not None:
        yield from _kept_rows(workload, "ended", figure.ended)
    if figure.arm is EXACT:
        return
    yield row_of(workload, "task_delta", figure.task_delta)
    yield Row(workload=workload, metric="flips_lost", value=figure.flips.lost, n=accuracy.count)
    yield Row(workload=workload, metric="flips_won", value=figure.flips.won, n=accuracy.count)
    yield Row(workload=workload, metric="flips_p_value", value=figure.flips.p_value, n=accuracy.count)
    if figure.arm is FLOOR:
        return
    yield row_of(workload, "kl_ratio_to_bf16", figure.kl_ratio)
    yield row_of(workload, "top1_delta_to_bf16", figure.top1_delta)
    yield row_of(workload, "recompute_share", figure.recompute_share)
    yield row_of(workload, "computed_share", figure.computed_share)


def _share_row(workload: str, metric: str, share: Share) -> Row:
    return Row(
        workload=workload, metric=metric, value=share.value, n=share.count, low=share.low, high=share.high
    )


def _kept_rows(workload: str, name: str, kept: Kept) -> Iterator[Row]:
    count = kept.share.count
    yield _share_row(workload, f"{name}_share", kept.share)
    yield Row(workload=workload, metric=f"{name}_lost", value=kept.flips.lost, n=count)
    yield Row(workload=workload, metric=f"{name}_won", value=kept.flips.won, n=count)


LAST_TEXT: Final = f"last {LAST}"
"""How the bound on the recompute share names the count that short tails are held to."""
