"""Makes `metrics.md`, the reference of the metrics, from the code: `python -m docs.make_metrics`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
REFERENCE: Final = ROOT / "docs" / "metrics.md"
QUERIES: Final = ROOT / "docs" / "metrics_queries.yaml"
RECORDING: Final = ROOT / "charts" / "sternpost" / "files" / "rules" / "recording.yaml"

ENGINE: Final = "engine_patch/sternpost_engine/stats.py"
REGISTRIES: Final = {
    "gateway": "gateway/sternpost_gateway/metrics.py",
    "engine": ENGINE,
    "operator": "operator/sternpost_operator/metrics.py",
}
"""The module of each part that declares its metrics."""

TABLES: Final = {"_COUNTERS": "counter", "_GAUGES": "gauge", "_HISTOGRAMS": "histogram"}
"""The engine's metrics stand in tables, for vLLM makes them."""

CLASSES: Final = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}

UNITS: Final = {
    "seconds": "s",
    "bytes": "B",
    "tokens": "tokens",
    "share": "1",
    "stability": "1",
    "nats": "nats",
}
"""By the last word of a name, without `_total`; other names count things."""

HEAD: Final = """\
# Metrics

Made from the code by `make docs`; do not edit it. Gateways and the operator answer at `/metrics` of their
own, the engine's metrics stand among vLLM's. Labels are bounded, and hold no prompt, tenant or session. The
engine's metrics carry vLLM's labels `model_name` and `engine`, too; the chart's monitors add `namespace`,
`pod` and, for engines, `sternpost_dev_pool`. A gateway's metric has at most 4,096 sets of labels: what is
counted beyond them has `other` for each.

A counter with labels is absent until it counts. Shares are sums over sums: divide rates that were summed, and
never take the mean of quotients.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """
    One metric as declared.

    `handle` is what the code calls it: an attribute of the registry's class, or a key of the engine's tables.
    """

    part: str
    handle: str
    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """Return the unit, as far as the name says it."""
        return UNITS.get(self.name.removesuffix("_total").rpartition("_")[2], "count")

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names that a query may use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def inventory() -> list[Metric]:
    """Return every metric that the parts declare, in the order of the code."""
    return [metric for part, path in REGISTRIES.items() for metric in _declared(part, path)]


def render() -> str:
    """Return the whole reference."""
    metrics = inventory()
    lines = [HEAD]
    for part in REGISTRIES:
        lines += [
            f"## {part.capitalize()}\n",
            "| metric | type | labels | unit | what it is |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(metric) for metric in metrics if metric.part == part]
        lines.append("")
    lines += [*_questions(), "", *_recordings()]
    return "\n".join(lines) + "\n"


def _declared(part: str, path: str) -> Iterator[Metric]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    yield from _from_tables(tree) if path == ENGINE else _from_calls(part, tree)


def _from_calls(part: str, tree: ast.Module) -> Iterator[Metric]:
    """Yield what `self.handle = Counter("name", "text", [labels], ...)` declares."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        (target,), call = node.targets, node.value
        if not isinstance(call.func, ast.Name) or call.func.id not in CLASSES:
            continue
        if not isinstance(target, ast.Attribute):
            raise ValueError(f"line {node.lineno}: a metric is not an attribute, and nobody could use it")
        name, text, *rest = (ast.literal_eval(argument) for argument in call.args)
        yield Metric(part, target.attr, name, CLASSES[call.func.id], tuple(*rest), text)


def _from_tables(tree: ast.Module) -> Iterator[Metric]:
    """Yield what the engine's tables declare; a histogram's third element is its buckets."""
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = TABLES.get(node.target.id)
        if kind is None or not isinstance(node.value, ast.Dict):
            continue
        for key, row in zip(node.value.keys, node.value.values, strict=True):
            if key is None or not isinstance(row, ast.Tuple):
                raise ValueError(f"line {node.lineno}: a row of {node.target.id} is no tuple under a name")
            name, text = (ast.literal_eval(element) for element in row.elts[:2])
            label = "" if kind == "histogram" else ast.literal_eval(row.elts[2])
            shown = f"{name}_total" if kind == "counter" else name
            yield Metric("engine", ast.literal_eval(key), shown, kind, (label,) if label else (), text)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.text} |"


def load_questions() -> list[Mapping[str, Any]]:
    """Return what people ask of a prompt cache, each with its query."""
    loaded: list[Mapping[str, Any]] = yaml.safe_load(QUERIES.read_text(encoding="utf-8"))
    return loaded


def _questions() -> Iterator[str]:
    yield "## What to ask, and how\n"
    for question in load_questions():
        yield f"**{question['question']}** {question.get('note', '')}".rstrip() + "\n"
        yield "".join(f"    {line}\n" for line in question["query"].splitlines())


def _recordings() -> Iterator[str]:
    yield "## Recording rules\n"
    yield "Dashboards and alerts are built from these: `monitoring.prometheusRule.enabled` of the chart.\n"
    for group in yaml.safe_load(RECORDING.read_text(encoding="utf-8"))["groups"]:
        yield from (f"- `{rule['record']}`" for rule in group["rules"])


if __name__ == "__main__":
    REFERENCE.write_text(render(), encoding="utf-8")
