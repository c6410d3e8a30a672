"""`/sternpost/ui` shows what `sternpost top` shows, escapes it, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.fleet import UNKNOWN, Engine, View
from sternpost_gateway.merged_metrics import merge_pages
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.top.figures import engine_rows, pool_rows
from sternpost_gateway.top.page import Page, Series, read_page, series_of
from sternpost_gateway.ui.history import SAMPLE_SECONDS_MIN, WINDOW_SECONDS, History
from sternpost_gateway.ui.routes import FILES, UI_PATH, Ui

POLICY: Final = "agents/support"


class Scene:
    """A gateway's metrics, and its page behind an ASGI transport."""

    def __init__(self, name: str = "gateway-0") -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.clock = FakeClock()
        self.samples = 0
        self.history = History(name, self._sample, self.clock)
        self._app = Starlette(routes=Ui(self.history).routes())

    def count(self, requests: int) -> None:
        """Count so many requests of the policy."""
        self.metrics.requests.labels(POLICY, "all", "2xx").inc(requests)

    async def get(self, path: str = UI_PATH) -> httpx.Response:
        """Ask for a page."""
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.get(path)

    async def rows(self) -> list[list[str]]:
        """Return the cells of all rows of all tables but their headings."""
        bodies = re.findall(r"<tbody>(.*?)</tbody>", (await self.get()).text)
        rows = [row for body in bodies for row in re.findall(r"<tr>(.*?)</tr>", body)]
        return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]

    async def _sample(self) -> tuple[Series, ...]:
        self.samples += 1
        return series_of(self.registry.collect())


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A gateway that has counted nothing."""
    yield Scene()


async def test_the_page_shows_pools_engines_and_policies(scene: Scene) -> None:
    """With the figures that the metrics hold."""
    scene.count(7)
    scene.metrics.show_pools(
        [
            View(Engine("http://a", "ns/qwen"), True, 0, UNKNOWN),
            View(Engine("http://b", "ns/qwen"), False, 0, UNKNOWN),
        ]
    )
    scene.metrics.engine_plugin.labels("http://a", "ready").set(1)
    scene.metrics.cold_waiting.labels("http://a").set(3)

    rows = await scene.rows()

    assert [POLICY, "7", "-", "-", "-", "-", "-", "-"] in rows
    assert ["ns/qwen", "2", "1"] in rows
    assert ["http://a", "ready", "-", "3", "-"] in rows


async def test_rates_are_of_the_time_between_two_looks(scene: Scene) -> None:
    """Of what happened since the older one."""
    scene.count(7)
    await scene.get()
    scene.clock.advance(4.0)
    scene.count(8)

    text = (await scene.get()).text

    assert [POLICY, "8", "2.0"] == next(row[:3] for row in await scene.rows() if row[0] == POLICY)
    assert "of the last 4 s" in text


@pytest.mark.parametrize(
    ("steps", "expected", "samples"),
    [
        pytest.param([], None, 1, id="a first look"),
        pytest.param([SAMPLE_SECONDS_MIN / 2], None, 1, id="two at once are one sample"),
        pytest.param([SAMPLE_SECONDS_MIN], SAMPLE_SECONDS_MIN, 2, id="a second one"),
        pytest.param([2.0] * 20, WINDOW_SECONDS, 21, id="older ones leave the window"),
        pytest.param([2.0, 600.0], None, 3, id="after a long while it begins anew"),
    ],
)
async def test_the_window_is_bounded(
    steps: list[float], expected: float | None, samples: int, scene: Scene
) -> None:
    """In time, and so in memory; and many who look cost no more than one."""
    before, now = await scene.history.look()
    for step in steps:
        scene.clock.advance(step)
        before, now = await scene.history.look()

    assert expected == (None if before is None else now.at - before.at)
    assert samples == scene.samples


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        pytest.param(0, '<p class="level well">Kill level <strong>K0</strong>: nothing', id="nothing"),
        pytest.param(1, '<p class="level killed">Kill level <strong>K1</strong>: NoSuffixReads', id="K1"),
        pytest.param(5, '<p class="level killed">Kill level <strong>K5</strong>: PlainProxy', id="K5"),
    ],
)
async def test_the_kill_level_is_said_in_words(level: int, expected: str, scene: Scene) -> None:
    """Not by colour alone."""
    scene.metrics.kill_level.labels("").set(level)

    assert expected in (await scene.get()).text


async def test_workers_are_shown_as_one_gateway() -> None:
    """What each has of its own is added up; of what all of them see, the worst counts."""
    pages = {}
    for worker, (waiting, ready) in enumerate([(1, True), (2, False)]):
        scene = Scene()
        scene.metrics.cold_waiting.labels("http://a").set(waiting)
        scene.metrics.show_pools([View(Engine("http://a", "p"), ready, 0, UNKNOWN)])
        pages[worker] = generate_latest(scene.registry).decode()
    page = Page("gateway-0", 0.0, read_page(merge_pages(pages)))

    (engine,), (pool,) = engine_rows(page), pool_rows(page)

    assert (3.0, 0.0, 1.0) == (engine.cold_waiting, pool.ready, pool.not_ready)


async def test_names_are_escaped() -> None:
    """A policy's name is not markup, wherever it comes from."""
    scene = Scene("<b>gateway</b>")
    scene.metrics.requests.labels("<script>alert(1)</script>", "all", "2xx").inc()

    text = (await scene.get()).text

    assert "<script>alert" not in text and "<b>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "&lt;b&gt;gateway" in text


@pytest.mark.parametrize("path", [UI_PATH, *(f"{UI_PATH}/{name}" for name in FILES)])
async def test_everything_is_served_with_a_strict_policy(path: str, scene: Scene) -> None:
    """And from this gateway: nothing names another place."""
    answer = await scene.get(path)

    assert 200 == answer.status_code
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert [] == re.findall(r"(?:https?:)?//[a-z]", answer.text)


async def test_another_file_is_not_there(scene: Scene) -> None:
    """And the answer says what is."""
    answer = await scene.get(f"{UI_PATH}/page.html")

    assert (404, "there is nothing but style.css, refresh.js") == (answer.status_code, answer.text)
