"""Headless Chromium, for what only a browser can say about a web page."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, async_playwright

INSTALL: Final = Path(__file__).parents[1] / "chromium" / "install.sh"

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""For root, as which containers run, and without a graphics card."""


@lru_cache(maxsize=1)
def chromium() -> str:
    """Return the path of the browser's program."""
    done = subprocess.run([INSTALL], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Run a browser for the length of a block."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


def complaints_of(page: Page) -> list[str]:
    """Return a list that grows by what the browser complains about: what is blocked, fails or throws."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    return complaints
