"""What engines, gateways and Prometheus answer is checked before it is believed."""

import math
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from docs.make_metrics import inventory
from sternpost_gateway.errors import MEANINGS
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.record import CLIENT_GONE, CUT, LENGTH
from sternpost_operator.engines import HttpProbe, Reuse, Said
from sternpost_operator.figures import SAMPLE_NAMES, Figures, Sample, figures_to_status, known
from sternpost_operator.gateways import GatewayReport, HttpGatewayProbe, gateway_client, read_report
from sternpost_operator.probes import probe_client
from sternpost_operator.prometheus import FiguresUnavailable, Prometheus
from sternpost_operator.queries import (
    BY_ARM,
    CUT_AT_LENGTH,
    FAILED,
    LEFT,
    SHED,
    Spans,
    policy_query,
    read_figures,
    step_span,
)

SPANS = Spans(window=60, step=600)
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> httpx.AsyncClient:
    """Return a client whose requests a function answers."""
    return httpx.AsyncClient(transport=httpx.MockTransport(handler))


def down(request: httpx.Request) -> httpx.Response:
    """Answer nothing."""
    raise httpx.ConnectError("refused")


ENGINES: dict[str, tuple[Handler, Said]] = {
    "ready": (lambda _: httpx.Response(200, json={"v": 1, "supported": True}), Said(Reuse.READY)),
    "unsupported": (
        lambda _: httpx.Response(200, json={"v": 1, "supported": False, "reason": "hybrid"}),
        Said(Reuse.UNSUPPORTED, "hybrid"),
    ),
    "absent": (lambda _: httpx.Response(404), Said(Reuse.ABSENT, "vLLM without the plugin")),
    "down": (down, Said(Reuse.UNKNOWN, "no answer: ConnectError")),
    "no-json": (
        lambda _: httpx.Response(200, text="hello"),
        Said(Reuse.UNKNOWN, "an answer that cannot be understood, with status 200"),
    ),
    "other-version": (
        lambda _: httpx.Response(200, json={"v": 2, "supported": True}),
        Said(Reuse.UNKNOWN, "an answer that cannot be understood, with status 200"),
    ),
    "broken": (
        lambda _: httpx.Response(500, json={"v": 1}),
        Said(Reuse.UNKNOWN, "an answer that cannot be understood, with status 500"),
    ),
}


@pytest.mark.parametrize(("handler", "expected"), ENGINES.values(), ids=ENGINES.keys())
async def test_engines_answer_is_read(handler: Handler, expected: Said) -> None:
    """Only a clear yes is a yes."""
    async with client(handler) as http:
        assert {"a": expected} == await HttpProbe(http).ask({"a": "http://engine:8000"})


PAGE = """\
# HELP sternpost_gateway_kill_level The effective kill level.
# TYPE sternpost_gateway_kill_level gauge
sternpost_gateway_kill_level{policy=""} 0.0
sternpost_gateway_kill_level{policy="agents/support"} 1.0
sternpost_gateway_config_age_seconds 2.5
sternpost_gateway_ttft_seconds_bucket{le="0.1"} nonsense
"""

PAGES = {
    "whole": (PAGE, GatewayReport({"": 0, "agents/support": 1}, 2.5)),
    "of-two-workers": (
        'sternpost_gateway_kill_level{worker="0",policy=""} 2.0\n'
        'sternpost_gateway_kill_level{worker="1",policy=""} 1.0\n'
        'sternpost_gateway_config_age_seconds{worker="0"} 2.5\n'
        'sternpost_gateway_config_age_seconds{worker="1"} 7.5\n',
        GatewayReport({"": 1}, 7.5),
    ),
    "of-something-else": ("up 1\n", GatewayReport(fault="no kill level")),
    "broken": (
        'sternpost_gateway_kill_level{policy="} x\n',
        GatewayReport(fault="metrics that cannot be understood"),
    ),
}


@pytest.mark.parametrize(("page", "expected"), PAGES.values(), ids=PAGES.keys())
def test_gateways_page_is_read(page: str, expected: GatewayReport) -> None:
    """Two metrics of it matter; the others are not even parsed."""
    assert expected == read_report(page)


async def test_gateway_that_does_not_answer_is_reported() -> None:
    """Silence is no obedience."""
    async with client(down) as http:
        report = (await HttpGatewayProbe(http).ask({"a": "http://gateway:8080"}))["a"]

    assert "no answer: ConnectError" == report.fault


@pytest.mark.parametrize("make", [probe_client, gateway_client], ids=["engines", "gateways"])
async def test_who_waits_for_a_connection_is_not_silent(make: Callable[[], httpx.AsyncClient]) -> None:
    """Of a thousand that are asked most wait their turn: the two seconds are for answers alone."""
    async with make() as http:
        assert (2.0, 2.0, None) == (http.timeout.connect, http.timeout.read, http.timeout.pool)


def vector(*elements: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return the result of a query: figure, arm, value."""
    return [
        {"metric": {"figure": figure, **({"arm": arm} if arm else {})}, "value": [0, value]}
        for figure, arm, value in elements
    ]


def test_query_asks_for_every_figure_of_both_spans() -> None:
    """One request brings everything, by the policy's full name."""
    query = policy_query("agents/support", SPANS)

    assert SAMPLE_NAMES == tuple(BY_ARM)
    for name in SAMPLE_NAMES:
        assert f'"figure", "{name}"' in query and f'"figure", "step_{name}"' in query
    assert "[60s]" in query and "[600s]" in query
    assert 'policy="agents/support"' in query
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    assert "{policy}" not in query and "{span}" not in query and "{{" not in query


def test_outcomes_are_the_gateways() -> None:
    """What the gateway calls a failure, overload, a client that left or a limit, the queries do, too."""
    failures = {meaning.code for meaning in MEANINGS.values() if meaning.status >= 500}
    overload = {meaning.code for meaning in MEANINGS.values() if meaning.status == 429}

    assert {*failures, "5xx", CUT} == set(FAILED)
    assert (overload, {CLIENT_GONE}, {LENGTH}) == (set(SHED), set(LEFT), set(CUT_AT_LENGTH))


def test_queries_ask_for_metrics_that_gateways_have() -> None:
    """A query for a metric that nobody has is answered with nothing, for ever."""
    registry = CollectorRegistry()
    Metrics(registry)
    known = {name for family in registry.collect() for name in sample_names(family)}
    asked = set(re.findall(r"sternpost_gateway_[a-z_]+", policy_query("a/b", SPANS)))

    assert asked <= known


def test_queries_select_by_labels_that_gateways_put_on_them() -> None:
    """A selector that names a label of another metric finds nothing, for ever."""
    declared = {metric.name: {*metric.labels} for metric in inventory() if metric.part == "gateway"}
    found = re.findall(
        r"(sternpost_gateway_[a-z_]+?)(?:_bucket|_created)?\{([^}]*)\}", policy_query("a/b", SPANS)
    )
    asked = {(metric, label) for metric, matchers in found for label in re.findall(r"(\w+)=", matchers)}
    by_arm = {re.findall(r"sternpost_gateway_[a-z_]+", query)[0] for query in BY_ARM.values()}
    wanted = asked | {(name.removesuffix("_bucket"), "arm") for name in by_arm}

    assert ("sternpost_gateway_requests_total", "outcome") in wanted
    assert [] == [
        (name, label)
        for name, label in sorted(wanted)
        if label not in declared.get(name, declared.get(f"{name}_total", set()))
    ]


def sample_names(family: Any) -> set[str]:
    """Return the names of a metric's samples."""
    suffixes = {"counter": ("_total", "_created"), "histogram": ("_bucket", "_sum", "_count")}.get(
        family.type, ("",)
    )
    return {family.name + suffix for suffix in suffixes}


def test_figures_are_read_by_arm_and_span() -> None:
    """Each value reaches its place; what is not understood is no data."""
    figures = read_figures(
        [
            *vector(
                ("requests", "canary", "250"),
                ("ttft_p95", "control", "0.5"),
                ("step_sessions", "canary", "60"),
            ),
            *vector(("shadow_kl", "", "0.01"), ("config_age", "", "1"), ("requests", "other", "9")),
            *vector(("error_share", "canary", "NaN"), ("shed_share", "canary", "many")),
            {"metric": {"figure": "requests", "arm": "control"}},
        ]
    )

    assert (250.0, 0.5, 60.0) == (
        figures.canary.requests,
        figures.control.ttft_p95,
        figures.step_canary.sessions,
    )
    assert (0.01, 1.0) == (figures.shadow_kl, figures.config_age)
    assert math.isnan(figures.canary.error_share or 0)
    assert (None, None) == (figures.canary.shed_share, known(figures.canary.error_share))
    assert known(figures.control.requests) is None


@pytest.mark.parametrize(("seconds", "span"), [(1, 60), (600.7, 600), (10**9, 604800)])
def test_step_span_is_bounded(seconds: float, span: int) -> None:
    """Neither nothing nor a year is asked for."""
    assert span == step_span(seconds)


async def test_prometheus_is_asked_by_post() -> None:
    """The query is too long for a URL."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        data = {"resultType": "vector", "result": vector(("requests", "canary", "7"))}
        return httpx.Response(200, json={"status": "success", "data": data})

    async with client(answer) as http:
        figures = await Prometheus(http).figures("http://prometheus:9090/", "a/b", SPANS)

    assert (7.0, "POST", "/api/v1/query") == (figures.canary.requests, seen[0].method, seen[0].url.path)


FAILURES: dict[str, Handler] = {
    "down": down,
    "error": lambda _: httpx.Response(503, text="busy"),
    "no-json": lambda _: httpx.Response(200, text="hello"),
    "no-data": lambda _: httpx.Response(200, json={"status": "error"}),
    "matrix": lambda _: httpx.Response(200, json={"data": {"resultType": "matrix", "result": []}}),
    "elements-of-wrong-type": lambda _: httpx.Response(
        200, json={"data": {"resultType": "vector", "result": [1]}}
    ),
}


@pytest.mark.parametrize("handler", FAILURES.values(), ids=FAILURES.keys())
async def test_prometheus_that_does_not_answer_is_no_data(handler: Handler) -> None:
    """The error names the address; the rollout holds."""
    async with client(handler) as http:
        with pytest.raises(FiguresUnavailable, match="http://prometheus:9090/api/v1/query"):
            await Prometheus(http).figures("http://prometheus:9090", "a/b", SPANS)


@pytest.mark.parametrize("url", ["http://prometheus:909O", "http://xn--a:1", "http://\x00"])
async def test_address_that_is_no_url_is_no_data(url: str) -> None:
    """A policy's typing error holds its own rollout, and is told; nothing else about the policy ends."""
    async with client(FAILURES["no-json"]) as http:
        with pytest.raises(FiguresUnavailable, match="is no URL"):
            await Prometheus(http).figures(url, "a/b", SPANS)


def test_figures_are_shown_without_what_is_missing() -> None:
    """NaN cannot be written as JSON, and says nothing."""
    figures = Figures(
        canary=Sample(requests=3, ttft_p50=math.nan), control=Sample(requests=4), shadow_kl=0.1234567891
    )

    assert [
        {"name": "requests", "canary": 3.0, "control": 4.0},
        {"name": "shadow_kl", "canary": 0.123457},
    ] == figures_to_status(figures)
