"""The endpoints of the page: it, its style and its script, each from this gateway and nowhere else."""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sternpost_gateway.ui.history import History
from sternpost_gateway.ui.render import render

UI_PATH: Final = "/sternpost/ui"

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page may load its own style and script, and ask its gateway; `data:` is the icon that it has not."""

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

FILES: Final = {"style.css": "text/css", "refresh.js": "text/javascript"}
"""What the page loads, and as what; both are shipped beside this module."""


class Ui:
    """Answers browsers; like `/metrics` it tells figures, and takes no orders."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._template = Template(_read("page.html"))

    def routes(self) -> list[Route]:
        """Return the routes of the page and its files."""
        return [Route(UI_PATH, self.page), Route(f"{UI_PATH}/{{name}}", self.file)]

    async def page(self, request: Request) -> Response:
        """Return the page, complete without its script."""
        before, now = await self._history.look()
        return Response(render(self._template, before, now), headers=HEADERS, media_type="text/html")

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"]
        if name not in FILES:
            return Response(f"there is nothing but {', '.join(FILES)}", 404, media_type="text/plain")
        return Response(_read(name), headers=HEADERS, media_type=FILES[name])


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
