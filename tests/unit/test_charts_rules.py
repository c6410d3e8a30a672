"""Alerts, recording rules and their runbooks hold together, before any Prometheus reads them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import helm_python as helm
import pytest
import yaml

from docs.make_metrics import inventory
from sternpost_fakes.rules import CHART, ROOT, SLOS, names_in, rule_groups, rules
from sternpost_gateway.metrics import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS

RUNBOOKS: Final = ROOT / "docs" / "runbooks"

SEVERITIES: Final = {"critical", "warning"}

RECORD: Final = re.compile(r"[a-z_]+:sternpost_[a-z0-9_]+:[a-z0-9_]+")
"""Level, metric, operation."""


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    """The chart's rules with one objective of each kind."""
    return rule_groups()


def test_every_alert_says_what_it_is_about(groups: list[dict[str, Any]]) -> None:
    """A severity, a summary, a description with the figure, and where to read on."""
    for alert in rules(groups, "alert"):
        notes = alert["annotations"]
        assert alert["labels"]["severity"] in SEVERITIES, alert["alert"]
        assert notes["summary"] and "$value" in notes["description"], alert["alert"]
        assert f"docs/runbooks/{alert['alert']}.md" == notes["runbook_url"]


def test_every_alert_has_its_page_and_every_page_its_alert(groups: list[dict[str, Any]]) -> None:
    """Whoever is woken finds the page, and no page is about nothing."""
    pages = {path.stem for path in RUNBOOKS.glob("*.md")}

    assert {alert["alert"] for alert in rules(groups, "alert")} == pages


@pytest.mark.parametrize("heading", ["## What it means", "## Look", "## Act", "## Take it back"])
def test_every_page_has_the_same_parts(heading: str) -> None:
    """At three in the morning, things are where they always are."""
    lacking = [path.name for path in RUNBOOKS.glob("*.md") if f"\n{heading}\n" not in path.read_text()]

    assert [] == lacking


def test_every_alert_has_a_good_and_a_bad_history(groups: list[dict[str, Any]]) -> None:
    """An alert that was never seen to fire, and not to, is a guess."""
    histories = yaml.safe_load((ROOT / "tests" / "rules" / "histories.yaml").read_text())

    assert {alert["alert"] for alert in rules(groups, "alert")} == {name.split()[0] for name in histories}
    assert all(history["good"] and history["bad"] for history in histories.values())


def test_every_query_names_what_there_is(groups: list[dict[str, Any]]) -> None:
    """A metric that was renamed makes a rule that never fires."""
    known = {series for metric in inventory() for series in metric.series}
    known |= {rule["record"] for rule in rules(groups, "record")}
    used = {name for group in groups for rule in group["rules"] for name in names_in(rule["expr"])}

    assert set() == used - known


def test_recording_rules_are_named_by_level_metric_and_operation(groups: list[dict[str, Any]]) -> None:
    """The form that Prometheus' own advice asks for."""
    assert [] == [rule["record"] for rule in rules(groups, "record") if not RECORD.fullmatch(rule["record"])]


def test_runbooks_may_be_anywhere() -> None:
    """Links lead to where a company keeps them."""
    groups = rule_groups(prometheusRule={"enabled": True, "runbooks": "https://wiki.example/llm"})

    assert all(
        alert["annotations"]["runbook_url"] == f"https://wiki.example/llm/{alert['alert']}.md"
        for alert in rules(groups, "alert")
    )


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        pytest.param("FirstToken", FIRST_TOKEN_BUCKETS, id="first token"),
        pytest.param("InterToken", INTER_TOKEN_BUCKETS, id="inter token"),
    ],
)
def test_an_objectives_seconds_are_a_bound_of_the_histogram(kind: str, bounds: tuple[float, ...]) -> None:
    """Between two bounds nothing is counted, so the schema allows the bounds alone."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    conditions = schema["properties"]["monitoring"]["properties"]["slos"]["items"]["allOf"]
    (allowed,) = (
        condition["then"]["properties"]["seconds"]["enum"]
        for condition in conditions
        if condition["if"]["properties"]["kind"]["const"] == kind
    )

    assert list(bounds) == allowed


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        pytest.param({"kind": "Latency"}, "kind", id="unknown kind"),
        pytest.param({"objective": 1}, "objective", id="no budget"),
        pytest.param({"objective": 99.9}, "objective", id="percent"),
        pytest.param({"seconds": 2.4}, "seconds", id="between two bounds"),
        pytest.param({"name": "First Token"}, "name", id="no label value"),
        pytest.param({"policy": 'a"b'}, "policy", id="quote in a query"),
        pytest.param({"target": 1}, "target", id="unknown key"),
    ],
)
def test_objectives_that_mean_nothing_are_refused_by_name(slo: dict[str, Any], said: str) -> None:
    """The error names the key."""
    good = {"name": "first", "kind": "FirstToken", "seconds": 2.5, "objective": 0.9}

    with pytest.raises(helm.HelmError, match=said):
        rule_groups(slos=[good | slo])


def test_a_timed_objective_needs_its_bound() -> None:
    """Faster than what?"""
    with pytest.raises(helm.HelmError, match="seconds"):
        rule_groups(slos=[{"name": "first", "kind": "FirstToken", "objective": 0.9}])


def test_two_objectives_of_one_name_are_refused() -> None:
    """They would overwrite each other's figures."""
    with pytest.raises(helm.HelmError, match='"availability" stands there twice'):
        rule_groups(slos=[SLOS[0], SLOS[0]])


def test_without_objectives_there_is_none() -> None:
    """An empty list is a choice."""
    assert [] == [group["name"] for group in rule_groups(slos=[]) if "slo" in group["name"]]
