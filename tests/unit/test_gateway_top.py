"""`sternpost top` reads real metrics, says what they mean, and survives gateways that do not answer."""

from __future__ import annotations

import argparse
import io
from typing import Final

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from textual.widgets import DataTable

from sternpost_core.errors import SettingsError
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.merged_metrics import merge_pages
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.top.command import COMMAND, gateways_of, print_pages
from sternpost_gateway.top.figures import gateway_row, policy_rows, quantile
from sternpost_gateway.top.page import Page, fetch_pages, read_page
from sternpost_gateway.top.screen import TopScreen

GATEWAY: Final = "http://gateway:8080"


def page(
    requests: int, *, suffix: int = 0, computed: int = 0, at: float = 0.0, seconds: float = 0.09
) -> Page:
    """Return the page of a gateway that has counted this much for one policy."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.engines_ready.set(2)
    metrics.kill_level.labels("").set(0)
    metrics.kill_level.labels("agents/support").set(1)
    metrics.requests.labels("agents/support", "all", "2xx").inc(requests)
    metrics.prompt_tokens.labels("agents/support", "all", "suffix").inc(suffix)
    metrics.prompt_tokens.labels("agents/support", "all", "computed").inc(computed)
    for _ in range(requests):
        metrics.first_token_seconds.labels("agents/support", "all", "suffix").observe(seconds)
    return Page(GATEWAY, at, read_page(generate_latest(registry).decode()))


def test_figures_are_of_what_happened_between_two_pages() -> None:
    """What was before does not count."""
    (row,) = policy_rows(page(10, computed=900), page(30, suffix=300, computed=1000, at=10.0))

    assert ("agents/support", 20.0, 2.0, 0.75, 0.0, 1.0) == (
        row.policy,
        row.requests,
        row.requests_per_second,
        row.reused_share,
        row.full_prefill_share,
        row.kill_level,
    )
    assert row.ttft_p50 == pytest.approx(0.09) and row.ttft_p95 == pytest.approx(0.099)


def test_workers_of_a_gateway_are_one_row() -> None:
    """What is in flight adds up, and of what each believes the worse counts."""
    registries = [CollectorRegistry(), CollectorRegistry()]
    for ready, registry in enumerate(registries, start=1):
        metrics = Metrics(registry)
        metrics.engines_ready.set(ready)
        metrics.in_flight.set(3)
        metrics.config_age_seconds.set(ready)
    merged = merge_pages({n: generate_latest(registry).decode() for n, registry in enumerate(registries)})
    row = gateway_row(Page(GATEWAY, 0.0, read_page(merged)))

    assert (6.0, 1.0, 2.0) == (row.in_flight, row.engines_ready, row.config_age_seconds)


def test_a_gateway_that_began_anew_counts_from_zero() -> None:
    """A counter that is smaller than before has not run backwards."""
    (row,) = policy_rows(page(30), page(4, at=2.0))

    assert (4.0, 2.0) == (row.requests, row.requests_per_second)


def test_without_a_page_before_everything_since_the_start_counts() -> None:
    """And there is no rate, for nobody knows since when."""
    (row,) = policy_rows(None, page(5))

    assert (5.0, None, None) == (row.requests, row.requests_per_second, row.reused_share)


def test_a_gateways_row_is_what_it_says_itself() -> None:
    """The level is the one for all; a policy may be at a higher one."""
    row = gateway_row(page(1))

    assert (2.0, 0.0, None) == (row.engines_ready, row.kill_level, row.fault)


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        pytest.param({}, None, id="no histogram"),
        pytest.param({1.0: 0.0, float("inf"): 0.0}, None, id="nothing counted"),
        pytest.param({1.0: 4.0, float("inf"): 4.0}, 0.5, id="within the first bucket"),
        pytest.param({1.0: 1.0, 2.0: 3.0, float("inf"): 3.0}, 1.25, id="within a later one"),
        pytest.param({1.0: 1.0, float("inf"): 9.0}, 1.0, id="beyond the last bound"),
    ],
)
def test_quantiles_are_prometheus(buckets: dict[float, float], expected: float | None) -> None:
    """The median, by interpolation within its bucket."""
    assert expected == quantile(0.5, buckets)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        pytest.param(httpx.Response(404), "status 404", id="no gateway"),
        pytest.param(httpx.Response(200, text="<html>"), "no metrics in Prometheus' format", id="a web page"),
        pytest.param(httpx.ConnectError("refused"), "refused", id="nobody there"),
        pytest.param(httpx.ReadTimeout(""), "ReadTimeout", id="too slow"),
    ],
)
async def test_a_gateway_that_says_nothing_is_shown_with_the_reason(
    answer: httpx.Response | Exception, fault: str
) -> None:
    """The others' figures are shown beside it."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.host == "well":
            return httpx.Response(200, text="sternpost_gateway_engines_ready 3\n")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        pages = await fetch_pages(client, ["http://ill", "http://well"], FakeClock())

    assert (fault, None) == (pages[0].fault, pages[1].fault)
    assert [] == policy_rows(None, pages[0])
    assert (fault, 3.0) == (gateway_row(pages[0]).fault, gateway_row(pages[1]).engines_ready)


def test_one_table_can_be_printed() -> None:
    """With times, shares and levels as people read them."""
    out = io.StringIO()

    print_pages(
        [page(4, suffix=30, computed=10), Page("http://ill", 0.0, fault="refused")],
        Console(file=out, width=140),
    )

    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["agents/support", "4", "-", "75.0%", "0.0%", "90", "ms", "99", "ms", "K1"] == lines[-1][1:]
    assert any(line[-1:] == ["refused"] for line in lines)


async def test_the_screen_shows_the_newest_figures() -> None:
    """Each refresh replaces the rows."""
    pages = [(page(15, at=2.0),), (page(12, at=1.0),), (page(10),)]

    async def fetch() -> tuple[Page, ...]:
        # The last one stays, for the screen refreshes by itself, too.
        return pages.pop() if len(pages) > 1 else pages[0]

    screen = TopScreen(fetch)
    async with screen.run_test() as pilot:
        await screen.refresh_figures()
        await screen.refresh_figures()
        await pilot.pause()
        table = screen.query_one("#policies", DataTable)
        rows = [table.get_row_at(index) for index in range(table.row_count)]

    assert [["agents/support", "5", "2.5"]] == [row[1:4] for row in rows]


def test_a_url_that_is_none_is_refused_by_name() -> None:
    """Before anything is asked."""
    parser = argparse.ArgumentParser()
    COMMAND.add_arguments(parser)

    with pytest.raises(SettingsError, match="gateway:8080"):
        gateways_of(parser.parse_args(["--gateway", "gateway:8080"]))
