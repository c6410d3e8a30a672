"""What the benchmark says: rows for the result file, a table for people, and which bounds hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.routing.drive import Outcome

OURS: Final = "sternpost"
LEAST_LOADED: Final = "least_loaded"

GAP_MAX: Final = 0.03
IMBALANCE_MAX: Final = 1.3
NO_REUSE_RATIO_MAX: Final = 1.03
"""The bounds that are set: reuse to the oracle, busiest engine to the mean, and latency without any reuse."""

STEADY: Final = frozenset({"shared_bursts", "sessions", "hot_prefix", "no_reuse"})
"""The workloads that the bounds are for; in the others engines come and go."""

Results = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by workload, then by router."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound, and whether it holds."""

    text: str
    holds: bool


def rows(results: Results, peers: frozenset[str]) -> list[dict[str, Any]]:
    """Return one row for each figure."""
    return [row for workload, outcomes in results.items() for row in _rows(workload, outcomes, peers)]


def bounds(results: Results, peers: frozenset[str]) -> list[Bound]:
    """Return the bounds for this project's gateway."""
    found = []
    for workload, outcomes in results.items():
        ours = outcomes[OURS]
        if workload not in STEADY:
            continue
        found.append(Bound(f"{workload}: reuse within {GAP_MAX} of the oracle", ours.gap <= GAP_MAX))
        found.append(Bound(f"{workload}: imbalance <= {IMBALANCE_MAX}", ours.imbalance <= IMBALANCE_MAX))
        for peer in sorted(peers & outcomes.keys()):
            holds = ours.reuse_share >= outcomes[peer].reuse_share - GAP_MAX
            found.append(Bound(f"{workload}: reuse not below {peer}'s", holds))
        if ratio := _peer_ratio(outcomes, peers):
            found.append(Bound(f"{workload}: latency not above the best peer's", ratio <= 1.0))
    if "no_reuse" in results:
        ratio = _ratio(results["no_reuse"], OURS, LEAST_LOADED)
        found.append(Bound("no_reuse: latency within 3% of least-loaded", ratio <= NO_REUSE_RATIO_MAX))
    return found


def table(results: Results) -> Iterator[str]:
    """Yield the lines of a table."""
    columns = ("reuse", "oracle", "imbal.", "p50 ms", "p95 ms", "failed")
    yield f"{'workload':<14}{'router':<13}" + "".join(f"{column:>8}" for column in columns)
    for workload, outcomes in results.items():
        for router, one in outcomes.items():
            yield (
                f"{workload:<14}{router:<13}{one.reuse_share:>8.3f}{one.oracle_share:>8.3f}"
                f"{one.imbalance:>8.2f}{one.ttft_p50 * 1000:>8.1f}{one.ttft_p95 * 1000:>8.1f}{one.failed:>8}"
            )


def _rows(workload: str, outcomes: Mapping[str, Outcome], peers: frozenset[str]) -> Iterator[dict[str, Any]]:
    for router, one in outcomes.items():
        for metric, value, unit in (
            ("reuse_share", one.reuse_share, "1"),
            ("reuse_gap_to_oracle", one.gap, "1"),
            ("imbalance", one.imbalance, "1"),
            ("ttft_p50", one.ttft_p50, "s"),
            ("ttft_p95", one.ttft_p95, "s"),
            ("failed", float(one.failed), "1"),
        ):
            yield {
                "workload": workload,
                "router": router,
                "metric": metric,
                "value": round(value, 5),
                "unit": unit,
                "n": one.requests,
            }
    if ratio := _peer_ratio(outcomes, peers):
        yield {
            "workload": workload,
            "router": OURS,
            "metric": "ttft_ratio_best_peer",
            "value": round(ratio, 4),
            "unit": "1",
            "n": outcomes[OURS].requests,
        }


def _peer_ratio(outcomes: Mapping[str, Outcome], peers: frozenset[str]) -> float | None:
    """Return our median latency over that of the fastest peer, None where there is no peer."""
    known = [outcomes[peer].ttft_p50 for peer in peers if peer in outcomes]
    return outcomes[OURS].ttft_p50 / min(known) if known else None


def _ratio(outcomes: Mapping[str, Outcome], router: str, other: str) -> float:
    return outcomes[router].ttft_p50 / outcomes[other].ttft_p50
