"""The figures as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from bench.demo.report import table
from bench.quality.arms import EXACT, FLOOR, Arm
from bench.quality.summary import ALL, LAST_TEXT, Figures, Kept, bounds_of
from sternpost_gateway.bench.machine import Machine


def report(figures: Sequence[Figures], machine: Machine, date: datetime, settings: str) -> str:
    """Return the whole report."""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    paragraphs = [
        "# Quality of reused tails: the figures",
        "Written by `make bench-quality`; [what they mean](../quality.md) is written by hand.",
        f"{date:%d %B %Y}, commit {machine.commit}, on {machine}. Python {machine.python}, {versions}.",
        settings,
        "## Accuracy",
        "Share of right answers; against exact prefill, answers lost/won.",
        _by_task(figures, _accuracy),
        "## Divergence from exact prefill",
        "KL per token of the exact answer, as a multiple of bfloat16's own; in brackets the 95% bootstrap "
        "interval. The bfloat16 row is in thousandths of a nat.",
        _by_task(figures, _divergence),
        "## Top-1 agreement with exact prefill",
        _by_task(figures, lambda figure: f"{figure.top1.value:.3f}"),
        "## Form of the answers",
        "Share of answers whose likeliest first token begins one of the answers that the tail allows (for "
        "`tool` the validity of a tool call); against exact prefill, lost/won; in brackets the mean "
        "probability of such a token.",
        _by_task(figures, _named),
        *_endings(figures),
        "## All tasks together",
        _together(figures),
        "## Bounds",
        f"The share of the tail that is computed afresh counts as kept where it is no more than the "
        f"{LAST_TEXT} tokens, for these tails are short.",
        bounds_table(figures),
    ]
    return "\n\n".join(paragraphs) + "\n"


def bounds_table(figures: Sequence[Figures]) -> str:
    """Return each reusing arm's bounds, as how many tasks keep them, and by name those that do not."""
    arms = [arm for arm in arms_of(figures) if arm not in (EXACT, FLOOR)]
    metrics = [verdict.bound for verdict in bounds_of(figures[0])]
    rows = [("arm", *(f"{bound.metric} {bound}" for bound in metrics))]
    for arm in arms:
        of_arm = [figure for figure in figures if figure.arm is arm and figure.task != ALL]
        cells = []
        for place in range(len(metrics)):
            missed = [figure.task for figure in of_arm if not bounds_of(figure)[place].holds]
            cells.append("kept by all" if not missed else f"missed by {', '.join(missed)}")
        rows.append((arm.name, *cells))
    return table(rows)


def arms_of(figures: Sequence[Figures]) -> list[Arm]:
    """Return the arms that there are figures of, in their order."""
    return list(dict.fromkeys(figure.arm for figure in figures))


def _by_task(figures: Sequence[Figures], show: Callable[[Figures], str]) -> str:
    tasks = list(dict.fromkeys(figure.task for figure in figures))
    cells = {(figure.arm.name, figure.task): show(figure) for figure in figures}
    return table(
        [
            ("arm", *tasks),
            *((arm.name, *(cells[arm.name, task] for task in tasks)) for arm in arms_of(figures)),
        ]
    )


def _accuracy(figure: Figures) -> str:
    if figure.arm is EXACT:
        return f"{figure.accuracy.value:.3f}"
    return f"{figure.accuracy.value:.3f} ({figure.flips.lost}/{figure.flips.won})"


def _named(figure: Figures) -> str:
    return f"{_kept(figure.named, figure.arm)} [{figure.named_mass.value:.3f}]"


def _endings(figures: Sequence[Figures]) -> Iterator[str]:
    asked = [figure for figure in figures if figure.ended is not None]
    if not asked:
        return
    yield (
        "Share of answers that end behind their first word, where the tail allows one alone: the likeliest "
        "token behind the exact arm's word is a full stop or the end; against exact prefill, lost/won."
    )
    yield _by_task(asked, lambda figure: _kept(figure.ended, figure.arm) if figure.ended else "")


def _kept(kept: Kept, arm: Arm) -> str:
    if arm is EXACT:
        return f"{kept.share.value:.3f}"
    return f"{kept.share.value:.3f} ({kept.flips.lost}/{kept.flips.won})"


def _divergence(figure: Figures) -> str:
    if figure.arm is EXACT:
        return "0"
    if figure.arm is FLOOR:
        return f"{figure.kl.value * 1000:.2f}"
    ratio = figure.kl_ratio
    return f"{ratio.value:.1f} ({ratio.low:.1f} to {ratio.high:.1f})"


def _together(figures: Sequence[Figures]) -> str:
    head = ("arm", "accuracy (Wilson 95%)", "lost/won", "sign test p", "tail computed", "prompt computed")
    rows = [head]
    for figure in (figure for figure in figures if figure.task == ALL):
        accuracy = figure.accuracy
        rows.append(
            (
                figure.arm.name,
                f"{accuracy.value:.3f} ({accuracy.low:.3f} to {accuracy.high:.3f})",
                f"{figure.flips.lost}/{figure.flips.won}",
                f"{figure.flips.p_value:.3f}",
                f"{figure.recompute_share.value:.3f}",
                f"{figure.computed_share.value:.3f}",
            )
        )
    return table(rows)
