"""The dashboards are what Grafana reads, and ask for nothing that there is not."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import helm_python as helm
import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as grafana

from charts.dashboards import DASHBOARDS
from charts.make_dashboards import COLUMNS, FOLDER, render
from docs.make_metrics import inventory
from sternpost_fakes.rules import CHART, names_in, rule_groups, rules

UNITS: Final = {"percentunit", "s", "bytes", "short", "ops", "reqps"}

FILES: Final = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.json"))]


def test_the_files_are_what_the_descriptions_say() -> None:
    """Whoever changes a panel runs `make docs`."""
    expected = {f"{dashboard.name}.json": render(dashboard) for dashboard in DASHBOARDS}

    assert expected == {path.name: path.read_text() for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("path", FILES)
def test_grafanas_own_types_hold_all_of_a_dashboard(path: Any) -> None:
    """What Grafana does not know it drops without a word: nothing is lost on the way through its types."""
    plugins.register_default_plugins()
    document = json.loads(path.read_text())
    read = grafana.Dashboard.from_json(document)

    assert [] == lost(document, json.loads(JSONEncoder().encode(read)))


def test_what_grafanas_types_do_not_know_is_found() -> None:
    """In a list and in a member, what is gone and what has changed."""
    before = {"panels": [{"unit": "s", "unitt": "s"}, {"id": 1}]}
    after = {"panels": [{"unit": "s"}, {"id": 2}], "more": 1}

    assert ["panels[0].unitt", "panels[1].id"] == lost(before, after)


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Return the places of one document whose values are not the same in the other, which may have more."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [(f"{path}.{name}".lstrip("."), name) for name in before]
        return [place for full, name in names for place in lost(before[name], after.get(name), full)]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [place for number, pair in pairs for place in lost(*pair, f"{path}[{number}]")]
    return [] if before == after else [path]


@pytest.mark.parametrize("path", FILES)
def test_every_panel_can_be_read_by_a_stranger(path: Any) -> None:
    """It has a title, says in a sentence what it shows, and in which unit."""
    panels = json.loads(path.read_text())["panels"]

    assert len(panels) == len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels})
    for panel in panels:
        assert panel["description"].endswith(".") and panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@pytest.mark.parametrize("path", FILES)
def test_no_two_panels_lie_on_each_other(path: Any) -> None:
    """And none hangs over the edge."""
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        mine = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine


@pytest.mark.parametrize("path", FILES)
def test_every_query_asks_for_what_there_is(path: Any) -> None:
    """Known metrics and recording rules, and variables that the dashboard has."""
    document = json.loads(path.read_text())
    known = {series for metric in inventory() for series in metric.series}
    known |= {rule["record"] for rule in rules(rule_groups(), "record")}
    variables = {variable["name"] for variable in document["templating"]["list"]}
    for panel in document["panels"]:
        for target in panel["targets"]:
            assert set() == names_in(target["expr"]) - known, target["expr"]
            assert set() == set(re.findall(r"\$(\w+)", target["expr"])) - variables, target["expr"]


def test_every_alert_is_linked_from_a_panel() -> None:
    """Whoever sees the curve finds the page; alerts about files and about the operator have no curve."""
    linked = {alert for dashboard in DASHBOARDS for panel in dashboard.panels for alert in panel.alerts}
    alerts = {rule["alert"] for rule in rules(rule_groups(), "alert")}

    assert {"SternpostOperatorMissingRights", "SternpostOperatorStale"} == alerts - linked
    assert set() == linked - alerts


def test_links_lead_to_where_the_runbooks_are_kept() -> None:
    """The chart puts its value into each dashboard."""
    values = {
        "monitoring": {
            "dashboards": {"enabled": True},
            "prometheusRule": {"runbooks": "https://wiki.example/llm"},
        }
    }
    rendered = helm.Chart.load(CHART).render(values, name="sp", namespace="serving")
    maps = [item for item in yaml.safe_load_all(rendered["sternpost/templates/monitoring.yaml"]) if item]
    documents = [json.loads(text) for item in maps for text in item["data"].values()]

    assert len(DASHBOARDS) == len(documents)
    for document in documents:
        (runbooks,) = (v for v in document["templating"]["list"] if v["name"] == "runbooks")
        assert "https://wiki.example/llm" == runbooks["query"]
