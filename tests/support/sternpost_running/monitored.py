"""What tests ask of a Prometheus that watches running parts, and the streams that they watch."""

from __future__ import annotations

import bisect
import json
import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from charts.dashboards import DASHBOARDS
from charts.make_dashboards import PRICES
from sternpost_fakes.rules import LABELS, rules
from sternpost_gateway.metrics import FIRST_TOKEN_BUCKETS
from sternpost_running.prometheus import Prometheus

SELECTOR: Final = re.compile(r"(?<![\w:])(?:sternpost|vllm:)\w+(?:\{[^}]*\})?(?![\w:])")
"""A metric within a query, with its labels; a recording rule's name has a level in front of it."""

RECORDED: Final = re.compile(r"\b[a-z_]+:sternpost_[a-z0-9_]+:[a-z0-9_]+\b")
GROUPING: Final = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)")
"""Labels that are named beside metrics, which look like them."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """One streamed answer as its client saw it: seconds to its first byte, and the tokens of its prompt."""

    first_byte_seconds: float
    prompt_tokens: int


async def stream_chat(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Streamed:
    """Stream one answer to its end; the usage is asked for."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    began, first, tokens = time.monotonic(), math.nan, 0
    async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            first = time.monotonic() - began if math.isnan(first) else first
            if '"usage"' in line:
                usage = json.loads(line.removeprefix("data: ")).get("usage")
                tokens = usage["prompt_tokens"] if usage else tokens
    return Streamed(first, tokens)


def assert_first_token_p95(prometheus: Prometheus, streams: Sequence[Streamed]) -> None:
    """Hold the gateway's time to first token to its clients', within one bucket."""
    ours = prometheus.number("histogram_quantile(0.95, sum by (le) (sternpost_gateway_ttft_seconds_bucket))")
    theirs = statistics.quantiles([one.first_byte_seconds for one in streams], n=20)[-1]

    assert ours is not None
    assert abs(bisect.bisect(FIRST_TOKEN_BUCKETS, ours) - bisect.bisect(FIRST_TOKEN_BUCKETS, theirs)) <= 1


def panel_queries() -> Iterator[tuple[str, str]]:
    """Yield every query of every dashboard, with every variable at All, under a name to know it by."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.name}: {panel.title} {query.legend}".rstrip(), filled(query.text)


def filled(query: str) -> str:
    """Return a dashboard's query with its variables filled in."""
    values = {"namespace": ".*", "pool": ".*", "policy": ".*", **PRICES}
    return re.sub(r"\$(\w+)", lambda found: values[found.group(1)], query)


def sources_of(query: str, groups: Sequence[dict[str, Any]]) -> set[str]:
    """Return the metrics that a query reads in the end, with their labels, through recording rules."""
    recorded = {rule["record"]: rule["expr"] for rule in rules(list(groups), "record")}
    sources: set[str] = set()
    waiting, seen = [query], set[str]()
    while waiting:
        text = GROUPING.sub(" ", waiting.pop())
        sources |= set(SELECTOR.findall(text)) - LABELS
        names = {name for name in RECORDED.findall(text) if name in recorded} - seen
        seen |= names
        waiting += [recorded[name] for name in names]
    return sources
