"""The operator's metrics, on a registry that is passed in; labels are kinds, verbs and outcomes only."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

RECONCILE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds; a decision alone takes a millisecond, one that asks engines as long as they take."""


class OperatorMetrics:
    """All metrics of one operator; each attribute is one metric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconcile_seconds = Histogram(
            "sternpost_operator_reconcile_seconds",
            "How long looking at one object took.",
            ["kind"],
            buckets=RECONCILE_BUCKETS,
            registry=registry,
        )
        self.reconciles = Counter(
            "sternpost_operator_reconciles_total",
            "Looks at objects, by what came of them.",
            ["kind", "outcome"],
            registry=registry,
        )
        self.api_calls = Counter(
            "sternpost_operator_api_calls_total",
            "Requests to the API server, those of watches aside.",
            ["verb", "resource"],
            registry=registry,
        )
        self.queue_length = Gauge(
            "sternpost_operator_queue_length", "Objects that wait to be looked at.", registry=registry
        )
        self.missing_rights = Gauge(
            "sternpost_operator_missing_rights",
            "Rights that the operator lacks; its log names them.",
            registry=registry,
        )
        self.list_age_seconds = Gauge(
            "sternpost_operator_list_age_seconds", "Since everything was last listed.", registry=registry
        )
