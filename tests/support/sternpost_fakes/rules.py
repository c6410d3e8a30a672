"""The chart's rules as Prometheus reads them, and what they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import helm_python as helm
import yaml

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "charts" / "sternpost"

SLOS: Final[tuple[dict[str, Any], ...]] = (
    {"name": "availability", "kind": "Availability", "objective": 0.999},
    {"name": "first-token", "kind": "FirstToken", "seconds": 2.5, "objective": 0.95},
    {"name": "inter-token", "kind": "InterToken", "seconds": 1, "objective": 0.95, "policy": "a/.*"},
    {"name": "shadow-agreement", "kind": "ShadowAgreement", "objective": 0.95},
    {"name": "full-prefill", "kind": "FullPrefill", "objective": 0.5},
)
"""One objective of each kind."""

METRIC: Final = re.compile(r"\b(?:[a-z_]+:)?(?:sternpost|vllm)[a-z_:0-9]*")
"""A metric's or a recording rule's name within a query; label names that begin so are not metrics."""

LABELS: Final = frozenset({"sternpost_dev_pool"})


def rule_groups(**values: Any) -> list[dict[str, Any]]:
    """Return the groups of the chart's PrometheusRule; `values` are added to those of `monitoring`."""
    monitoring = {"prometheusRule": {"enabled": True}, "slos": list(SLOS)} | values
    rendered = helm.Chart.load(CHART).render({"monitoring": monitoring}, name="sp", namespace="serving")
    text = rendered["sternpost/templates/monitoring.yaml"]
    (rule,) = (item for item in yaml.safe_load_all(text) if item and item["kind"] == "PrometheusRule")
    groups: list[dict[str, Any]] = rule["spec"]["groups"]
    return groups


def rules(groups: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of a kind, `alert` or `record`."""
    yield from (rule for group in groups for rule in group["rules"] if kind in rule)


def names_in(query: str) -> set[str]:
    """Return the metrics and recording rules that a query names."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', query))) - LABELS


def groups_for(alert: str, groups: list[dict[str, Any]], *, slo: str = "") -> list[dict[str, Any]]:
    """Return the groups that an alert depends on, with its own: evaluating all of them takes minutes."""
    chosen = [
        group
        for group in groups
        if any(rule.get("alert") == alert for rule in group["rules"])
        and (not slo or group["name"].endswith(f"-{slo}"))
    ]
    needed = {name for group in chosen for rule in group["rules"] for name in names_in(rule["expr"])}
    below = [
        group
        for group in groups
        if group not in chosen and any(rule.get("record") in needed for rule in group["rules"])
    ]
    return below + chosen if not slo else chosen
