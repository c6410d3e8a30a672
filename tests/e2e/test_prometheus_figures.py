"""The operator's queries in Prometheus' own hands: what they make of histories as gateways leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sternpost_operator.queries import FIGURE_LABEL, Spans, policy_query
from sternpost_running.prometheus import promtool

pytestmark = pytest.mark.prometheus

POLICY: Final = "agents/support"
SPANS: Final = Spans(window=60, step=600)
AT: Final = "20m"
"""When the query is asked: 1,200 seconds after the first sample."""

REQUESTS: Final = "sternpost_gateway_requests"
FAILED: Final = 'arm="canary",outcome="5xx"'
ANSWERED: Final = 'arm="canary",outcome="2xx"'

Series = dict[str, str]


def counter(labels: str, values: str, made_at: int, name: str = REQUESTS) -> Series:
    """Return a counter's samples, one every 15 s, and when it was made, in seconds."""
    selector = f'{{policy="{POLICY}",{labels},instance="a"}}'
    return {f"{name}_total{selector}": values, f"{name}_created{selector}": f"{made_at}x80"}


HISTORIES: Final[dict[str, tuple[Series, str, dict[str, float]]]] = {
    "steady": (counter(ANSWERED, "0+15x80", -9000), "requests", {"": 60, "step_": 600}),
    "failures before the first scrape": (
        {**counter(ANSWERED, "0+15x80", -9000), **counter(FAILED, "_x77 6 6 6", 1150)},
        "error_share",
        {"": 6 / 66, "step_": 6 / 606},
    ),
    "failures of long ago": (
        {**counter(ANSWERED, "0+15x80", -9000), **counter(FAILED, "6x80", -9000)},
        "error_share",
        {"": 0, "step_": 0},
    ),
    "a gateway that is scraped for the first time": (
        counter(ANSWERED, "_x78 5000 5015 5030", -9000),
        "requests",
        {"": 37.5, "step_": 37.5},
    ),
    "a demotion before the first scrape": (
        {
            f'sternpost_gateway_demotions_total{{policy="{POLICY}",instance="a"}}': "_x77 1 1 1",
            f'sternpost_gateway_demotions_created{{policy="{POLICY}",instance="a"}}': "1150x80",
        },
        "shadow_demotions",
        {"": 1},
    ),
    "a gateway that has started again": (
        counter(ANSWERED, "0+15x60 0+15x19", 915),
        "requests",
        {"": 60, "step_": 590},
    ),
}
"""Series, which figure is looked at, and what it is in the last minute and in the whole step."""


@pytest.mark.parametrize(("series", "figure", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_a_figure_is_what_has_happened(
    series: Series, figure: str, expected: dict[str, float], tmp_path: Path
) -> None:
    """Also where it happened before anybody looked, and only within the span."""
    wholes = {prefix + figure: value for prefix, value in expected.items()}
    for name, value in wholes.items():
        query = f"max by ({FIGURE_LABEL}) ({policy_query(POLICY, SPANS)}) and on ({FIGURE_LABEL}) "
        only = f'label_replace(vector(1), "{FIGURE_LABEL}", "{name}", "", "")'
        # Prometheus extrapolates to the ends of a span, so a tenth more or less is the same to it.
        near = f"abs(({query} {only}) - {value}) <= {max(0.001, value * 0.1)}"
        done = promtool("test", "rules", _file(tmp_path, series, f"count({near})"))
        assert 0 == done.returncode, f"{name}: {done.stdout}{done.stderr}"


def _file(folder: Path, series: Series, query: str) -> Path:
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": AT, "exp_samples": [{"labels": "{}", "value": 1}]}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    return file
