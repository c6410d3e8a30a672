"""The rows of a benchmark, the bounds that they are held to, and the files that all benchmarks share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sternpost_gateway.bench.machine import Machine
from sternpost_gateway.bench.stats import Estimate

DIGITS: Final = 4
"""Decimal places of a result in its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure; `low` and `high` are the ends of its 95% interval, None where it has none."""

    workload: str
    metric: str
    value: float
    unit: str = "1"
    n: int = 1
    low: float | None = None
    high: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the row as it is written."""
        return {
            "workload": self.workload,
            "metric": self.metric,
            "value": _rounded(self.value),
            "unit": self.unit,
            "n": self.n,
            "low": _rounded(self.low),
            "high": _rounded(self.high),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a figure must reach: at most the limit, or at least."""

    workload: str
    metric: str
    limit: float
    at_most: bool = True

    def holds(self, value: float) -> bool:
        """Tell whether a figure reaches the bound; one that is no number does not."""
        return value <= self.limit if self.at_most else value >= self.limit

    def holds_in(self, rows: Sequence[Row]) -> bool:
        """Tell whether the bound's figure is among the rows and reaches it."""
        row = find_row(rows, self.workload, self.metric)
        return row is not None and self.holds(row.value)

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


def row_of(workload: str, metric: str, figure: Estimate, unit: str = "1") -> Row:
    """Return an estimate as a row."""
    return Row(
        workload=workload,
        metric=metric,
        value=figure.value,
        unit=unit,
        n=figure.count,
        low=figure.low,
        high=figure.high,
    )


def find_row(rows: Sequence[Row], workload: str, metric: str) -> Row | None:
    """Return the row of a workload's metric, where there is one."""
    return next((row for row in rows if (row.workload, row.metric) == (workload, metric)), None)


def write_results(
    name: str,
    rows: Sequence[Row],
    machine: Machine,
    date: datetime,
    path: Path,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write a benchmark's result file; `notes` are further facts that its figures depend on."""
    further = {"settings": dict(notes)} if notes else {}
    write_document(
        {**head_of(name, machine, date), **further, "rows": [row.to_mapping() for row in rows]}, path
    )


def head_of(name: str, machine: Machine, date: datetime) -> dict[str, Any]:
    """Return what every result file begins with: what was run, when, of which commit, and where."""
    return {
        "name": name,
        "date": date.isoformat(timespec="seconds"),
        "commit": machine.commit,
        "machine": str(machine),
        "versions": {"python": machine.python, **machine.versions},
    }


def write_document(document: Mapping[str, Any], path: Path) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _rounded(value: float | None) -> float | None:
    # JSON has no infinities, and a figure that is none has no place in a file.
    return round(value, DIGITS) if value is not None and math.isfinite(value) else None
