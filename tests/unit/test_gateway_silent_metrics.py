"""A gateway without metrics serves as one with them, and counts nothing."""

from __future__ import annotations

import httpx
from prometheus_client import CollectorRegistry

from sternpost_fakes.gateway_parts import ENGINE, FakeUpstream, Surroundings, make_parts_for
from sternpost_gateway.collectors import Counter
from sternpost_gateway.fleet import UNKNOWN, Health, View
from sternpost_gateway.kills import KillTable
from sternpost_gateway.pipeline import Pipeline
from sternpost_gateway.silent_metrics import Silent, SilentMetrics


def test_every_metric_is_silent() -> None:
    """One that is added later, too; and the registry of the process is left alone."""
    registry = CollectorRegistry()
    metrics = SilentMetrics(registry)

    assert {Silent} == {type(metric) for metric in vars(metrics).values()}
    assert [] == list(registry.collect())


def test_a_silent_metric_has_whatever_is_asked_of_a_real_one() -> None:
    """Whatever the gateway calls."""
    metrics = SilentMetrics(CollectorRegistry())
    metrics.show_levels(KillTable())
    metrics.show_pools([View(ENGINE, True, 0, UNKNOWN)])
    metrics.show_gates({})
    used = {"labels", "inc", "set", "set_function", "observe", "remove", "clear"}

    assert used == {name for name in vars(Silent) if not name.startswith("_")}
    assert not isinstance(metrics.requests, Counter)


async def test_a_request_is_served_without_metrics() -> None:
    """From the first stage to the last."""
    upstream = FakeUpstream()
    parts = make_parts_for(Surroundings(), upstream, SilentMetrics(CollectorRegistry()))
    parts.fleet.probed(ENGINE, Health.UP)

    transport = httpx.ASGITransport(Pipeline(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post("/v1/chat/completions", json={"model": "qwen", "messages": []})

    assert (200, 1) == (answer.status_code, len(upstream.sent))
