"""The demonstration's words and files: the table, `report.md`, `rows.jsonl` and the benchmark's results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from bench.common.results import head_of, write_document
from bench.demo.kill import CLIENTS, LOAD_SECONDS
from bench.demo.rows import Arm, Row
from bench.demo.summary import ArmFigures, KillFigures, Summary, conditions
from sternpost_gateway.bench.machine import Machine
from sternpost_gateway.bench.stats import Estimate

WORKLOAD: Final = "support_agent"

ARM_NAMES: Final = {Arm.BASELINE: "plain vLLM", Arm.STERNPOST: "Sternpost"}


@dataclass(frozen=True, slots=True)
class Report:
    """What is written down beside the rows."""

    summary: Summary
    machine: Machine
    date: datetime


def write_row(row: Row, file: TextIO) -> None:
    """Write a row as a line of JSON, at once: what fails later does not take it back."""
    print(json.dumps(row.to_mapping(), ensure_ascii=False), file=file, flush=True)


def write_report(report: Report, path: Path) -> None:
    """Write the report as Markdown."""
    machine = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    paragraphs = [
        "# Sternpost beside plain vLLM prefix caching",
        f"{report.date:%d %B %Y}, commit {machine.commit}, on {machine}.",
        f"Python {machine.python}, {versions}.",
        f"A support agent's rules stand last in each request; the questions of "
        f"{report.summary.questions} customers differ in front of them. Each question was asked once "
        "straight to an engine and once through the gateway in front of the same engines, one request at a "
        "time, in ABBA order. The two cannot find each other's KV: the gateway salts its requests.",
        comparison(report.summary),
        "The ratio is Sternpost over plain vLLM, with its 95% bootstrap interval; answers are greedy.",
        "## The kill switch under load",
        kill_table(report.summary.kill),
        "## Conditions",
        "\n".join(f"- [{'x' if item.holds else ' '}] {item.text}" for item in conditions(report.summary)),
        "![TTFT by arm, prompt tokens by source, and TTFT under load](plot.png)",
    ]
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def write_results(report: Report, path: Path) -> None:
    """Write the figures in the form that all benchmarks share."""
    head = head_of("demo", report.machine, report.date)
    write_document({**head, "rows": result_rows(report.summary)}, path)


def comparison(summary: Summary) -> str:
    """Return the table of both arms."""
    ratios = summary.ratios
    agreement = summary.agreement
    rows = [
        ("", *(ARM_NAMES[arm] for arm in Arm), "ratio", "95% interval"),
        _compared(summary, "TTFT p50", lambda arm: _milliseconds(arm.ttft_p50), ratios.ttft_p50),
        _compared(summary, "TTFT p95", lambda arm: _milliseconds(arm.ttft_p95), ratios.ttft_p95),
        _compared(summary, "whole answer p50", lambda arm: _milliseconds(arm.total_p50), ratios.total_p50),
        _compared(summary, "prompt tokens, mean", lambda arm: f"{arm.prompt_tokens:.1f}"),
        _compared(
            summary, "of them computed", lambda arm: f"{arm.computed_tokens:.1f}", ratios.computed_tokens
        ),
        _compared(summary, "reused from prefix", lambda arm: f"{arm.prefix_share:.1%}"),
        _compared(summary, "reused from suffix", lambda arm: f"{arm.suffix_share:.1%}"),
        _compared(summary, "failed requests", lambda arm: str(arm.failed)),
        (
            "identical answers",
            "",
            f"{agreement.identical.value:.1%}",
            "",
            _interval(agreement.identical, ".1%"),
        ),
        ("equal leading tokens", "", f"{agreement.common.value:.1%}", "", _interval(agreement.common, ".1%")),
    ]
    return table(rows)


def kill_table(kill: KillFigures) -> str:
    """Return the table of the kill switch."""
    return table(
        [
            (f"{CLIENTS} clients for {LOAD_SECONDS:.0f} s, switch in the middle", ""),
            ("requests", str(kill.requests)),
            ("failed requests", str(kill.failed)),
            ("the API answered within", _milliseconds(kill.answer)),
            ("last suffix read began", _last_read(kill.last_read)),
            ("suffix reads that began after the answer", str(kill.reads_after)),
            ("TTFT p50 before", _milliseconds(kill.ttft_p50_before)),
            ("TTFT p50 after", _milliseconds(kill.ttft_p50_after)),
            ("first suffix read after it was taken back began", _first_read(kill.returned)),
        ]
    )


def result_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return the rows of the benchmark's results; counts and times of one event have no interval."""
    ratios = summary.ratios
    kill = summary.kill
    failed = kill.failed + sum(arm.failed for arm in summary.arms.values())
    estimates = [
        ("ttft_p50_ratio", ratios.ttft_p50),
        ("ttft_p95_ratio", ratios.ttft_p95),
        ("total_p50_ratio", ratios.total_p50),
        ("computed_ratio", ratios.computed_tokens),
        ("identical_answers", summary.agreement.identical),
        ("equal_leading_tokens", summary.agreement.common),
    ]
    single = [
        ("suffix_share", summary.arms[Arm.STERNPOST].suffix_share, "1", summary.questions),
        ("failed_requests", failed, "1", 2 * summary.questions + kill.requests),
        ("kill_last_read_s", kill.last_read, "s", kill.requests),
        ("kill_return_s", kill.returned, "s", 1),
    ]
    rows: list[dict[str, Any]] = [
        {
            "workload": WORKLOAD,
            "metric": metric,
            "value": round(figure.value, 4),
            "unit": "1",
            "n": figure.count,
            "low": round(figure.low, 4),
            "high": round(figure.high, 4),
        }
        for metric, figure in estimates
    ]
    rows += [
        {
            "workload": WORKLOAD,
            "metric": metric,
            "value": None if value is None else round(value, 4),
            "unit": unit,
            "n": count,
            "low": None,
            "high": None,
        }
        for metric, value, unit, count in single
    ]
    return rows


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows, the first of them the head, as a Markdown table whose columns are aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    head, *body = [
        [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(cells)
        ]
        for cells in ([*zip(row, widths, strict=True)] for row in rows)
    ]
    rule = ["-" * width if column == 0 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])


def _compared(
    summary: Summary, name: str, show: Callable[[ArmFigures], str], ratio: Estimate | None = None
) -> tuple[str, ...]:
    figures = (show(summary.arms[arm]) for arm in Arm)
    if ratio is None:
        return (name, *figures, "", "")
    return (name, *figures, f"{ratio.value:.3f}", _interval(ratio, ".3f"))


def _interval(figure: Estimate, form: str) -> str:
    return f"{format(figure.low, form)} to {format(figure.high, form)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _last_read(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{_milliseconds(abs(seconds))} {'after' if seconds > 0 else 'before'} the answer"


def _first_read(seconds: float | None) -> str:
    return "never" if seconds is None else f"{_milliseconds(seconds)} after the answer"
