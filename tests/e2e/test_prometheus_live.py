"""A real Prometheus scrapes a real gateway under traffic: panels, alerts and rules answer; figures agree."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.exposition import running_exposition
from sternpost_fakes.gateway_process import gateway_process
from sternpost_fakes.rules import rule_groups, rules
from sternpost_running.monitored import Streamed, assert_first_token_p95, panel_queries, stream_chat
from sternpost_running.prometheus import Prometheus, Target, running_prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(300)]

POLICY: Final = """
apiVersion: sternpost.dev/v1alpha1
kind: CachePolicy
metadata: {name: support, namespace: agents}
spec:
  match: {models: [qwen]}
  poolRef: {name: qwen}
  prompt: {layout: FixedTail, tail: {source: LastSystemMessage, minTokens: 256}}
  suffixCache: {recompute: {head: 0, last: 32, match: 0}}
"""

TAIL: Final = " ".join(f"Rule {number} speaks of door {number * 7 % 90}." for number in range(80))

REQUESTS: Final = 60
AT_ONCE: Final = 8
FIRST_SECONDS: Final = 0.6
"""Of the engine; long beside what a busy machine adds."""

UNSEEN: Final = ("sternpost_gateway_shadow_", "sternpost_gateway_isolation_")
"""
What gateways do not count in so short a time: replays, which need a quiet minute, and what must never be.

It is made up, with the figures of engines.
"""

READY_SECONDS_MAX: Final = 20.0
ROUND_SECONDS: Final = 3.0
"""Between two rounds of traffic: several scrapes."""

SETTLED_SECONDS_MAX: Final = 60.0

SENT: Final = "sum(sternpost_gateway_requests_total)"


@dataclass(frozen=True, slots=True)
class Observed:
    """Prometheus after the traffic, and what the client saw of it."""

    prometheus: Prometheus
    streams: list[Streamed]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Traffic through a gateway process, scraped once a second; Prometheus outlives the gateway."""
    folder = tmp_path_factory.mktemp("live")
    steps = _observe(folder)
    loop = asyncio.new_event_loop()
    try:
        yield loop.run_until_complete(anext(steps))
    finally:
        loop.run_until_complete(steps.aclose())
        loop.close()


async def _observe(folder: Path) -> AsyncGenerator[Observed, None]:
    (folder / "policies").mkdir()
    (folder / "policies" / "support.yaml").write_text(POLICY)
    engine = FakeEngine(first_delay_seconds=FIRST_SECONDS, delay_seconds=0.01)
    async with running_engine(engine), gateway_process(folder, engine.url) as (_, url):
        gateway = Target(urlsplit(url).netloc, {"namespace": "serving"})
        with running_exposition("engine", "operator", also=UNSEEN) as other:
            engines = Target(other, {"namespace": "models", "sternpost_dev_pool": "models/qwen"})
            with running_prometheus(folder, rule_groups(), [gateway, engines]) as prometheus:
                asked = await _ask_all(url)
                await _settle(prometheus, REQUESTS)
                yield Observed(prometheus, asked)


async def _ask_all(url: str) -> list[Streamed]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def ask(client: httpx.AsyncClient, number: int) -> Streamed:
        async with at_once:
            return await _ask(client, number)

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
        # The first one alone: it has the tail built that the others read.
        asked = [await ask(client, 0)]
        for numbers in (range(1, REQUESTS // 2), range(REQUESTS // 2, REQUESTS)):
            asked += await asyncio.gather(*(ask(client, number) for number in numbers))
            # A counter has a rate only if a scrape has seen it before it grows.
            await asyncio.sleep(ROUND_SECONDS)
        return asked


async def _ask(client: httpx.AsyncClient, number: int) -> Streamed:
    # One prefix in ten differs, as one with a clock in it does.
    prefix = "You are a porter." if number % 10 else f"You are a porter. It is 12:{number}:00."
    body = {
        "model": "qwen",
        "messages": [
            {"role": "system", "content": prefix},
            {"role": "user", "content": f"Where is door {number}?"},
            {"role": "system", "content": TAIL},
        ],
    }
    return await stream_chat(client, body)


async def _settle(prometheus: Prometheus, count: int) -> None:
    """Wait until everything is scraped, and the rules have seen it several times."""
    end = time.monotonic() + SETTLED_SECONDS_MAX
    while not (prometheus.number(SENT) == count and prometheus.query("slo:sternpost_bad:ratio_rate3d")):
        assert time.monotonic() < end, f"not settled within {SETTLED_SECONDS_MAX:g} s"
        await asyncio.sleep(1)
    # A rule that reads another one's figures is a few evaluations behind.
    await asyncio.sleep(3)


PANELS: Final = [pytest.param(query, id=name) for name, query in panel_queries()]


@pytest.mark.parametrize("query", PANELS)
def test_every_panel_shows_numbers(query: str, observed: Observed) -> None:
    """With every variable at All; there is data for all of them, so nothing, or not a number, is a fault."""
    found = observed.prometheus.query(query)

    assert found, query
    assert [] == [one for one in found if not math.isfinite(float(one["value"][1]))]


def test_every_rule_is_evaluated_without_a_fault(observed: Observed) -> None:
    """Prometheus says so itself, for alerts and recordings alike."""
    faults = {
        rule["name"]: rule.get("lastError") for rule in observed.prometheus.rules() if rule["health"] != "ok"
    }

    assert {} == faults


def test_every_alerts_query_is_answered(observed: Observed) -> None:
    """An alert that errors is one that never fires."""
    for alert in rules(rule_groups(), "alert"):
        observed.prometheus.query(alert["expr"])


def test_tokens_by_source_are_the_prompts_tokens(observed: Observed) -> None:
    """What was reused and what was computed is all that there was, within a thousandth."""
    counted = observed.prometheus.number("sum(sternpost_gateway_prompt_tokens_total)")

    assert pytest.approx(sum(one.prompt_tokens for one in observed.streams), rel=0.001) == counted


def test_first_token_p95_is_the_clients_within_one_bucket(observed: Observed) -> None:
    """The gateway measures what its client waits for."""
    assert_first_token_p95(observed.prometheus, observed.streams)
