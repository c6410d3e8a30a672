"""
Prometheus watches gateway, real vLLM and operator under traffic: what there is is shown, and figures agree.

What a healthy run of a few minutes does not count, such as trips, is shown elsewhere from made-up figures.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sternpost_fakes.crd_schema import CRDS
from sternpost_fakes.rules import rule_groups, rules
from sternpost_running.custom_resources import Resources
from sternpost_running.kubernetes import BUILD, Cluster, find_binaries, running_cluster
from sternpost_running.monitored import (
    Streamed,
    assert_first_token_p95,
    panel_queries,
    sources_of,
    stream_chat,
)
from sternpost_running.operator_process import running_operator
from sternpost_running.prometheus import Prometheus, Target, running_prometheus
from sternpost_running.up import RunningUp, running_up

pytestmark = [
    pytest.mark.engine,
    pytest.mark.kube,
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

RULES: Final = "You are a porter. " + " ".join(f"Door {n} is on floor {n % 7}." for n in range(40))
"""Longer than two blocks of the engine's prefix store."""

TAIL: Final = " ".join(f"Rule {number} speaks of door {number * 7 % 90}." for number in range(45))

WARM_ROUNDS_MAX: Final = 40
REQUESTS: Final = 36
AT_ONCE: Final = 2
ANSWER_TOKENS: Final = 6
ROUND_SECONDS: Final = 3.0
"""Between two rounds of traffic: several scrapes, for a counter has a rate only when it grows between two."""

SETTLED_SECONDS_MAX: Final = 90.0
ANSWER_SECONDS_MAX: Final = 120.0

UNCOUNTED: Final = re.compile(
    r"sternpost_(suffix_(evictions|false_hits|isolation_violations|copy_failed|lock_wait)"
    r"|gateway_(sheds|retries|trips|ejections|fallthroughs|departures|departed_tokens|volatile|kills|shadow"
    r"|demotions|isolation_violations)"
    r"|operator_policy_phase\{phase=\"Holding\"\})"
)
"""What a short and healthy run may leave uncounted, so that there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Prompt tokens by source, as the gateway and as the engine count them, each since its start."""

    gateway: Mapping[str, float]
    engine: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Observed:
    """Prometheus after the traffic, the figures before and after it, and what its client saw."""

    prometheus: Prometheus
    before: Counts
    after: Counts
    streams: list[Streamed]

    def grown(self, part: str, source: str) -> float:
        """Return by how much a part's count has grown under the traffic."""
        before, after = getattr(self.before, part), getattr(self.after, part)
        return float(after.get(source, 0.0) - before.get(source, 0.0))


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    """The chart's rules, with one objective of each kind."""
    return rule_groups()


@pytest.fixture(scope="module")
def observed(
    model_directory: Path, tmp_path_factory: pytest.TempPathFactory, groups: list[dict[str, Any]]
) -> Iterator[Observed]:
    """All parts as they are shipped, and traffic through them."""
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack:
        operator = stack.enter_context(_operator(folder))
        with running_up(model_directory, folder) as up:
            targets = [
                _target(up.gateway_url, namespace="serving"),
                _target(up.engine_url, namespace="models", sternpost_dev_pool="models/small"),
                Target(operator, {"namespace": "serving"}),
            ]
            prometheus = stack.enter_context(running_prometheus(folder, groups, targets))
            # All run on: what is gone shows no gauges.
            yield asyncio.run(_drive(up, prometheus))


def _target(url: str, **labels: str) -> Target:
    return Target(urlsplit(url).netloc, labels)


@contextmanager
def _operator(folder: Path) -> Iterator[str]:
    """Run an operator on a real API server that has a policy; yield the address of its metrics."""
    binaries = find_binaries(os.environ)
    if binaries is None:
        pytest.fail(f"the tests against an API server need its binaries: run {BUILD}")
    with running_cluster(binaries, folder) as cluster:
        cluster.apply_crds(CRDS)
        with running_operator(cluster) as running:
            _add_policy(cluster)
            yield f"127.0.0.1:{running.metrics_port}"


def _add_policy(cluster: Cluster) -> None:
    cluster.namespace("agents")
    resources = Resources(cluster, "agents")
    resources.policy()
    resources.wait_for("CachePolicy", "policy", lambda status: status.get("phase"), "the policy is looked at")


async def _drive(up: RunningUp, prometheus: Prometheus) -> Observed:
    async with httpx.AsyncClient(
        base_url=up.gateway_url, trust_env=False, timeout=ANSWER_SECONDS_MAX
    ) as client:
        await _warm(client, up.model)
        before = await _counts(client, up)
        streams = await _ask_all(client, up.model)
        # The engine's figures of a step are shown a step later.
        await asyncio.sleep(ROUND_SECONDS)
        after = await _counts(client, up)
        await _settle(client, prometheus)
        return Observed(prometheus, before, after, streams)


async def _warm(client: httpx.AsyncClient, model: str) -> None:
    """Ask until tails are read: building one is no request of a client's."""
    for number in range(1, 6 * WARM_ROUNDS_MAX, 6):
        answer = await client.post("/v1/chat/completions", json=_body(model, number))
        assert answer.status_code == 200, answer.text
        if "x-sternpost-bypass" not in answer.headers:
            return
        await asyncio.sleep(0.5)
    raise AssertionError("no tail was read")


async def _ask_all(client: httpx.AsyncClient, model: str) -> list[Streamed]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int) -> Streamed:
        async with at_once:
            return await stream_chat(client, _body(model, number))

    streams: list[Streamed] = []
    for first in range(0, REQUESTS, REQUESTS // 3):
        streams += await asyncio.gather(
            *(ask(100 + number) for number in range(first, first + REQUESTS // 3))
        )
        await asyncio.sleep(ROUND_SECONDS)
    return streams


def _body(model: str, number: int) -> dict[str, Any]:
    """Return a chat with the tail; one in six shares nothing with another, for there is full prefill, too."""
    question = {"role": "user", "content": f"Guest {number} asks: where is door {number % 90}?"}
    shared = [{"role": "system", "content": RULES}, question, {"role": "system", "content": TAIL}]
    alone = [{"role": "system", "content": f"You are porter {number}."}, question]
    return {
        "model": model,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "messages": shared if number % 6 else alone,
    }


async def _counts(client: httpx.AsyncClient, up: RunningUp) -> Counts:
    return Counts(
        gateway=_by_label(
            (await client.get("/metrics")).text, "sternpost_gateway_prompt_tokens_total", "source"
        ),
        engine=_engine_counts((await client.get(f"{up.engine_url}/metrics")).text),
    )


def _engine_counts(page: str) -> dict[str, float]:
    """Return what vLLM's prefix store and the suffix store count as reused, and all tokens of prompts."""
    return {
        "prefix": _total(page, "vllm:prefix_cache_hits_total"),
        "suffix": _by_label(page, "sternpost_suffix_prompt_tokens_total", "source").get("suffix", 0.0),
        "all": _total(page, "vllm:prompt_tokens_total"),
        **{f"by {k}": v for k, v in _by_label(page, "vllm:prompt_tokens_by_source_total", "source").items()},
    }


def _total(page: str, name: str) -> float:
    return sum(value for found, _, value in _samples(page) if found == name)


def _by_label(page: str, name: str, label: str) -> dict[str, float]:
    counts: dict[str, float] = {}
    for found, labels, value in _samples(page):
        if found == name:
            counts[labels[label]] = counts.get(labels[label], 0.0) + value
    return counts


def _samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


async def _settle(client: httpx.AsyncClient, prometheus: Prometheus) -> None:
    """Wait until Prometheus has the last request, and the rules have seen it."""
    served = _total((await client.get("/metrics")).text, "sternpost_gateway_requests_total")
    end = time.monotonic() + SETTLED_SECONDS_MAX
    while not (
        prometheus.number("sum(sternpost_gateway_requests_total)") == served
        and prometheus.query("slo:sternpost_bad:ratio_rate3d")
    ):
        assert time.monotonic() < end, f"not settled within {SETTLED_SECONDS_MAX:g} s"
        await asyncio.sleep(1)
    # A rule that reads another one's figures is a few evaluations behind.
    await asyncio.sleep(ROUND_SECONDS)


def test_every_panel_that_has_data_shows_it(observed: Observed, groups: list[dict[str, Any]]) -> None:
    """A number for each query whose metrics are there; the others are named, and may be absent."""
    empty, odd, shown = [], [], 0
    for name, query in panel_queries():
        missing = _missing(observed, query, groups)
        found = observed.prometheus.query(query)
        if _has_moved(observed, query, groups):
            odd += [name for one in found if not math.isfinite(float(one["value"][1]))]
        shown += bool(found)
        if not found and not any(UNCOUNTED.match(one) for one in missing):
            empty.append((name, sorted(missing)))

    assert ([], []) == (empty, odd)
    assert shown >= len(list(panel_queries())) / 2


def test_every_alert_reads_what_there_is(observed: Observed, groups: list[dict[str, Any]]) -> None:
    """None errors, none lacks a metric that a running system has, and none fires at a healthy one."""
    firing, lacking = [], []
    for alert in rules(groups, "alert"):
        missing = _missing(observed, alert["expr"], groups)
        lacking += [(alert["alert"], one) for one in missing if not UNCOUNTED.match(one)]
        observed.prometheus.query(alert["expr"])
    firing = [rule["name"] for rule in observed.prometheus.rules() if rule.get("state") == "firing"]

    assert ([], []) == (lacking, firing)


def test_every_rule_is_evaluated_without_a_fault(observed: Observed) -> None:
    """Prometheus says so itself."""
    assert {} == {
        rule["name"]: rule.get("lastError") for rule in observed.prometheus.rules() if rule["health"] != "ok"
    }


def test_tokens_by_source_are_the_clients_prompts(observed: Observed) -> None:
    """What was reused and what was computed is all that there was, within a thousandth."""
    counted = sum(observed.grown("gateway", source) for source in ("prefix", "suffix", "computed"))

    assert pytest.approx(sum(one.prompt_tokens for one in observed.streams), rel=0.001) == counted


@pytest.mark.parametrize("source", ["prefix", "suffix"])
def test_reuse_is_what_the_engine_counts(source: str, observed: Observed) -> None:
    """By each store's own counter, within a hundredth; and there was some."""
    counted = observed.grown("engine", source)

    assert counted > 0, json.dumps([dict(observed.before.engine), dict(observed.after.engine)])
    assert pytest.approx(counted, rel=0.01) == observed.grown("gateway", source), dict(observed.after.engine)


def test_both_sides_agree_whose_tails_were_read(observed: Observed) -> None:
    """The engine names the owner that the gateway's salt stands for, so that nothing counts as another's."""
    read = observed.prometheus.number('sum(sternpost_suffix_requests_total{reason="hit"})')
    violations = observed.prometheus.query('{__name__=~"sternpost_.*_isolation_violations_total"} > 0')

    assert [] == violations
    assert read is not None and read > 0


def test_first_token_p95_is_the_clients_within_one_bucket(observed: Observed) -> None:
    """The gateway measures what its client waits for."""
    assert_first_token_p95(observed.prometheus, observed.streams)


def _has_moved(observed: Observed, query: str, groups: list[dict[str, Any]]) -> bool:
    """Say whether anything that a query reads has been counted of late: a share of nothing is no number."""
    return any(
        observed.prometheus.query(f"sum(increase({source}[5m])) > 0") for source in sources_of(query, groups)
    )


def _missing(observed: Observed, query: str, groups: list[dict[str, Any]]) -> set[str]:
    """Return the metrics that a query reads and that nobody has shown."""
    return {
        source
        for source in sources_of(query, groups)
        if not observed.prometheus.query(f"count(last_over_time({source}[10m]))")
    }
