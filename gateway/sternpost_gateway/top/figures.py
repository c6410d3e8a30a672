"""What two pages of one gateway say together: pure functions from series to figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sternpost_gateway.kills import EVERYONE
from sternpost_gateway.merged_metrics import WORKER_LABEL
from sternpost_gateway.metrics import NOT_READY, READY
from sternpost_gateway.top.page import Page, Series

REUSED: Final = frozenset({"prefix", "suffix"})
WHOLE: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"in_flight": sum, "engines_ready": min}
"""How the figures of workers become one; for all others the largest counts."""

EXACT: Final = "exact"
UNKNOWN: Final = "unknown"

OF_ENGINES: Final = frozenset({"cold_in_flight", "cold_waiting", "uncached_tokens"})
"""The metrics of engines that are shown as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    """One gateway; None where it does not say. `fault` is why it says nothing at all."""

    gateway: str
    engines_ready: float | None = None
    engines_tripped: float | None = None
    in_flight: float | None = None
    kill_level: float | None = None
    config_age_seconds: float | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """
    One policy at one gateway, between two pages; None where nothing was counted.

    Shares are of prompt tokens (`reused_share`) and of streams (`full_prefill_share`), times in seconds.
    """

    gateway: str
    policy: str
    requests: float
    requests_per_second: float | None
    reused_share: float | None
    full_prefill_share: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    kill_level: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """The engines of one pool, as one gateway sees them; the empty pool is that of engines named by flags."""

    gateway: str
    pool: str
    ready: float
    not_ready: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """
    One engine, as one gateway sees it; None where it does not say.

    `plugin` is what the engine says about its suffix store; `uncached_tokens` are predicted, and in flight.
    """

    gateway: str
    engine: str
    plugin: str | None
    cold_in_flight: float | None
    cold_waiting: float | None
    uncached_tokens: float | None


def gateway_row(page: Page) -> GatewayRow:
    """Return what a page says about its gateway."""
    if page.fault is not None:
        return GatewayRow(gateway=page.gateway, fault=page.fault)
    by_name = _whole(page.series)
    return GatewayRow(
        gateway=page.gateway,
        engines_ready=by_name.get("engines_ready"),
        engines_tripped=by_name.get("engines_tripped"),
        in_flight=by_name.get("in_flight"),
        kill_level=_kill_level(page, EVERYONE),
        config_age_seconds=by_name.get("config_age_seconds"),
    )


def pool_rows(page: Page) -> list[PoolRow]:
    """Return the pools that a page knows, by name."""
    counts = [one for one in page.series if one.name == "pool_engines"]
    pools = sorted({one.labels["pool"] for one in counts})
    # Each worker sees all engines: the one that sees the fewest ready counts.
    return [
        PoolRow(
            gateway=page.gateway,
            pool=pool,
            ready=min(_values(counts, pool=pool, state=READY), default=0.0),
            not_ready=max(_values(counts, pool=pool, state=NOT_READY), default=0.0),
        )
        for pool in pools
    ]


def engine_rows(page: Page) -> list[EngineRow]:
    """Return the engines that a page knows, by URL."""
    plugins = {
        one.labels["engine"]: one.labels["plugin"]
        for one in page.series
        if one.name == "engine_plugin" and one.value
    }
    values: dict[tuple[str, str], float] = {}
    for one in page.series:
        if one.name in OF_ENGINES:
            key = one.name, one.labels["engine"]
            values[key] = values.get(key, 0.0) + one.value
    return [
        EngineRow(
            gateway=page.gateway,
            engine=engine,
            plugin=plugins.get(engine),
            cold_in_flight=values.get(("cold_in_flight", engine)),
            cold_waiting=values.get(("cold_waiting", engine)),
            uncached_tokens=values.get(("uncached_tokens", engine)),
        )
        for engine in sorted(plugins.keys() | {engine for _, engine in values})
    ]


def _whole(series: Iterable[Series]) -> dict[str, float]:
    """Return what a gateway says about itself; of several workers, their sum or the worst of them."""
    found: dict[str, list[float]] = {}
    for one in series:
        if one.labels.keys() <= {WORKER_LABEL}:
            found.setdefault(one.name, []).append(one.value)
    return {name: WHOLE.get(name, max)(values) for name, values in found.items()}


def policy_rows(before: Page | None, now: Page) -> list[PolicyRow]:
    """Return the policies that a page knows, by name; without a page before, since the gateway's start."""
    seconds = None if before is None or before.fault else now.at - before.at
    grown = increases(before.series if before is not None else (), now.series)
    names = sorted({one.labels["policy"] for one in grown if one.name == "requests_total"})
    return [_policy_row(now, name, [one for one in grown if _is_of(one, name)], seconds) for name in names]


def increases(before: Iterable[Series], now: Iterable[Series]) -> list[Series]:
    """Return by how much each series grew; one that is smaller than before began anew, from zero."""
    old = {_key(one): one.value for one in before}
    return [
        Series(one.name, one.labels, one.value - known if one.value >= known else one.value)
        for one in now
        for known in (old.get(_key(one), 0.0),)
    ]


def quantile(share: float, buckets: dict[float, float]) -> float | None:
    """
    Return a quantile of a histogram as Prometheus does, by interpolation within the bucket.

    `buckets` are counts by upper bound, each including all below it. Beyond the last finite bound that bound
    is all that is known; None where nothing was counted.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside else 1.0)
        lower, below = bound, buckets[bound]
    return None


def _policy_row(page: Page, name: str, grown: list[Series], seconds: float | None) -> PolicyRow:
    requests = _sum(grown, "requests_total")
    tokens = _sum(grown, "prompt_tokens_total")
    reused = _sum(grown, "prompt_tokens_total", lambda one: one.labels["source"] in REUSED)
    known = _sum(grown, "ttft_seconds_count", lambda one: one.labels["path"] != UNKNOWN)
    exact = _sum(grown, "ttft_seconds_count", lambda one: one.labels["path"] == EXACT)
    buckets = _buckets(grown)
    return PolicyRow(
        gateway=page.gateway,
        policy=name,
        requests=requests,
        requests_per_second=requests / seconds if seconds else None,
        reused_share=reused / tokens if tokens else None,
        full_prefill_share=exact / known if known else None,
        ttft_p50=quantile(0.5, buckets),
        ttft_p95=quantile(0.95, buckets),
        kill_level=_kill_level(page, name),
    )


def _values(series: Iterable[Series], **labels: str) -> list[float]:
    return [one.value for one in series if labels.items() <= one.labels.items()]


def _buckets(grown: list[Series]) -> dict[float, float]:
    buckets: dict[float, float] = {}
    for one in grown:
        if one.name == "ttft_seconds_bucket":
            bound = float(one.labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + one.value
    return buckets


def _sum(series: Iterable[Series], name: str, counts: Callable[[Series], bool] = lambda one: True) -> float:
    return sum(one.value for one in series if one.name == name and counts(one))


def _kill_level(page: Page, policy: str) -> float | None:
    """Return a policy's effective level; the level for all where it has none of its own."""
    levels = {one.labels["policy"]: one.value for one in page.series if one.name == "kill_level"}
    return levels.get(policy, levels.get(EVERYONE))


def _is_of(series: Series, policy: str) -> bool:
    return series.labels.get("policy") == policy


def _key(series: Series) -> tuple[str, frozenset[tuple[str, str]]]:
    return series.name, frozenset(series.labels.items())
