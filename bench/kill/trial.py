"""What one trial shows, and the figures that many of them make; all of it pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sternpost_gateway.bench.stats import percentile

P50_BOUND_SECONDS: Final = 0.3
P99_BOUND_SECONDS: Final = 1.0
BLACKHOLE_BOUND_SECONDS: Final = 7.0
"""The bounds of the design: from the order's answer to the last request that read the suffix store."""

TTFT_RATIO_BOUND: Final = 1.1
"""Of the 99th percentile in the time after a kill, over that before."""


@dataclass(frozen=True, slots=True)
class Trial:
    """
    One kill.

    `seconds` passed from the order's answer to the arrival of the last request that still read the suffix
    store, 0 where that came before the answer. `requests` were answered meanwhile, `failed` were not.
    """

    way: str
    seconds: float
    requests: int
    failed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its bound."""

    workload: str
    metric: str
    value: float
    unit: str
    n: int
    bound: float

    @property
    def holds(self) -> bool:
        """Say whether the figure is within its bound."""
        return self.value <= self.bound

    def to_row(self) -> dict[str, Any]:
        """Return the figure as a row of a results file."""
        return {
            "workload": self.workload,
            "metric": self.metric,
            "value": round(self.value, 4),
            "unit": self.unit,
            "n": self.n,
            "bound": self.bound,
            "holds": self.holds,
        }


def last_read(reads: Sequence[float], ordered_at: float) -> float:
    """Return the seconds from an order's answer to the last read after it, 0 where there is none."""
    return max((at - ordered_at for at in reads), default=0.0) if reads else 0.0


def verdicts(trials: Sequence[Trial]) -> list[Verdict]:
    """Return the figures of each way, in the order in which the ways first come."""
    found = []
    for way in dict.fromkeys(trial.way for trial in trials):
        own = [trial for trial in trials if trial.way == way]
        seconds = [max(0.0, trial.seconds) for trial in own]
        failed = sum(trial.failed for trial in own)
        dead = way.endswith("blackhole")
        p50_bound = BLACKHOLE_BOUND_SECONDS if dead else P50_BOUND_SECONDS
        p99_bound = BLACKHOLE_BOUND_SECONDS if dead else P99_BOUND_SECONDS
        found += [
            Verdict(way, "p50_s", percentile(seconds, 0.5), "s", len(own), p50_bound),
            Verdict(way, "p99_s", percentile(seconds, 0.99), "s", len(own), p99_bound),
            Verdict(way, "failed_requests", failed, "1", sum(trial.requests for trial in own), 0),
        ]
    return found


def ttft_verdict(before: Sequence[float], after: Sequence[float]) -> Verdict:
    """Return how the 99th percentile of the time to the first byte changed by a kill."""
    ratio = percentile(after, 0.99) / percentile(before, 0.99)
    return Verdict("k1_load", "ttft_p99_ratio", ratio, "1", len(after), TTFT_RATIO_BOUND)


def table(found: Sequence[Verdict]) -> list[str]:
    """Return the figures as lines of Markdown."""
    lines = ["| way | figure | value | bound | n | |", "|---|---|---|---|---|---|"]
    return lines + [
        f"| {item.workload} | {item.metric} | {item.value:.3f} | {item.bound:g} | {item.n}"
        f" | {'holds' if item.holds else 'FAILS'} |"
        for item in found
    ]
