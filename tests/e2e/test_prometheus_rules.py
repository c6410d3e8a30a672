"""The chart's rules in Prometheus' own hands: each alert fires when it should, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sternpost_fakes.rules import ROOT, groups_for, rule_groups
from sternpost_running.prometheus import promtool

pytestmark = pytest.mark.prometheus

HISTORIES: Final[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "rules" / "histories.yaml").read_text())


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    """The rules as the chart renders them, with one objective of each kind."""
    return rule_groups()


def test_prometheus_reads_the_rules(groups: list[dict[str, Any]], tmp_path: Path) -> None:
    """Queries parse, templates expand, and no two rules make one series."""
    rules_file = tmp_path / "rules.yaml"
    rules_file.write_text(yaml.safe_dump({"groups": groups}))

    done = promtool("check", "rules", "--lint=all", "--lint-fatal", rules_file)

    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("name", HISTORIES)
def test_an_alert_fires_on_its_bad_history_and_not_on_its_good_one(
    name: str, groups: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Evaluated minute by minute, by promtool."""
    history = HISTORIES[name]
    needed = groups_for(name.split()[0], groups, slo=history.get("slo", ""))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": needed}))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(_unit_tests(name, history)))

    done = promtool("test", "rules", tmp_path / "tests.yaml")

    assert 0 == done.returncode, done.stdout + done.stderr


def _unit_tests(name: str, history: dict[str, Any]) -> dict[str, Any]:
    alert, *told = name.split()
    more = f',{history.get("label", "window")}="{told[0]}"' if told else ""
    labels = f'alertname="{alert}",alertstate="firing"{more}'
    fired = [{"labels": "{}", "value": 1}]
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            _unit_test(history["good"], f"count(ALERTS{{{labels}}})", history["at"], []),
            _unit_test(history["bad"], f"count(ALERTS{{{labels}}})", history["at"], fired),
        ],
    }


def _unit_test(series: dict[str, str], query: str, at: str, expected: list[Any]) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": expected}],
    }
