"""The screen: four tables that are brought up to date once a second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Header, Static

from sternpost_gateway.top.figures import engine_rows, gateway_row, policy_rows, pool_rows
from sternpost_gateway.top.page import Page
from sternpost_gateway.top.tables import (
    ENGINE_HEADINGS,
    GATEWAY_HEADINGS,
    POLICY_HEADINGS,
    POOL_HEADINGS,
    engine_cells,
    gateway_cells,
    policy_cells,
    pool_cells,
)

REFRESH_SECONDS: Final = 1.0

WINDOW_PAGES: Final = 10
"""Rates and shares are over as many refreshes: of fewer, a quiet policy would flicker."""

TABLES: Final = {
    "gateways": GATEWAY_HEADINGS,
    "pools": POOL_HEADINGS,
    "engines": ENGINE_HEADINGS,
    "policies": POLICY_HEADINGS,
}
"""The columns of each table, from top to bottom."""

Fetch = Callable[[], Awaitable[tuple[Page, ...]]]


class TopScreen(App[None]):
    """Shows what gateways do now; `fetch` asks all of them once."""

    TITLE = "sternpost top"
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]
    CSS = "DataTable { height: auto; margin: 1 0; } #policies { height: 1fr; }"

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch
        self._history: list[tuple[Page, ...]] = []
        self._is_busy = False

    def compose(self) -> ComposeResult:
        """Lay out the tables."""
        yield Header()
        for name in TABLES:
            yield DataTable[str](id=name, show_cursor=False)
        yield Static(f"rates, shares and times of the last {WINDOW_PAGES * REFRESH_SECONDS:.0f} s")
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to refresh."""
        for name, headings in TABLES.items():
            self._table(name).add_columns(*headings)
        self.set_interval(REFRESH_SECONDS, self.refresh_figures)
        await self.refresh_figures()

    async def refresh_figures(self) -> None:
        """Ask all gateways once, and show what they say; a round that is late is left out."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            self._history = [*self._history[-WINDOW_PAGES:], await self._fetch()]
        finally:
            self._is_busy = False
        self._show()

    def _show(self) -> None:
        gateways, pools, engines, policies = (self._table(name).clear() for name in TABLES)
        oldest = self._history[0] if len(self._history) > 1 else (None,) * len(self._history[0])
        for before, now in zip(oldest, self._history[-1], strict=True):
            gateways.add_row(*gateway_cells(gateway_row(now)))
            pools.add_rows(pool_cells(row) for row in pool_rows(now))
            engines.add_rows(engine_cells(row) for row in engine_rows(now))
            policies.add_rows(policy_cells(row) for row in policy_rows(before, now))

    def _table(self, name: str) -> DataTable[str]:
        return self.query_one(f"#{name}", DataTable)
