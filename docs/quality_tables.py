"""The quality benchmark's result files as tables of the benchmarks' page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.quality.summary import ALL
from sternpost_gateway.bench.report import table

FILES: Final[Mapping[str, str]] = {
    "quality": "Tasks that are always asked",
    "quality_further": "Further tasks: which tool a message needs, where in a text a thing was found, and "
    "whether a text gives an answer at all",
}
"""Result files, and what their tables are about."""

MEANING: Final = """\
Share of right answers, chosen among the task's own, and in brackets how many of exact prefill's were lost
and won; p is of a sign test on all of them. Divergence is KL per token, as a multiple of what rounding to
bfloat16 does. An arm is how the tail's KV came about; `+match` computes afresh what the middle points at.
"""

FORM: Final = """\
The form of the same answers: `named` begin as one that the tail allows (for `tool`, that is the validity of a
tool call), `ended` end behind one word where the tail allows no more.
"""

KEPT: Final = ("named", "ended")
"""What a form's figures are about."""

Rows = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""Rows by task, arm and metric."""


def quality_tables(files: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the section: a table for each result file that is there."""
    yield "## Does reuse change the answers?\n"
    found = [name for name in FILES if name in files]
    if not found:
        yield "Not recorded yet.\n"
        return
    yield MEANING
    for name in found:
        document = files[name]
        yield f"{FILES[name]} ({document['date'][:10]}, commit {document['commit'][:12]}):\n"
        rows = {_place(row): row for row in document["rows"]}
        yield _accuracies(rows) + "\n"
        yield from _forms(rows)


def _accuracies(rows: Rows) -> str:
    tasks, arms = _tasks(rows), _arms(rows)
    count = rows[ALL, arms[0], "accuracy"]["n"]
    head = ("arm", *tasks, f"all {count}", "p", "divergence (95%)")
    return table(head, [_row(rows, arm, tasks) for arm in arms])


def _forms(rows: Rows) -> Iterator[str]:
    """Yield a table of what is recorded of the answers' form; older files hold nothing of it."""
    columns = [
        (task, kept)
        for kept in KEPT
        for task in _tasks(rows)
        if any((task, arm, f"{kept}_share") in rows for arm in _arms(rows))
    ]
    if not columns:
        return
    yield FORM
    head = ("arm", *(f"{task} {kept}" for task, kept in columns))
    cells = [
        [arm, *(_share(rows, task, arm, f"{kept}_share", kept) for task, kept in columns)]
        for arm in _arms(rows)
    ]
    yield table(head, cells) + "\n"


def _tasks(rows: Rows) -> list[str]:
    return [task for task in dict.fromkeys(task for task, _, _ in rows) if task != ALL]


def _arms(rows: Rows) -> list[str]:
    return list(dict.fromkeys(arm for _, arm, _ in rows))


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    task, _, arm = row["workload"].partition(": ")
    return task, arm, row["metric"]


def _row(rows: Rows, arm: str, tasks: Sequence[str]) -> Sequence[str]:
    return [
        arm,
        *(_share(rows, task, arm, "accuracy", "flips") for task in (*tasks, ALL)),
        _number(rows.get((ALL, arm, "flips_p_value"))),
        _divergence(rows.get((ALL, arm, "kl_ratio_to_bf16"))),
    ]


def _share(rows: Rows, task: str, arm: str, metric: str, flips: str) -> str:
    """Return a share with what was lost and won, where that is recorded."""
    lost, won = (rows.get((task, arm, f"{flips}_{end}")) for end in ("lost", "won"))
    shown = _number(rows.get((task, arm, metric)))
    return f"{shown} ({lost['value']:.0f}/{won['value']:.0f})" if shown and lost and won else shown


def _number(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['value']:.3f}"


def _divergence(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['value']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
