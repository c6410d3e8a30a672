"""Two runs beside each other: what changed from one to the other, for each workload at each target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.records import Recorded
from sternpost_gateway.bench.report import table, with_interval
from sternpost_gateway.bench.summary import Ratios, grouped, paired_ratios


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run over the first, and the pairs of workload and target that only one of them has."""

    ratios: tuple[Ratios, ...]
    missing: tuple[str, ...]


def compare(first: Recorded, second: Recorded) -> Comparison:
    """
    Compare two runs; requests are paired, as the same seed makes the same ones.

    Raises:
        OperatingError: the runs have different seeds.
    """
    seeds = [run.head.get("seed") for run in (first, second)]
    if seeds[0] != seeds[1]:
        raise OperatingError(
            f"the runs have seeds {seeds[0]} and {seeds[1]}, so their requests differ and cannot be paired; "
            "give both the same --seed"
        )
    before, after = grouped(first.units), grouped(second.units)
    found = [
        paired_ratios(workload, target, "the first run", after[workload, target], units)
        for (workload, target), units in before.items()
        if (workload, target) in after
    ]
    alone = sorted(set(before) ^ set(after))
    return Comparison(
        tuple(ratios for ratios in found if ratios is not None),
        tuple(f"{workload} at {target}" for workload, target in alone),
    )


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown; a change is told where the interval leaves 1 out."""
    head = ("workload", "target", "TTFT p50", "end to end p50", "computed tokens", "same answers", "TTFT")
    lines = [table(head, [_row(one) for one in comparison.ratios])]
    if comparison.missing:
        lines.append("\nIn one of the runs only: " + ", ".join(comparison.missing) + ".")
    return "\n".join(lines)


def verdict(ratios: Ratios) -> str:
    """Return in a word what became of the time to first token."""
    if ratios.ttft_p50.high < 1:
        return "faster"
    return "slower" if ratios.ttft_p50.low > 1 else "no change shown"


def _row(one: Ratios) -> Sequence[str]:
    figures = (one.ttft_p50, one.total_p50, one.computed_tokens, one.identical)
    return [one.workload, one.target, *map(with_interval, figures), verdict(one)]
