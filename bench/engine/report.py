"""The figures as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from bench.common.results import Row, find_row
from bench.demo.report import table
from bench.engine.scenarios import ANSWER_TOKENS, AT_ONCE
from bench.engine.summary import Judged
from sternpost_gateway.bench.machine import Machine

SCENARIO_LINES = (
    "- `fixed_tail`: 80 tokens of the user's, then 1,200 that are fixed; the founding article's request.",
    "- `tool_turns`: five turns with a tool's call and result each, between a shared prefix and the tail.",
    "- `regenerate`: a request asked a second time.",
    "- `long_session`: a conversation of three turns between prefix and tail.",
    "- `no_reuse`: prompts that share nothing, without hints.",
    "- `short_chat`: short prompts whose tail is under the plugin's least length, with hints.",
    "- `past_anchor`: a middle of 1,700 tokens behind a prefix, more than an anchor at 2,048 leaves.",
)


def report(
    rows: Sequence[Row],
    judged: Sequence[Judged],
    reasons: Mapping[str, Mapping[str, int]],
    machine: Machine,
    date: datetime,
    model: str,
) -> str:
    """Return the whole report."""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    paragraphs = [
        "# The engine: plain vLLM and vLLM with the plugin",
        "Written by `make bench-engine`.",
        f"{date:%d %B %Y}, commit {machine.commit}, on {machine}. Python {machine.python}, {versions}.",
        f"{model} in float32. Two engines with one computing thread each, alike but for the plugin, got the "
        "same scripted requests in ABBA order, never both at once. A name with "
        f"`_{AT_ONCE}` is {AT_ONCE} sessions at once, otherwise one at a time; answers have {ANSWER_TOKENS} "
        "tokens. Tails were built by the ordinary build operation, without calibration, which costs nothing "
        "per request; hints are as a gateway sends them, with 32 last tokens computed afresh.",
        "\n".join(SCENARIO_LINES),
        "## Bounds",
        bounds_table(judged),
        notes(judged),
        "## Figures",
        "Ratios are the plugin's engine over the plain one, with 95% bootstrap intervals over requests; "
        "`computed` is the ratio of computed tokens, the floor of the other ratios by token count.",
        figures_table(rows, reasons),
        "## Memory",
        memory_line(rows),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def bounds_table(judged: Sequence[Judged]) -> str:
    """Return every bound with its figure, the founding article's, and the verdict."""
    head = ("workload", "metric", "bound", "measured", "95% interval", "founding article", "")
    return table([head, *(_bound_cells(item) for item in judged)])


def notes(judged: Sequence[Judged]) -> str:
    """Return what to know of the bounds that were missed."""
    missed = [item for item in judged if not item.holds and item.row is not None and item.claim.note]
    by_note = dict.fromkeys(item.claim.note for item in missed)
    lines = []
    for note in by_note:
        names = [
            f"`{item.claim.bound.workload}` {item.claim.bound.metric}"
            for item in missed
            if item.claim.note == note
        ]
        lines.append(f"- {', '.join(names)}: {note}")
    return "\n".join(lines)


def figures_table(rows: Sequence[Row], reasons: Mapping[str, Mapping[str, int]]) -> str:
    """Return one line per workload."""
    head = (
        "workload",
        "n",
        "prompt",
        "computed plain",
        "patched",
        "computed",
        "TTFT plain",
        "patched",
        "TTFT",
        "whole answer",
        "throughput",
        "reason",
    )
    return table([head, *(_figure_cells(rows, name, reasons[name]) for name in reasons)])


def memory_line(rows: Sequence[Row]) -> str:
    """Say what both engines held."""
    gib = {
        row.metric: row.value / 2**30
        for row in rows
        if row.workload == "memory" and row.metric.endswith("bytes")
    }
    if not gib:
        return "Not recorded."
    return (
        f"At the end of the run the plain engine held {gib['plain_bytes']:.2f} GiB and the other one "
        f"{gib['patched_bytes']:.2f} GiB, of which {gib['suffix_pool_bytes']:.3f} GiB were stored tails."
    )


def _bound_cells(item: Judged) -> tuple[str, ...]:
    bound, row = item.claim.bound, item.row
    if row is None:
        return (bound.workload, bound.metric, str(bound), "not run", "", item.claim.article, "")
    verdict = "passed" if item.holds else "**missed**"
    return (
        bound.workload,
        bound.metric,
        str(bound),
        f"{row.value:.3f}",
        _interval(row),
        item.claim.article,
        verdict,
    )


def _figure_cells(rows: Sequence[Row], name: str, reasons: Mapping[str, int]) -> tuple[str, ...]:
    def row(metric: str) -> Row:
        found = find_row(rows, name, metric)
        assert found is not None, "every workload has all of these figures"
        return found

    def ratio(metric: str) -> str:
        found = row(metric)
        interval = _interval(found)
        return f"{found.value:.3f}" + (f" ({interval})" if interval else "")

    return (
        name,
        str(row("ttft_ratio").n),
        f"{row('prompt_tokens').value:.0f}",
        f"{row('plain_computed_tokens').value:.0f}",
        f"{row('computed_tokens').value:.0f}",
        f"{row('computed_ratio').value:.3f}",
        f"{row('plain_ttft_p50').value * 1000:.0f} ms",
        f"{row('patched_ttft_p50').value * 1000:.0f} ms",
        ratio("ttft_ratio"),
        ratio("latency_ratio"),
        ratio("throughput_ratio"),
        ", ".join(f"{reason} {count}" for reason, count in reasons.items()),
    )


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f"{row.low:.3f} to {row.high:.3f}"
