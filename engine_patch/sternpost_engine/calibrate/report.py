"""The table on the terminal, and what it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from sternpost_core.policy import BUCKETS
from sternpost_engine.calibrate.advice import FLOOR_RATIO_MAX, TOP1_LOSS_MAX, keeps_within, snippet
from sternpost_engine.calibrate.arms import Arm
from sternpost_engine.calibrate.scores import Figures
from sternpost_engine.calibrate.trial import Outcome

FEW_MIDDLES: Final = 12
"""With fewer, one middle moves the mean much."""

COLUMNS: Final = (
    "tail's KV",
    "last",
    "head",
    "match",
    "KL first token, mean / p95",
    "KL per token, mean / p95",
    "x floor",
    "top-1",
    "greedy",
    "tokens",
    "time",
)


def print_report(outcome: Outcome, console: Console) -> None:
    """Print the table, what it means, and the advised part of a policy."""
    console.print(make_table(outcome))
    for line in remarks(outcome):
        console.print(line, highlight=False)
    if outcome.advice is not None:
        console.print()
        console.print(snippet(outcome.advice.cache), markup=False, highlight=False, end="")


def make_table(outcome: Outcome) -> Table:
    """Return one row per arm; those within the limits are green, the advised one is bold."""
    table = Table(title=_title(outcome), caption=_caption(), title_justify="left", caption_justify="left")
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if place else "left", no_wrap=not place)
    for before, figures in zip((None, *outcome.figures), outcome.figures, strict=False):
        if before is not None and (before.arm.source, before.arm.anchored) != (
            figures.arm.source,
            figures.arm.anchored,
        ):
            table.add_section()
        table.add_row(*cells(figures), style=_style(figures, outcome))
    return table


def cells(figures: Figures) -> tuple[str, ...]:
    """Return an arm's row, one text per column."""
    arm = figures.arm
    reused = not arm.exact
    return (
        _source(arm),
        str(arm.last) if reused else "",
        str(arm.head) if reused else "",
        ("on" if arm.match else "off") if reused else "",
        f"{figures.kl_first_mean:.4f} / {figures.kl_first_p95:.4f}",
        f"{figures.kl_mean:.4f} / {figures.kl_p95:.4f}",
        f"{figures.floor_ratio:.1f}",
        f"{figures.top1:.3f} ({figures.top1_delta:+.3f})",
        f"{figures.greedy:.2f}",
        f"{figures.prefill_ratio:.3f}",
        "" if figures.time_ratio is None else f"{figures.time_ratio:.3f}",
    )


def remarks(outcome: Outcome) -> Iterator[Line]:
    """Yield what a person should know about the figures, and what they speak for."""
    tested = outcome.figures[0].middles
    if tested < outcome.wanted:
        yield Line(f"Time for {tested} of {outcome.wanted} middles; --time-budget gives more.", "yellow")
    elif tested < FEW_MIDDLES:
        yield Line(f"Only {tested} middles: the figures are a hint.", "yellow")
    if outcome.generic:
        yield Line(
            "Middles are the generic set, a start; --middles with texts of your own calibrates better.",
            "yellow",
        )
    if max(figures.arm.last for figures in outcome.figures) < outcome.closing:
        yield Line(
            f"The tail's last paragraph takes {outcome.closing} tokens: --last should cover it.", "yellow"
        )
    if len(outcome.frame.tail) < BUCKETS[0]:
        yield Line(f"Tails of under {BUCKETS[0]} tokens are not reused: there is little to save.", "yellow")
    if any(figures.arm.anchored for figures in outcome.figures):
        yield Line(
            "Anchored rows are a warning: the gap alone changes the answers. Use mode Rotate.", "yellow"
        )
    yield _verdict(outcome)


def _verdict(outcome: Outcome) -> Line:
    if outcome.advice is None:
        return Line("No settings to advise: include --last 32 or more and --match above 0.", "bold yellow")
    figures = outcome.advice.figures
    if outcome.advice.within:
        return Line(
            f"Advised: {figures.arm}. Judge a canary on your own tasks before you trust it.", "bold green"
        )
    return Line(
        f"Nothing is within the limits. Closest: {figures.arm}, {figures.floor_ratio:.1f} x floor. "
        "Try middles of your own, a larger --last, or leave this tail exact.",
        "bold red",
    )


def _title(outcome: Outcome) -> str:
    tail = len(outcome.frame.tail)
    means = ", ".join(f"{count} of about {length}" for length, count in outcome.samples.items())
    return (
        f"Tail of {tail} tokens, {outcome.figures[0].middles} held-out middles, "
        f"means over middles: {means or 'none'} tokens"
    )


def _caption() -> str:
    return (
        "KL in nats against the exact answer in float32; x floor: per token, over exact bfloat16.\n"
        "top-1: likeliest token equal (less bfloat16's own). greedy: leading tokens equal.\n"
        "tokens, time: of full prefill behind the prefix.\n"
        f"Green: at most {FLOOR_RATIO_MAX:g} x floor, top-1 at most {TOP1_LOSS_MAX:g} below bfloat16's."
    )


def _source(arm: Arm) -> str:
    return f"{arm.source.value}, anchored" if arm.anchored and not arm.exact else arm.source.value


def _style(figures: Figures, outcome: Outcome) -> str:
    if figures.arm.exact or figures.arm.anchored:
        return "dim"
    colour = "green" if keeps_within(figures) else ""
    advised = outcome.advice is not None and outcome.advice.figures is figures
    return f"bold {colour}".strip() if advised else colour
