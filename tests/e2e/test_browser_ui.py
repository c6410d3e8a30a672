"""`/sternpost/ui` in a real browser: its figures are those of /metrics, live and readable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.gateway import RunningGateway, running_gateway
from sternpost_running.browser import complaints_of, running_browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

TAIL: Final = " ".join(f"Rule {number} speaks of door {number * 7 % 90}." for number in range(80))
REQUESTS: Final = 3
POLICY: Final = "agents/support"

CONTRAST_MIN: Final = 4.5
"""Of text to its ground: WCAG 2.2, success criterion 1.4.3, level AA."""

COLOURS: Final = """
() => {
  const ground = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
    }
    return getComputedStyle(document.documentElement).backgroundColor;
  };
  const texts = document.querySelectorAll("h1, h1 span, a, button, .level, .note, caption, th, td");
  return [...texts].map((one) => [one.tagName, getComputedStyle(one).color, ground(one)]);
}
"""
"""Returns what each text is, its colour, and the colour of what it stands on."""


@asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with running_engine(FakeEngine()) as engine, running_gateway(folder, [engine.url]) as gateway:
        await _ask(gateway.client, REQUESTS)
        yield gateway


async def _ask(client: httpx.AsyncClient, count: int) -> None:
    for number in range(count):
        body = {
            "model": "qwen",
            "messages": [
                {"role": "user", "content": f"Where is door {number}?"},
                {"role": "system", "content": TAIL},
            ],
        }
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


@asynccontextmanager
async def _page(
    url: str, *, scheme: Literal["light", "dark"] = "light", scripts: bool = True
) -> AsyncIterator[tuple[Page, list[str]]]:
    """Open the page; yield it and what the browser complains about."""
    async with running_browser() as browser:
        page = await _new_page(browser, scheme, scripts)
        complaints = complaints_of(page)
        await page.goto(f"{url}/sternpost/ui")
        yield page, complaints


async def _new_page(browser: Browser, scheme: Literal["light", "dark"], scripts: bool) -> Page:
    context = await browser.new_context(color_scheme=scheme, java_script_enabled=scripts)
    return await context.new_page()


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
async def test_the_page_tells_what_the_gateway_has_counted(scripts: bool, tmp_path: Path) -> None:
    """By table, row and cell, as a screen reader finds them; a script is needed for none of it."""
    async with _gateway(tmp_path) as gateway, _page(gateway.url, scripts=scripts) as (page, complaints):
        table = page.get_by_role("table", name="Policies")
        row = table.get_by_role("row", name=POLICY)

        await expect(page.get_by_text("Kill level K0: nothing is switched off for all")).to_be_visible()
        await expect(row.get_by_role("cell").nth(0)).to_have_text(str(REQUESTS))
        await expect(page.get_by_role("table", name="Engines")).to_contain_text("ready")
        assert gateway.metric("sternpost_gateway_requests_total", policy=POLICY) == REQUESTS
        assert [] == complaints


async def test_figures_are_live_until_they_are_paused(tmp_path: Path) -> None:
    """The same page, without a reload; the button says what it will do."""
    async with _gateway(tmp_path) as gateway, _page(gateway.url) as (page, complaints):
        cell = page.get_by_role("row", name=POLICY).get_by_role("cell").nth(0)
        await expect(cell).to_have_text(str(REQUESTS))
        await _ask(gateway.client, 1)

        # Of the last seconds now, no longer since the start.
        await expect(cell).to_have_text("1", timeout=10_000)
        await page.get_by_role("button", name="Pause").press("Enter")

        await expect(page.get_by_role("button", name="Resume")).to_have_attribute("aria-pressed", "true")
        assert [] == complaints


async def test_a_gateway_that_is_gone_is_said_so(tmp_path: Path) -> None:
    """Old figures are never shown as if they were new."""
    async with running_browser() as browser:
        page = await _new_page(browser, "light", True)
        async with _gateway(tmp_path) as gateway:
            await page.goto(f"{gateway.url}/sternpost/ui")

        await expect(page.get_by_role("alert")).to_contain_text("does not answer", timeout=15_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read(scheme: Literal["light", "dark"], tmp_path: Path) -> None:
    """In either scheme, every text is in enough contrast to what it stands on; the two schemes differ."""
    async with _gateway(tmp_path) as gateway, _page(gateway.url, scheme=scheme) as (page, _):
        found: list[tuple[str, str, str]] = await page.evaluate(COLOURS)
        grounds = [_luminance(ground) for _, _, ground in found]

    assert {"H1", "A", "BUTTON", "P", "CAPTION", "TH", "TD"} <= {tag for tag, _, _ in found}
    assert [] == [one for one in found if _contrast(one[1], one[2]) < CONTRAST_MIN]
    assert (scheme == "dark") is (max(grounds) < 0.5)


async def test_everything_can_be_reached_with_the_keyboard(tmp_path: Path) -> None:
    """In the order of the page."""
    async with _gateway(tmp_path) as gateway, _page(gateway.url) as (page, _):
        names = []
        for _ in range(8):
            await page.keyboard.press("Tab")
            names.append(
                await page.evaluate(
                    "document.activeElement.ariaLabel || document.activeElement.textContent.trim()"
                )
            )

    expected = ["Refresh", "Metrics", "Readiness", "Pause", "Gateway", "Policies", "Pools", "Engines"]
    assert expected == names


async def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    """A cluster without a way out shows the same page."""
    async with _gateway(tmp_path) as gateway, running_browser() as browser:
        page = await _new_page(browser, "light", True)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{gateway.url}/sternpost/ui")

    assert {"/sternpost/ui", "/sternpost/ui/style.css", "/sternpost/ui/refresh.js"} <= {
        urlsplit(url).path for url in asked
    }
    assert {urlsplit(gateway.url).netloc} == {urlsplit(url).netloc for url in asked if url[:5] != "data:"}


def _luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)`, as WCAG defines it."""
    parts = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
