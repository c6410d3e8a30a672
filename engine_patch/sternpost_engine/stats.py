"""
The suffix store's figures, on vLLM's own /metrics.

The scheduler side and the workers collect what one step did; vLLM carries it to the process that serves
/metrics, and there it is added to counters and histograms. Gauges carry the latest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

SECONDS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""From a GPU's copy to a slow CPU's."""

WAIT_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""A reader holds its tail for a few steps, in which others may be prefilled."""

SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Parts of a prompt."""


class SuffixStats(KVConnectorStats):
    """
    What happened since the last report.

    `data` holds `counters` (metric to label to increase), `gauges` (metric to label to value) and
    `observations` (metric to a list of values).
    """

    def reset(self) -> None:
        """Forget what was collected."""
        self.data = empty_data()

    def aggregate(self, other: KVConnectorStats) -> SuffixStats:
        """Add what another worker, or the scheduler side, collected in the same time."""
        counters = self.data["counters"]
        for metric, increases in other.data["counters"].items():
            mine = counters.setdefault(metric, {})
            for label, increase in increases.items():
                mine[label] = mine.get(label, 0) + increase
        for metric, values in other.data["gauges"].items():
            self.data["gauges"].setdefault(metric, {}).update(values)
        for metric, values in other.data["observations"].items():
            self.data["observations"].setdefault(metric, []).extend(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Sum up for vLLM's log line."""
        return {
            f"suffix {metric}": sum(increases.values()) for metric, increases in self.data["counters"].items()
        }

    def is_empty(self) -> bool:
        """Whether nothing was collected."""
        return not any(self.data.get(part) for part in ("counters", "gauges", "observations"))


def empty_data() -> dict[str, Any]:
    """The empty form of `SuffixStats.data`."""
    return {"counters": {}, "gauges": {}, "observations": {}}


class CounterDeltas:
    """Turns counters that only grow into increases since the last report."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def take(self, totals: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Return, per metric and label, what was added since the last call; nothing where nothing was."""
        increases: dict[str, dict[str, float]] = {}
        for metric, values in totals.items():
            for label, total in values.items():
                increase = total - self._last.get((metric, label), 0)
                if increase:
                    increases.setdefault(metric, {})[label] = increase
                    self._last[(metric, label)] = total
        return increases


class SuffixMetrics(KVConnectorPromMetrics):
    """Registers the suffix store's metrics beside vLLM's, and adds each report to them."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {name: self._make(self._counter_cls, *row) for name, row in _COUNTERS.items()}
        # Each report reaches one of vLLM's API servers: of what they all were told, the latest holds.
        self._gauges = {
            name: self._make(self._gauge_cls, *row, multiprocess_mode="mostrecent")
            for name, row in _GAUGES.items()
        }
        self._histograms = {
            name: self._make(self._histogram_cls, metric, text, "", buckets=buckets)
            for name, (metric, text, buckets) in _HISTOGRAMS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one report."""
        engine = self.per_engine_labelvalues[engine_idx]
        for name, increases in transfer_stats_data["counters"].items():
            for label, increase in increases.items():
                _child(self._counters[name], engine, label).inc(increase)
        for name, values in transfer_stats_data["gauges"].items():
            for label, value in values.items():
                _child(self._gauges[name], engine, label).set(value)
        for name, values in transfer_stats_data["observations"].items():
            for value in values:
                _child(self._histograms[name], engine, "").observe(value)

    def _make(self, kind: Callable[..., Any], name: str, text: str, label: str, **more: Any) -> Any:
        labels = [*self._labelnames, label] if label else list(self._labelnames)
        return kind(name=name, documentation=text, labelnames=labels, **more)


def _child(metric: Any, engine: list[object], label: str) -> Any:
    return metric.labels(*engine, label) if label else metric.labels(*engine)


_COUNTERS: Final = {
    "lookups": (
        "sternpost_suffix_lookups",
        "Lookups of a tail in the suffix store, by what was found.",
        "result",
    ),
    "requests": (
        "sternpost_suffix_requests",
        "Finished requests by what the suffix store did for them.",
        "reason",
    ),
    "tokens": (
        "sternpost_suffix_prompt_tokens",
        "Prompt tokens of finished requests by where their KV came from.",
        "source",
    ),
    "evictions": ("sternpost_suffix_evictions", "Tails retired from the suffix store, by reason.", "reason"),
    "inserts": ("sternpost_suffix_inserts", "Tails that became live.", ""),
    "false_hits": (
        "sternpost_suffix_false_hits",
        "Lookups that found the hash of other tokens: computed exactly, never used.",
        "",
    ),
    "isolation_violations": (
        "sternpost_suffix_isolation_violations",
        "Lookups that found the tail of another tenant or session: computed exactly, never used.",
        "",
    ),
    "builds": ("sternpost_suffix_builds", "Builds of tails, by how far they came.", "outcome"),
}
"""Per counter: name, help, and its own label besides vLLM's."""

_GAUGES: Final = {
    "pool_bytes": ("sternpost_suffix_pool_bytes", "Room of the tails held, in bytes.", ""),
    "pool_budget_bytes": ("sternpost_suffix_pool_budget_bytes", "Room that tails may take, in bytes.", ""),
    "bucket_bytes": ("sternpost_suffix_bucket_bytes", "Room of the tails of one length bucket.", "bucket"),
    "supported": ("sternpost_suffix_supported", "1 where the suffix store is used, 0 where not.", ""),
    "tails": ("sternpost_suffix_tails", "Tails held, by state.", "state"),
    "means": ("sternpost_suffix_means", "Calibrated means that are ready, over all tails.", ""),
}
"""Per gauge: name, help, and its own label besides vLLM's."""

_HISTOGRAMS: Final = {
    "copy_seconds": ("sternpost_suffix_copy_seconds", "Time to copy a step's tails to KV blocks.", SECONDS),
    "match_seconds": ("sternpost_suffix_match_seconds", "Time to match one request with the store.", SECONDS),
    "lock_wait_seconds": (
        "sternpost_suffix_lock_wait_seconds",
        "Time from a tail's retirement until its last reader let go.",
        WAIT_SECONDS,
    ),
    "hit_kv_share": (
        "sternpost_suffix_hit_kv_share",
        "Part of a hit's prompt whose KV came from the suffix store.",
        SHARES,
    ),
}
"""Per histogram: name, help, and the upper bounds of its buckets."""
