"""All runs as figures, and the bounds that they are held to; all of it pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.common.results import Bound, Row, find_row, row_of
from bench.gateway.arms import LITELLM, OURS, SILENT, SMG
from bench.gateway.load import Sample
from bench.gateway.upstream import EVENTS
from sternpost_gateway.bench.stats import estimate, estimate_paired, mean_ratio, percentile

SEED: Final = 8
"""Of the bootstrap, so that the same runs always give the same intervals."""

DIRECT: Final = "direct"
"""The arm without a gateway, which every hop is measured against."""

STREAM: Final = "stream"
IDLE: Final = "idle_streams"
MS: Final = 1000.0

Samples = Mapping[str, Mapping[str, Sequence[Sample]]]
"""The runs of each workload, by arm, in the order of the rounds."""

BOUNDS: Final = (
    Bound(workload="hop_5k_1", metric="sternpost_added_p50_ms", limit=0.7),
    Bound(workload="hop_5k_16", metric="sternpost_rps_per_core", limit=1500, at_most=False),
    Bound(workload="hop_5k_16", metric="rps_ratio_litellm", limit=15, at_most=False),
    Bound(workload="hop_5k_16", metric="rps_ratio_smg", limit=0.25, at_most=False),
    Bound(workload="hop_5k_16", metric="rps_ratio_sternpost_silent", limit=0.97, at_most=False),
)
"""What the gateway is to reach, with the whole pipeline at work."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A bound with its figure, None where this run has none."""

    bound: Bound
    row: Row | None

    @property
    def holds(self) -> bool:
        """Tell whether the figure is there and reaches the bound."""
        return self.row is not None and self.bound.holds(self.row.value)


def summarize(samples: Samples, idle: Mapping[str, float]) -> list[Row]:
    """Return all figures: of each workload and arm, and what an idle stream holds, by arm, in bytes."""
    rows = [row for workload, arms in samples.items() for row in workload_rows(workload, arms)]
    rows += [Row(workload=IDLE, metric=f"{arm}_bytes", value=held, unit="B") for arm, held in idle.items()]
    return rows


def workload_rows(workload: str, arms: Mapping[str, Sequence[Sample]]) -> list[Row]:
    """Return the figures of one workload."""
    rows = [row for arm, samples in arms.items() for row in _arm_rows(workload, arm, samples, arms[DIRECT])]
    for peer in (LITELLM, SMG, SILENT):
        if peer in arms and OURS in arms:
            rows.append(_rate_ratio(workload, f"rps_ratio_{peer}", arms[OURS], arms[peer]))
    return rows


def judge(rows: Sequence[Row]) -> tuple[Judged, ...]:
    """Hold the figures to all bounds."""
    return tuple(Judged(bound, find_row(rows, bound.workload, bound.metric)) for bound in BOUNDS)


def _arm_rows(workload: str, arm: str, samples: Sequence[Sample], direct: Sequence[Sample]) -> list[Row]:
    rows = [
        _row(workload, f"{arm}_p50_ms", samples, lambda sample: sample.p50 * MS, "ms"),
        _row(workload, f"{arm}_p99_ms", samples, lambda sample: sample.p99 * MS, "ms"),
        _row(workload, f"{arm}_rps", samples, lambda sample: sample.rate, "1/s"),
        Row(workload=workload, metric=f"{arm}_failed", value=sum(sample.failed for sample in samples)),
    ]
    if arm == DIRECT:
        return rows
    rows.append(_row(workload, f"{arm}_rps_per_core", samples, lambda sample: sample.rate_per_core, "1/s"))
    rows += [
        _added(workload, f"{arm}_added_p50_ms", samples, direct, lambda sample: sample.p50),
        _added(workload, f"{arm}_added_p99_ms", samples, direct, lambda sample: sample.p99),
    ]
    if workload.startswith(STREAM):
        rows.append(
            _row(
                workload,
                f"{arm}_events_per_core",
                samples,
                lambda sample: sample.rate_per_core * EVENTS,
                "1/s",
            )
        )
    return rows


def _row(
    workload: str, metric: str, samples: Sequence[Sample], read: Callable[[Sample], float], unit: str
) -> Row:
    figure = estimate([read(sample) for sample in samples], _median, Random(SEED))
    return row_of(workload, metric, figure, unit)


def _added(
    workload: str,
    metric: str,
    samples: Sequence[Sample],
    direct: Sequence[Sample],
    read: Callable[[Sample], float],
) -> Row:
    """Return how much later answers come than without the gateway in the same round."""
    added = [(read(one) - read(other)) * MS for one, other in zip(samples, direct, strict=True)]
    return row_of(workload, metric, estimate(added, _median, Random(SEED)), "ms")


def _rate_ratio(workload: str, metric: str, ours: Sequence[Sample], theirs: Sequence[Sample]) -> Row:
    """Return answers per second of CPU time, ours over a peer's: each has one core at most."""
    figure = estimate_paired(
        [sample.rate_per_core for sample in ours],
        [sample.rate_per_core for sample in theirs],
        mean_ratio,
        Random(SEED),
    )
    return row_of(workload, metric, figure)


def _median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)
