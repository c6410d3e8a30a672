"""The reference of the metrics is the code's, each metric is used, and what people ask has a query."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from docs.make_metrics import REFERENCE, REGISTRIES, ROOT, Metric, inventory, load_questions, render
from sternpost_fakes.rules import names_in, rule_groups, rules
from sternpost_running.monitored import sources_of

FOUNDING: Final[Mapping[str, tuple[str, ...]]] = {
    "hit rate": ("sternpost_suffix_lookups_total",),
    "hit kv share": ("sternpost_suffix_hit_kv_share",),
    "evictions": ("sternpost_suffix_evictions_total",),
    "lock wait": ("sternpost_suffix_lock_wait_seconds",),
    "false hits": ("sternpost_suffix_false_hits_total",),
    "inserts": ("sternpost_suffix_inserts_total",),
    "match time": ("sternpost_suffix_match_seconds",),
    "memory use": ("sternpost_suffix_pool_bytes", "sternpost_suffix_pool_budget_bytes"),
    "cache read tokens": ("sternpost_gateway_prompt_tokens_total",),
    "cache write tokens": ("sternpost_gateway_prompt_tokens_total",),
    "ttft p50 and p95": ("sternpost_gateway_ttft_seconds",),
    "input cost per request": ("sternpost_gateway_prompt_tokens_total", "sternpost_gateway_requests_total"),
    "cost saved": ("sternpost_gateway_prompt_tokens_total",),
    "isolation violations": (
        "sternpost_suffix_isolation_violations_total",
        "sternpost_gateway_isolation_violations_total",
    ),
    "full prefill": (
        "sternpost_gateway_ttft_seconds",
        "sternpost_gateway_bypasses_total",
        "sternpost_gateway_requests_total",
    ),
}
"""What the articles that the project goes back to ask to be watched, and by which metrics it is."""


def test_the_reference_is_what_the_code_declares() -> None:
    """Whoever changes a metric runs `make docs`."""
    assert render() == REFERENCE.read_text(encoding="utf-8")


@pytest.mark.parametrize("metric", inventory(), ids=lambda metric: metric.name)
def test_every_metric_is_used(metric: Metric) -> None:
    """A metric that nobody sets is a promise that nobody keeps."""
    folder = (ROOT / REGISTRIES[metric.part]).parent
    declared = ROOT / REGISTRIES[metric.part]

    assert any(metric.handle in _handles(path, own=path == declared) for path in folder.rglob("*.py"))


@pytest.mark.parametrize("metric", inventory(), ids=lambda metric: metric.name)
def test_every_metric_is_named_by_the_rules(metric: Metric) -> None:
    """The product's prefix, `_total` for counters and for nothing else, and a sentence as help."""
    assert metric.name.startswith("sternpost_")
    assert (metric.kind == "counter") is metric.name.endswith("_total")
    assert metric.text.endswith(".") and metric.text[0] in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def test_names_are_used_once() -> None:
    """Two parts never mean two things by one name."""
    names = [metric.name for metric in inventory()]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(("words", "names"), FOUNDING.items(), ids=FOUNDING)
def test_every_founding_figure_has_its_metrics_and_a_query_of_them(
    words: str, names: tuple[str, ...]
) -> None:
    """The metrics are declared, and what is asked in so many words reads them, and no others."""
    (question, *more) = (one for one in load_questions() if words in one["question"].lower())
    read = {series for source in sources_of(question["query"], rule_groups()) for series in names_in(source)}
    declared = {metric.name: set(metric.series) for metric in inventory()}

    assert [] == more
    assert set(names) == {name for name, series in declared.items() if series & read}


def test_every_query_names_what_there_is() -> None:
    """A query in the reference can be pasted."""
    known = {series for metric in inventory() for series in metric.series}
    known |= {rule["record"] for rule in rules(rule_groups(), "record")}

    assert set() == {name for question in load_questions() for name in names_in(question["query"])} - known


def _handles(path: Path, *, own: bool) -> set[str]:
    """Return the attributes that a module reads and, for the engine's tables, the keys that it fills."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    keys = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return read if own else read | keys


def test_the_autoscalers_query_asks_for_what_there_is() -> None:
    """The guide's example scales a kind that can be scaled, by a recording rule of the chart."""
    guide = (ROOT / "docs" / "guides" / "operator.md").read_text(encoding="utf-8")
    section = guide.split("## Autoscaling", 1)[1].split("\n## ", 1)[0]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    scaled = yaml.safe_load(block)["spec"]
    crd = yaml.safe_load((ROOT / "crds" / "enginepools.sternpost.dev.yaml").read_text(encoding="utf-8"))[
        "spec"
    ]
    query = scaled["triggers"][0]["metadata"]["query"]

    target = {"apiVersion": f"{crd['group']}/{crd['versions'][0]['name']}", "kind": crd["names"]["kind"]}
    assert target.items() <= scaled["scaleTargetRef"].items()
    assert {"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} == {
        *crd["versions"][0]["subresources"]["scale"]
    }
    assert {"sternpost_suffix_prompt_tokens_total"} == sources_of(query, rule_groups())
