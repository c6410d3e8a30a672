"""The benchmarks' page is made from the result files, and the planner's model is held to them."""

import json
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from bench.evaluation.model import fitted, predictions
from bench.evaluation.targets import NO_CACHE, PLAIN, STERNPOST
from docs.make_benchmarks import DOCUMENT, load_results, render
from sternpost_core.errors import OperatingError

OFF_MAX: Final = 0.15
"""What the planner's predictions may be off by, over the workloads of a recorded run."""

ALONE: Final = ("short_chat", "no_reuse", "fixed_tail", "high_dynamic")
"""Workloads in which no request waits for another."""


def rows_of(target: str, workload: str, computed: float, ttft: float) -> list[dict[str, Any]]:
    """Return the rows that the model reads; nothing of the prompt is cached."""
    return [
        {"workload": workload, "target": target, "metric": metric, "value": value}
        for metric, value in (
            ("computed_tokens", computed),
            ("prompt_tokens", computed),
            ("ttft_mean", ttft),
        )
    ]


def made_rows(slower: float) -> list[dict[str, Any]]:
    """Return rows of engines that take 50 ms and 1 ms a token, and of Sternpost, so much slower than that."""
    rows = [
        row
        for target in (NO_CACHE, PLAIN)
        for number, workload in enumerate(ALONE, start=1)
        for row in rows_of(target, workload, 100.0 * number, 0.05 + 0.1 * number)
    ]
    return [*rows, *rows_of(STERNPOST, "fixed_tail", 50.0, 0.1 * slower)]


def test_the_page_is_what_the_result_files_make() -> None:
    """Run `make docs` where it is not."""
    assert render(load_results()) == DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("run", [name for name in load_results().files if name == "evaluation"])
def test_the_planner_s_model_is_within_15_percent_of_the_recorded_run(run: str) -> None:
    """Of the median workload: a fit to plain vLLM predicts what Sternpost's requests take."""
    found = predictions(load_results().files[run]["rows"])

    assert median(abs(one.off) for one in found) <= OFF_MAX


@pytest.mark.parametrize("slower", [pytest.param(1.0, id="as fitted"), pytest.param(1.25, id="slower")])
def test_a_prediction_is_off_by_what_the_engine_is_slower(slower: float) -> None:
    """Else the check above could not fail."""
    rows = made_rows(slower)
    (one,) = predictions(rows)

    assert 1000.0 == pytest.approx(fitted(rows).prefill_rate)
    assert 1 / slower - 1 == pytest.approx(one.off)


def test_a_request_that_waits_for_others_fits_no_speed() -> None:
    """Bursts and random arrivals are left out."""
    rows = [row for number in range(1, 9) for row in rows_of(PLAIN, "clean_shared", number, number)]

    with pytest.raises(OperatingError, match="0 requests are too few"):
        fitted(rows)


def test_without_a_run_the_page_says_so(tmp_path: Path) -> None:
    """Rather than fail for whoever builds the pages first."""
    (tmp_path / "lint.json").write_text(json.dumps({"date": "2026-01-02", "commit": "c", "rows": []}))

    text = render(load_results(tmp_path))

    assert "## Side by side\n\nNot recorded yet." in text
    assert "| [lint](../bench/results/lint.json) | 2026-01-02 | c | 0 |" in text
