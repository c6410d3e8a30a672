"""What the demonstration's rows together show."""

from dataclasses import replace

import pytest

from bench.demo.kill import KillRun
from bench.demo.rows import Arm, Phase, Row
from bench.demo.summary import (
    ArmFigures,
    KillFigures,
    Summary,
    conditions,
    kill_figures,
    paired,
    summarize,
)
from sternpost_core.errors import OperatingError
from sternpost_fakes.demo_rows import load_row, make_answer, make_kill_run, make_row, return_row

TOKENS = {"Hello.": (1, 2), "Hello there.": (1, 3, 2, 4)}


def pair(question: str, *, ratio: float = 0.25, text: str = "Hello.") -> list[Row]:
    """Return one question's rows: 1,000 tokens, all computed by the baseline, 100 of them by Sternpost."""
    baseline = make_answer(ttft=1.0, total=2.0, computed=1000)
    sternpost = make_answer(ttft=ratio, total=2 * ratio, suffix=900, computed=100, text=text)
    return [
        make_row(Arm.BASELINE, baseline, question=question),
        make_row(Arm.STERNPOST, sternpost, question=question),
    ]


def unmet(summary: Summary) -> list[str]:
    """Return the texts of the conditions that do not hold."""
    return [condition.text for condition in conditions(summary) if not condition.holds]


def test_arms_are_summed_up() -> None:
    """Percentiles of times, means of tokens, and shares of all tokens."""
    summary = summarize([*pair("a"), *pair("b")], TOKENS, make_kill_run())

    expected = {
        Arm.BASELINE: ArmFigures(
            ttft_p50=1.0,
            ttft_p95=1.0,
            total_p50=2.0,
            prompt_tokens=1000.0,
            computed_tokens=1000.0,
            prefix_share=0.0,
            suffix_share=0.0,
            failed=0,
        ),
        Arm.STERNPOST: ArmFigures(
            ttft_p50=0.25,
            ttft_p95=0.25,
            total_p50=0.5,
            prompt_tokens=1000.0,
            computed_tokens=100.0,
            prefix_share=0.0,
            suffix_share=0.9,
            failed=0,
        ),
    }
    assert expected == summary.arms


def test_ratios_are_sternpost_over_baseline() -> None:
    """A quarter of the time and a tenth of the computed tokens."""
    ratios = summarize([*pair("a"), *pair("b")], TOKENS, make_kill_run()).ratios

    assert (0.25, 0.25, 0.25, 0.1) == (
        ratios.ttft_p50.value,
        ratios.ttft_p95.value,
        ratios.total_p50.value,
        ratios.computed_tokens.value,
    )


def test_agreement_counts_equal_answers_and_equal_beginnings() -> None:
    """One of two answers is equal; the other shares one of four tokens."""
    rows = [*pair("a"), *pair("b", text="Hello there.")]

    agreement = summarize(rows, TOKENS, make_kill_run()).agreement

    assert (0.5, 0.625) == (agreement.identical.value, agreement.common.value)


def test_only_questions_that_both_arms_answered_are_pairs() -> None:
    """A failure takes its question out of the comparison, whichever arm it is in."""
    failed = [make_row(Arm.STERNPOST, None, question="b"), make_row(Arm.BASELINE, None, question="c")]
    rows = [*pair("a"), pair("b")[0], failed[0], failed[1], pair("c")[1]]

    assert 1 == len(paired(rows))


def test_rows_outside_the_measured_phase_count_nothing() -> None:
    """The warm-up's slow requests are no part of the figures."""
    slow = [replace(row, phase=Phase.WARM_UP) for row in pair("a", ratio=90.0)]

    assert 1 == summarize([*slow, *pair("a")], TOKENS, make_kill_run()).pairs


def test_nothing_to_compare_is_an_error() -> None:
    """Without a single pair there are no figures."""
    rows = [pair("a")[0], make_row(Arm.STERNPOST, None, question="a")]

    with pytest.raises(OperatingError, match="no question was answered by both arms"):
        summarize(rows, TOKENS, make_kill_run())


@pytest.mark.parametrize(
    ("reads", "last_read", "reads_after"),
    [
        pytest.param([8.0, 9.5], -1.0, 0, id="before-the-answer"),
        pytest.param([9.5, 10.25], -0.25, 0, id="while-the-api-answers"),
        pytest.param([9.5, 11.0], 0.5, 1, id="after-the-answer"),
    ],
)
def test_last_read_is_counted_from_the_answer(reads: list[float], last_read: float, reads_after: int) -> None:
    """What counts is when the last request that read began, whenever it ended."""
    rows = [load_row(started, suffix=900) for started in reads]

    figures = kill_figures(make_kill_run(*rows, load_row(12.0, suffix=0)))

    assert (last_read, reads_after) == (figures.last_read, figures.reads_after)


def test_kill_figures_tell_before_from_after() -> None:
    """Requests that began while the API answered are on neither side."""
    run = make_kill_run(
        load_row(8.0, suffix=900, ttft=0.2),
        load_row(10.25, suffix=0, ttft=9.0),
        load_row(12.0, suffix=0, ttft=1.0),
        load_row(13.0, suffix=0, failed=True),
        return_row(20.5, suffix=0),
        return_row(21.5, suffix=900),
    )

    expected = KillFigures(
        requests=4,
        failed=1,
        answer=0.5,
        last_read=-2.5,
        reads_after=0,
        ttft_p50_before=0.2,
        ttft_p50_after=1.0,
        reused_before=1,
        returned=1.5,
    )
    assert expected == kill_figures(run)


@pytest.mark.parametrize(
    ("run", "side"),
    [
        pytest.param(make_kill_run(load_row(12.0, suffix=0)), "before", id="none-before"),
        pytest.param(make_kill_run(load_row(8.0, suffix=900)), "after", id="none-after"),
        pytest.param(
            make_kill_run(load_row(8.0, suffix=900), load_row(12.0, suffix=0, failed=True)),
            "after",
            id="only-failures-after",
        ),
    ],
)
def test_load_on_one_side_alone_is_an_error(run: KillRun, side: str) -> None:
    """A switch that no request came before, or after, was not tried under load."""
    with pytest.raises(OperatingError, match=f"answered {side} the kill switch"):
        kill_figures(run)


def test_good_run_meets_every_condition() -> None:
    """Nothing is missed when all is well."""
    assert [] == unmet(summarize([*pair("a"), *pair("b")], TOKENS, make_kill_run()))


@pytest.mark.parametrize(
    ("rows", "run", "expected"),
    [
        pytest.param(pair("a", ratio=0.36), make_kill_run(), ["TTFT p50 ratio 0.360 <= 0.35"], id="too-slow"),
        pytest.param(
            [*pair("a"), make_row(Arm.BASELINE, None, question="b")],
            make_kill_run(),
            ["failed requests while measuring: 1 = 0"],
            id="failed-while-measuring",
        ),
        pytest.param(
            [*pair("a"), make_row(Arm.STERNPOST, make_answer(computed=1000), question="b")],
            make_kill_run(),
            ["requests through Sternpost that reused the rules: 1 of 2"],
            id="one-not-reused",
        ),
        pytest.param(
            pair("a"),
            make_kill_run(
                load_row(8.0, suffix=900),
                load_row(12.0, suffix=0),
                load_row(13.0, suffix=0, failed=True),
                return_row(21.0, suffix=900),
            ),
            ["failed requests under load: 1 = 0"],
            id="failed-under-load",
        ),
        pytest.param(
            pair("a"),
            make_kill_run(
                load_row(8.0, suffix=900), load_row(12.0, suffix=900), return_row(21.0, suffix=900)
            ),
            ["last suffix read began +1.500 s from the kill switch's answer, at most +1 s"],
            id="read-long-after-the-switch",
        ),
        pytest.param(
            pair("a"),
            make_kill_run(load_row(8.0, suffix=0), load_row(12.0, suffix=0), return_row(21.0, suffix=900)),
            ["suffix reads under load before the kill switch"],
            id="nothing-to-switch-off",
        ),
        pytest.param(
            pair("a"),
            make_kill_run(load_row(8.0, suffix=900), load_row(12.0, suffix=0), return_row(21.0, suffix=0)),
            ["suffix reads returned once it was taken back"],
            id="never-returned",
        ),
    ],
)
def test_missed_condition_is_named(rows: list[Row], run: KillRun, expected: list[str]) -> None:
    """Each thing that goes wrong is its own condition, with the figure that missed it."""
    assert expected == unmet(summarize(rows, TOKENS, run))
