"""The picture: TTFT by arm, prompt tokens by source, and TTFT while the kill switch is engaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.demo.kill import LOAD_SECONDS, KillRun
from bench.demo.report import ARM_NAMES
from bench.demo.rows import Answer, Arm, Phase, Row, answers
from sternpost_gateway.bench.stats import mean, percentile

ARM_COLORS: Final = {Arm.BASELINE: "#b5651d", Arm.STERNPOST: "#1f6f8b"}

SOURCES: Final = (
    ("prefix cache", "prefix_tokens", "#9ecae1"),
    ("suffix store", "suffix_tokens", "#1f6f8b"),
    ("computed", "computed_tokens", "#b5651d"),
)

JITTER: Final = 0.16
"""How far points of one arm are spread sideways, so that they do not hide each other."""


def write_plot(rows: Sequence[Row], kill: KillRun, path: Path) -> None:
    """Draw the picture as PNG."""
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("A support agent's rules last in every request: plain vLLM prefix caching and Sternpost")
    axes = figure.subplot_mosaic([["ttft", "tokens"], ["kill", "kill"]])
    measured = {arm: answers(rows, Phase.MEASURED, arm) for arm in Arm}
    _draw_ttft(axes["ttft"], measured)
    _draw_tokens(axes["tokens"], measured)
    _draw_kill(axes["kill"], kill)
    figure.savefig(path, dpi=130)


def _draw_ttft(axes: Axes, measured: dict[Arm, list[Answer]]) -> None:
    chance = Random(0)
    for place, arm in enumerate(Arm):
        values = [answer.ttft_seconds * 1000 for answer in measured[arm]]
        places = [place + chance.uniform(-JITTER, JITTER) for _ in values]
        axes.scatter(places, values, s=18, alpha=0.6, color=ARM_COLORS[arm], edgecolors="none")
        # The labels grow apart, since the two percentiles may lie close together.
        for share, style, side in ((0.5, "-", "top"), (0.95, ":", "bottom")):
            value = percentile(values, share)
            axes.plot([place - 0.3, place + 0.3], [value, value], style, color="black", linewidth=1.2)
            axes.annotate(f"p{share * 100:.0f} {value:.0f} ms", (place + 0.32, value), va=side, fontsize=9)
    axes.set_xticks(range(len(Arm)), [ARM_NAMES[arm] for arm in Arm])
    axes.set_xlim(-0.5, len(Arm) - 0.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time to first token, ms")
    axes.set_title("Time to first token, one point per question")
    axes.grid(axis="y", alpha=0.3)


def _draw_tokens(axes: Axes, measured: dict[Arm, list[Answer]]) -> None:
    floors = [0.0 for _ in Arm]
    for label, field, color in SOURCES:
        heights = [mean([getattr(answer, field) for answer in measured[arm]]) for arm in Arm]
        bars = axes.bar([ARM_NAMES[arm] for arm in Arm], heights, 0.55, floors, label=label, color=color)
        shown = [f"{height:.0f}" if height >= 1 else "" for height in heights]
        axes.bar_label(bars, shown, label_type="center", color="white", fontsize=10)
        floors = [floor + height for floor, height in zip(floors, heights, strict=True)]
    axes.set_ylim(0, max(floors) * 1.2)
    axes.set_ylabel("prompt tokens per request, mean")
    axes.set_title("Where the prompt's tokens came from")
    axes.legend(loc="upper center", ncols=3, fontsize=9, frameon=False)


def _draw_kill(axes: Axes, kill: KillRun) -> None:
    load = [row for row in kill.rows if row.phase is Phase.LOAD]
    began = min(row.started_seconds for row in load)
    for label, reused, color in (("read the suffix store", True, "#1f6f8b"), ("did not", False, "#b5651d")):
        shown = [(row, row.answer) for row in load if row.answer and bool(row.suffix_tokens) is reused]
        axes.scatter(
            [row.started_seconds - began for row, _ in shown],
            [answer.ttft_seconds * 1000 for _, answer in shown],
            s=18,
            alpha=0.7,
            color=color,
            edgecolors="none",
            label=label,
        )
    axes.axvline(kill.answered - began, color="black", linewidth=1.2)
    axes.annotate(
        "the kill switch has answered",
        (kill.answered - began, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9,
    )
    axes.set_xlim(-0.5, LOAD_SECONDS + 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("start of the request, s since the load began")
    axes.set_ylabel("time to first token, ms")
    axes.set_title("Kill switch under load: four clients through the gateway")
    axes.legend(loc="upper left", fontsize=9)
    axes.grid(alpha=0.3)
