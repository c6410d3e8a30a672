"""The figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sternpost_gateway.bench.sample import Unit
from sternpost_gateway.bench.stats import Estimate
from sternpost_gateway.bench.summary import Figures, Ratios

MEBIBYTE: Final = 2**20


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose others are figures."""
    marks = ["-", *("-:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, marks, *rows])


def with_interval(figure: Estimate, digits: int = 2) -> str:
    """Return a figure with its 95% interval."""
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f})"


def milliseconds(figure: Estimate) -> str:
    """Return seconds as milliseconds with their 95% interval."""
    return f"{figure.value * 1000:.0f} ({figure.low * 1000:.0f} to {figure.high * 1000:.0f})"


def report(head: Mapping[str, Any], figures: Sequence[Figures], ratios: Sequence[Ratios]) -> str:
    """Return a run's report."""
    return "\n".join(_lines(head, figures, ratios)) + "\n"


def figures_table(figures: Sequence[Figures]) -> str:
    """Return the table of one workload's figures at all targets."""
    head = ("target", "TTFT p50 ms", "p95 ms", "end to end p50 ms", "between tokens ms", "prompt", "computed",
            "prefix", "suffix", "answers/s", "memory peak MiB", "failed")  # fmt: skip
    return table(head, [_figures_row(one) for one in figures])


def ratios_table(ratios: Sequence[Ratios]) -> str:
    """Return the table of one workload's ratios to the baseline."""
    head = ("target", "TTFT p50", "end to end p50", "computed tokens", "same answers")
    return table(head, [_ratios_row(one) for one in ratios])


def failures(units: Sequence[Unit]) -> list[str]:
    """Return the first error of each target that had any, with how many there were."""
    found: dict[str, list[str]] = {}
    for unit in units:
        found.setdefault(unit.target, []).extend(sample.error for sample in unit.samples if sample.error)
    return [f"{target}: {len(errors)}, the first: {errors[0]}" for target, errors in found.items() if errors]


def _lines(head: Mapping[str, Any], figures: Sequence[Figures], ratios: Sequence[Ratios]) -> Iterator[str]:
    yield "# Bench\n"
    yield f"{head['date']}, {head['machine']}. Seed {head['seed']}, {head['repeats']} repetitions.\n"
    if head.get("in_turn"):
        yield "Each session was held at every target before the next began.\n"
    yield ", ".join(f"{name} {version}" for name, version in head["versions"].items()) + ".\n"
    yield "In brackets: 95% bootstrap intervals over requests."
    yield f"Ratios are to `{head['baseline']}`, on the same requests."
    for workload in dict.fromkeys(one.workload for one in figures):
        yield f"\n## {workload}\n\n{head['workloads'].get(workload, '')}\n"
        yield figures_table([one for one in figures if one.workload == workload])
        if chosen := [one for one in ratios if one.workload == workload]:
            yield "\n" + ratios_table(chosen)


def _figures_row(one: Figures) -> list[str]:
    return [
        one.target,
        milliseconds(one.ttft_p50),
        f"{one.ttft_p95.value * 1000:.0f}",
        milliseconds(one.total_p50),
        f"{one.between_p50.value * 1000:.0f}" if one.between_p50 else "",
        f"{one.prompt_tokens:.0f}",
        f"{one.computed_tokens.value:.0f}",
        f"{one.prefix_share:.2f}",
        f"{one.suffix_share:.2f}",
        f"{one.answers_per_second:.2f}",
        f"{one.memory_peak / MEBIBYTE:.0f}" if one.memory_peak else "",
        str(one.failed),
    ]


def _ratios_row(one: Ratios) -> list[str]:
    figures = (one.ttft_p50, one.total_p50, one.computed_tokens, one.identical)
    return [one.target, *map(with_interval, figures)]
