"""The figures as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from bench.common.results import Row, find_row
from bench.demo.report import table
from bench.gateway.summary import DIRECT, IDLE, Judged
from bench.gateway.upstream import EVENT_SECONDS, EVENTS
from sternpost_gateway.bench.machine import Machine

UNKNOWN = ""


def report(
    rows: Sequence[Row],
    judged: Sequence[Judged],
    missing: Mapping[str, str],
    machine: Machine,
    date: datetime,
) -> str:
    """Return the whole report."""
    listed = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    paragraphs = [
        "# The gateway: what the hop costs",
        "Written by `make bench-gateway`.",
        f"{date:%d %B %Y}, commit {machine.commit}, on {machine}. Python {machine.python}, {listed}.",
        "All gateways stood before the same mock engine, which answers at once from memory, and got the same "
        "bodies from one load generator (wrk, closed loop), in turn, round after round. Each gateway ran on "
        "one core, the mock engine on the others. A name's last number is that of the "
        f"connections. A stream has {EVENTS} events, one every {EVENT_SECONDS * 1000:g} ms.",
        "`sternpost` does everything to these prompts that it can: tools are pinned, a clock is moved out of "
        "the prefix, the tail is moved, salted, hinted and metered; `sternpost_unmatched` has a policy for "
        "another model, and `sternpost_silent` is the first without metrics. Latencies are of whole answers, "
        "`added` is the difference to the arm without a gateway in the same round, and rates per core are "
        "answers per second of a gateway's CPU time. "
        "Intervals are bootstrapped over rounds.",
        *(f"`{name}` is not compared: {reason}." for name, reason in missing.items()),
        "## Bounds",
        bounds_table(judged),
        *(_workload(rows, name) for name in dict.fromkeys(row.workload for row in rows) if name != IDLE),
        "## Memory of an idle stream",
        memory_table(rows),
    ]
    return "\n\n".join(paragraphs) + "\n"


def bounds_table(judged: Sequence[Judged]) -> str:
    """Return every bound with its figure and the verdict."""
    head = ("workload", "metric", "bound", "measured", "95% interval", "")
    return table([head, *(_bound_cells(item) for item in judged)])


def memory_table(rows: Sequence[Row]) -> str:
    """Return what an idle stream holds in each gateway."""
    found = [
        (row.metric.removesuffix("_bytes"), f"{row.value / 1024:.1f}") for row in rows if row.workload == IDLE
    ]
    return table([("gateway", "KiB"), *found]) if found else "Not measured."


def _bound_cells(item: Judged) -> tuple[str, ...]:
    bound, row = item.bound, item.row
    if row is None:
        return (bound.workload, bound.metric, str(bound), "not run", UNKNOWN, UNKNOWN)
    verdict = "passed" if item.holds else "**missed**"
    return (bound.workload, bound.metric, str(bound), f"{row.value:.2f}", _interval(row), verdict)


def _workload(rows: Sequence[Row], workload: str) -> str:
    names = [row.metric.removesuffix("_failed") for row in rows if _is_of(row, workload, "_failed")]
    head = ("gateway", "p50 ms", "p99 ms", "added p50", "added p99", "answers/s", "per core", "failed")
    suffixes = ("p50_ms", "p99_ms", "added_p50_ms", "added_p99_ms", "rps", "rps_per_core", "failed")
    lines = [(name, *(_cell(rows, workload, f"{name}_{suffix}") for suffix in suffixes)) for name in names]
    note = (
        "\n\nWithout a gateway the mock engine and the load generator alone limit the rate."
        if DIRECT in names and workload == "hop_5k_16"
        else ""
    )
    return f"## {workload}\n\n{table([head, *lines])}{note}"


def _is_of(row: Row, workload: str, suffix: str) -> bool:
    return row.workload == workload and row.metric.endswith(suffix)


def _cell(rows: Sequence[Row], workload: str, metric: str) -> str:
    row = find_row(rows, workload, metric)
    if row is None:
        return UNKNOWN
    return f"{row.value:.0f}" if row.value >= 100 or row.unit == "1" else f"{row.value:.2f}"


def _interval(row: Row) -> str:
    return UNKNOWN if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
