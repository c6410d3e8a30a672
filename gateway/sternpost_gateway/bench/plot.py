"""The picture: for each workload, time to first token and computed tokens at every target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sternpost_gateway.bench.summary import Figures

COLORS: Final = ("#7f7f7f", "#b5651d", "#c9a227", "#6a8f3c", "#4c9a8c", "#1f6f8b", "#16435c", "#7a3b69")

ROW_INCHES: Final = 2.6
WIDTH_INCHES: Final = 11.0


def write_plot(figures: Sequence[Figures], path: Path) -> None:
    """Draw the picture as PNG."""
    workloads = list(dict.fromkeys(one.workload for one in figures))
    targets = list(dict.fromkeys(one.target for one in figures))
    figure = Figure(figsize=(WIDTH_INCHES, ROW_INCHES * max(1, len(workloads))), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(max(1, len(workloads)), 2, squeeze=False)
    for row, workload in zip(grid, workloads, strict=False):
        found = {one.target: one for one in figures if one.workload == workload}
        shown = [target for target in targets if target in found]
        colors = [COLORS[targets.index(target) % len(COLORS)] for target in shown]
        _draw_ttft(row[0], [found[target] for target in shown], colors)
        _draw_tokens(row[1], [found[target] for target in shown])
        row[0].set_title(workload, loc="left", fontsize=10)
    # One legend for all rows, for within them it would hide bars.
    figure.legend(*grid[0][1].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)


def _draw_ttft(axes: Axes, figures: Sequence[Figures], colors: Sequence[str]) -> None:
    values = [one.ttft_p50.value * 1000 for one in figures]
    below = [max(0.0, value - one.ttft_p50.low * 1000) for value, one in zip(values, figures, strict=True)]
    above = [max(0.0, one.ttft_p50.high * 1000 - value) for value, one in zip(values, figures, strict=True)]
    names = [one.target for one in figures]
    axes.barh(names, values, color=colors, xerr=[below, above], error_kw={"linewidth": 1.0})
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("time to first token, median, ms", fontsize=8)
    axes.tick_params(labelsize=8)


def _draw_tokens(axes: Axes, figures: Sequence[Figures]) -> None:
    names = [one.target for one in figures]
    prefix = [one.prefix_share * one.prompt_tokens for one in figures]
    suffix = [one.suffix_share * one.prompt_tokens for one in figures]
    computed = [one.computed_tokens.value for one in figures]
    floors = [0.0 for _ in figures]
    for label, widths, color in (
        ("computed", computed, "#b5651d"),
        ("from the prefix cache", prefix, "#9ecae1"),
        ("from the suffix store", suffix, "#1f6f8b"),
    ):
        axes.barh(names, widths, left=floors, label=label, color=color)
        floors = [floor + width for floor, width in zip(floors, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_yticklabels([])
    axes.set_xlabel("prompt tokens per request, mean", fontsize=8)
    axes.tick_params(labelsize=8)
