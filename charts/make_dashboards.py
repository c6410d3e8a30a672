"""Makes the chart's dashboards, Grafana's JSON, from `dashboards.py`: `python -m charts.make_dashboards`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from charts.dashboards import DASHBOARDS
from charts.panels import Dashboard, Panel

FOLDER: Final = Path(__file__).parent / "sternpost" / "files" / "dashboards"

SCHEMA_VERSION: Final = 39
"""Grafana 11's; older ones read it, newer ones migrate it."""

COLUMNS: Final = 24
"""The width of Grafana's grid."""

STAT_SIZE: Final = (6, 4)
GRAPH_SIZE: Final = (12, 8)
"""Width and height, in cells of the grid."""

RUNBOOKS: Final = "docs/runbooks"
"""Where runbooks are until the chart is told; it replaces exactly this value."""

PRICES: Final = {"price_computed": "3", "price_reused": "0.3"}
"""For a million tokens, in any currency; a reader puts the real ones in."""

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def render(dashboard: Dashboard) -> str:
    """Return a dashboard as the file that Grafana imports."""
    document = {
        "uid": f"sternpost-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["sternpost"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "links": [{"type": "dashboards", "title": "Sternpost", "tags": ["sternpost"], "asDropdown": True}],
        "panels": list(_panels(dashboard.panels)),
    }
    return json.dumps(document, indent=2) + "\n"


def _panels(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """Yield the panels in rows, from left to right."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        width, tall = STAT_SIZE if panel.is_stat else GRAPH_SIZE
        if x + width > COLUMNS or (x and tall != height):
            x, y = 0, y + height
        height = tall
        yield _panel(number, panel, {"x": x, "y": y, "w": width, "h": tall})
        x += width


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "links": [
            {"title": f"Runbook: {alert}", "url": f"${{runbooks}}/{alert}.md", "targetBlank": True}
            for alert in panel.alerts
        ],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": query.text,
                "legendFormat": query.legend or "__auto",
                "instant": panel.is_stat,
                "range": not panel.is_stat,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    yield _choice("namespace", "label_values(sternpost_gateway_requests_total, namespace)")
    yield _choice("pool", "label_values(sternpost_suffix_pool_bytes, sternpost_dev_pool)")
    yield _choice("policy", "label_values(sternpost_gateway_requests_total, policy)")
    yield {"name": "runbooks", "type": "constant", "hide": 2, "query": RUNBOOKS}
    if dashboard.prices:
        for name, price in PRICES.items():
            label = f"Price of a million tokens {name.removeprefix('price_')}"
            yield {"name": name, "label": label, "type": "textbox", "query": price}


def _choice(name: str, query: str) -> dict[str, Any]:
    """Return a variable of all values of a label; all of them, the empty one too, until somebody chooses."""
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    for _dashboard in DASHBOARDS:
        (FOLDER / f"{_dashboard.name}.json").write_text(render(_dashboard), encoding="utf-8")
