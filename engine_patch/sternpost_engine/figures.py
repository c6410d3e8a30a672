"""
The suffix store's figures, gathered from where they are counted, in the form that `stats` carries.

Counters are totals since the engine's start; `CounterDeltas` turns them into increases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sternpost_engine.index import Eviction, Found, SuffixIndex
from sternpost_engine.planner import TailPlanner
from sternpost_engine.sight import count_states

Figures = dict[str, dict[str, float]]
"""Per metric, a figure per label; the label is empty where the metric has none."""

LOST_BUILDS: Final = (Eviction.FAILED, Eviction.ABORTED)
"""The reasons for which a build ends without a live tail."""


def counters_of(planner: TailPlanner, tokens: Mapping[str, int]) -> Figures:
    """Return the counters; `tokens` are the prompt tokens of finished requests by source."""
    index = planner.index
    return {
        "lookups": _by_label(planner.lookups),
        "false_hits": {"": planner.lookups[Found.FALSE_HIT]},
        "isolation_violations": {"": planner.lookups[Found.FOREIGN]},
        "requests": _by_label(planner.requests),
        "tokens": _by_label(tokens),
        "evictions": _by_label(index.evictions),
        "inserts": {"": index.inserts},
        "builds": {
            "begun": index.begun,
            "completed": index.inserts,
            **{reason.value: index.evictions[reason] for reason in LOST_BUILDS},
        },
    }


def gauges_of(index: SuffixIndex, *, supported: bool) -> Figures:
    """Return the gauges."""
    return {
        "supported": {"": int(supported)},
        "pool_bytes": {"": index.used_bytes},
        "pool_budget_bytes": {"": index.budget_bytes},
        "bucket_bytes": {str(tokens): used for tokens, used in index.used_by_bucket.items()},
        "tails": _by_label(count_states(index)),
        "means": {"": sum(len(record.variants) for record in index.records())},
    }


def _by_label(counts: Mapping[Any, float]) -> dict[str, float]:
    return {str(label): count for label, count in counts.items()}
