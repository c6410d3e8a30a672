"""Makes the pictures of `/sternpost/ui` of a running gateway: `python -m docs.make_screenshots http://HOST:PORT`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

FOLDER: Final = Path(__file__).parent
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")

WIDTH: Final = 1000
COLOURS_MAX: Final = 64
"""Of a picture: text on even grounds needs no more, and its file is a quarter of the size."""

SETTLE_MS: Final = 8000
"""Between the first look and the picture, so that it shows rates."""


def main(url: str, chromium: str = "/usr/bin/chromium") -> None:
    """Write one picture for each colour scheme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in SCHEMES:
            write_picture(browser, f"{url.rstrip('/')}/sternpost/ui", scheme)


def write_picture(browser: Browser, url: str, scheme: Literal["light", "dark"]) -> None:
    """Write the picture of the whole page."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 600}, color_scheme=scheme)
    page.goto(url)
    page.wait_for_timeout(SETTLE_MS)
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture.quantize(COLOURS_MAX).save(FOLDER / f"ui-{scheme}.png", optimize=True)
    page.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
