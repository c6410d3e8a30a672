"""
The operator's metrics, on a registry that is passed in.

Labels are kinds, verbs, outcomes, and policies by name with the phase of their rollout.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sternpost_operator.rollout import Phase

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
        self.policy_phase = Gauge(
            "sternpost_operator_policy_phase",
            "1 for the phase that a policy's rollout is in.",
            ["policy", "phase"],
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

    def show_phase(self, policy: str, phase: str | None) -> None:
        """Show the only phase that a policy by its full name is in; None: the policy is gone."""
        for other in Phase:
            with suppress(KeyError):
                self.policy_phase.remove(policy, other.value)
        if phase is not None:
            self.policy_phase.labels(policy, phase).set(1)
