"""All records as figures, and what the bounds make of them."""

import math
from dataclasses import replace

import pytest

from bench.quality.arms import ARMS, EXACT, FLOOR, REUSING, Arm
from bench.quality.asking import Reading
from bench.quality.form import Ending
from bench.quality.report import bounds_table, report
from bench.quality.summary import ALL, Case, Figures, bounds_of, result_rows, summarize
from sternpost_core.errors import OperatingError
from sternpost_fakes.bench_machine import MACHINE, NOON

PRIOR = (-2.0, -2.0)


def reading(right: bool, likeliest: float, *, suffix: int = 68) -> Reading:
    """Return a reading of a 100-token tail, whose likeliest token has this probability."""
    answers = (-1.0, -3.0) if right else (-3.0, -1.0)
    return Reading(
        answers=answers,
        positions=((math.log(likeliest), math.log(0.25)),),
        prompt_tokens=200,
        tail_tokens=100,
        suffix_tokens=suffix,
        computed_tokens=200 - suffix,
        reason="hit",
    )


def case(exact: bool, floor: bool, reusing: bool, likeliest: float = 0.5) -> Case:
    """Return a case whose reusing arms are all alike."""
    readings = {arm.name: reading(reusing, likeliest) for arm in REUSING}
    readings |= {EXACT.name: reading(exact, 0.5, suffix=0), FLOOR.name: reading(floor, 0.45, suffix=0)}
    return Case(0, PRIOR, readings)


def of_arm(figures: list[Figures], arm: Arm, task: str) -> Figures:
    """Return the figures of an arm on a task."""
    return next(figure for figure in figures if figure.arm is arm and figure.task == task)


FORMED = [case(True, True, True, likeliest) for likeliest in (0.2, 0.6, 0.6)]
"""The exact arm's likeliest token is the first with 0.5; an answer's has e to the power of -1, or 0.37."""

ENDINGS = [Ending(0, frozenset({0})), Ending(0, frozenset({0})), None]

CASES = {
    "one": [
        case(True, True, True),
        case(True, True, False),
        case(True, True, False),
        case(False, False, True),
    ],
    "two": [case(True, True, True, 0.2), case(True, True, True, 0.2)],
}


def test_accuracy_and_flips_are_against_the_exact_arm() -> None:
    """Two of four answers are lost and one is won; over all tasks six prompts count."""
    figures = summarize(CASES)
    one, together = of_arm(figures, REUSING[0], "one"), of_arm(figures, REUSING[0], ALL)

    assert (0.5, 0.75) == (one.accuracy.value, of_arm(figures, EXACT, "one").accuracy.value)
    assert (2, 1, -0.25) == (one.flips.lost, one.flips.won, one.task_delta.value)
    assert (6, 4 / 6) == (together.accuracy.count, together.accuracy.value)


def test_divergence_is_a_multiple_of_the_floors_own() -> None:
    """What equals the exact arm has none; the floor's multiple is 1; top-1 changes count as a delta."""
    figures = summarize(CASES)
    one, two = of_arm(figures, REUSING[0], "one"), of_arm(figures, REUSING[0], "two")

    assert 0.0 == one.kl.value == one.kl_ratio.value
    assert pytest.approx(1.0) == of_arm(figures, FLOOR, "two").kl_ratio.value
    assert two.kl_ratio.value > 10
    assert (1.0, 0.0, -1.0) == (one.top1.value, two.top1.value, two.top1_delta.value)


@pytest.mark.parametrize(
    ("task", "kept"),
    [
        pytest.param("one", (True, True, True, False), id="answers lost"),
        pytest.param("two", (True, False, False, True), id="distributions moved"),
    ],
)
def test_each_bound_is_judged_by_itself(task: str, kept: tuple[bool, ...]) -> None:
    """Recompute share by count, KL ratio, top-1 delta, task delta, in this order."""
    verdicts = bounds_of(of_arm(summarize(CASES), REUSING[0], task))

    assert kept == tuple(verdict.holds for verdict in verdicts)


def test_matched_tokens_count_against_the_recompute_share() -> None:
    """Where more than the last tokens are computed, the share itself is held to the bound."""
    matching = next(arm for arm in REUSING if arm.match)

    verdict = bounds_of(of_arm(summarize(CASES), matching, "one"))[0]

    assert pytest.approx(0.32) == verdict.value
    assert not verdict.holds


def test_a_floor_that_does_not_differ_is_an_error() -> None:
    """Nothing is a multiple of zero; such a floor was not computed in bfloat16."""
    same = {arm.name: reading(True, 0.5) for arm in ARMS}

    with pytest.raises(OperatingError, match="no divergence"):
        summarize({"one": [Case(0, PRIOR, same)]})


def test_rows_are_named_by_task_and_arm() -> None:
    """Every arm has an accuracy with its interval; only reusing arms are held to the floor."""
    rows = result_rows(summarize(CASES))

    accuracy = [row for row in rows if row.metric == "accuracy"]
    assert {f"{task}: {arm.name}" for task in (ALL, *CASES) for arm in ARMS} == {
        row.workload for row in accuracy
    }
    assert all(row.low is not None and row.high is not None for row in accuracy)
    assert {f"one: {arm.name}" for arm in REUSING} == {
        row.workload for row in rows if row.metric == "kl_ratio_to_bf16" and row.workload.startswith("one")
    }


def test_answers_of_a_kept_form_are_paired_with_the_exact_ones() -> None:
    """Of three, one begins as an answer in the reusing arm alone; of two asked for it, one ends no longer."""
    cases = {"one": [replace(one, ending=ending) for one, ending in zip(FORMED, ENDINGS, strict=True)]}
    figure = of_arm(summarize(cases), REUSING[0], "one")

    assert figure.ended is not None
    assert (1 / 3, 0, 1) == (figure.named.share.value, figure.named.flips.lost, figure.named.flips.won)
    assert (2, 0.5, 1, 0) == (
        figure.ended.share.count,
        figure.ended.share.value,
        figure.ended.flips.lost,
        figure.ended.flips.won,
    )
    assert {"named_share", "named_lost", "named_won", "named_mass", "ended_share"} <= {
        row.metric for row in result_rows([figure])
    }
    assert "0.333 (0/1) [" in report(summarize(cases), MACHINE, NOON, "Settings.")


def test_tails_that_ask_for_no_ending_have_no_figure_of_it() -> None:
    """Neither a row nor a table."""
    figures = summarize(CASES)

    assert {None} == {figure.ended for figure in figures}
    assert not [row for row in result_rows(figures) if row.metric.startswith("ended")]
    assert "end behind their first word" not in report(figures, MACHINE, NOON, "Settings.")


def test_the_report_shows_every_arm_and_names_missed_bounds() -> None:
    """A missed bound is said with its task."""
    figures = summarize(CASES)

    text = report(figures, MACHINE, NOON, "Settings.")

    assert all(arm.name in text for arm in ARMS)
    assert "0.500 (2/1)" in text
    assert "missed by two" in bounds_table(figures)
    assert "missed by one" in bounds_table(figures)
