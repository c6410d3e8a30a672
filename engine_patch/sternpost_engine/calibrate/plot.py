"""The picture: what is saved against what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sternpost_engine.calibrate.advice import FLOOR_RATIO_MAX
from sternpost_engine.calibrate.arms import REUSED, Source
from sternpost_engine.calibrate.scores import Figures

COLORS: Final = {Source.ALONE: "#b5651d", Source.SCAFFOLD: "#7f8c8d", Source.CALIBRATED: "#1f6f8b"}

RATIO_MIN: Final = 0.01
"""The lowest place on the picture's logarithmic axis."""


def write_plot(figures: Sequence[Figures], path: Path) -> None:
    """Draw every reused arm's KL, in multiples of the noise floor, over the share of tokens it computes."""
    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for source in REUSED:
        for matched, marker in ((False, "o"), (True, "^")):
            shown = [
                one
                for one in figures
                if one.arm.source is source and bool(one.arm.match) is matched and not one.arm.anchored
            ]
            axes.scatter(
                [one.prefill_ratio for one in shown],
                [max(one.floor_ratio, RATIO_MIN) for one in shown],
                marker=marker,
                s=36,
                color=COLORS[source],
                label=f"{source.value}{', matched words' if matched else ''}",
            )
    axes.axhline(1.0, color="black", linewidth=1.0)
    axes.axhline(FLOOR_RATIO_MAX, color="black", linewidth=1.0, linestyle=":")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("computed tokens, share of full prefill behind the prefix")
    axes.set_ylabel("KL per token, multiples of exact bfloat16's")
    axes.set_title("What reuse of this tail costs; the dotted line is the limit of what is advised")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=130)
