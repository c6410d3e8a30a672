"""The picture: how many engines the traffic takes as it grows, with and without reuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sternpost_gateway.capacity.sizing import Plan


def write_plot(rates: Sequence[float], today: Sequence[Plan], fixed: Sequence[Plan], path: Path) -> None:
    """Draw engines and times to first token over requests per second as PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    engines, ttft = figure.subplots(1, 2)
    for label, plans, color in (("without", today, "#b5651d"), ("with", fixed, "#1f6f8b")):
        engines.step(rates, [one.engines for one in plans], where="mid", label=label, color=color)
        ttft.plot(rates, [one.waiting.ttft_p50 * 1000 for one in plans], label=f"{label}, p50", color=color)
        p95 = [one.waiting.ttft_p95 * 1000 for one in plans]
        ttft.plot(rates, p95, ":", label=f"{label}, p95", color=color)
    engines.set_ylabel("engines")
    ttft.set_ylabel("time to first token at so many engines, ms")
    for axes in (engines, ttft):
        axes.set_xlabel("requests per second")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    # Whatever the file is called, it is a PNG, and at that very place.
    figure.savefig(path, dpi=120, format="png")
