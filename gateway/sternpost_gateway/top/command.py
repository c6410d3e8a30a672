"""The subcommand `sternpost top`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import httpx
from rich.console import Console
from rich.table import Table

from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import SettingsError
from sternpost_gateway.settings import url_fault
from sternpost_gateway.top.figures import engine_rows, gateway_row, policy_rows, pool_rows
from sternpost_gateway.top.page import Page, fetch_pages
from sternpost_gateway.top.screen import TopScreen
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

GATEWAY_DEFAULT: Final = "http://127.0.0.1:8080"

ANSWER_SECONDS: Final = 2.0
"""How long a gateway may take to show its metrics; the screen waits for the slowest."""

PIPED_COLUMNS: Final = 200
"""The width of what is printed where there is no terminal."""


class TopCommand:
    """Show what gateways do now."""

    summary = "show reuse, times and kill levels of running gateways, as they change"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument(
            "--gateway",
            action="append",
            metavar="URL",
            help=f"base URL of a gateway; once for each (default: {GATEWAY_DEFAULT})",
        )
        parser.add_argument(
            "--once", action="store_true", help="print the figures since each gateway's start, and end"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Show the screen until it is left, or print once; the status is then 0 only if all answered."""
        gateways = gateways_of(arguments)
        if not arguments.once:
            asyncio.run(_watch(gateways))
            return 0
        pages = asyncio.run(_fetch_once(gateways))
        # Whoever pipes it into a file or a grep wants whole lines.
        print_pages(pages, Console(width=None if sys.stdout.isatty() else PIPED_COLUMNS))
        return EXIT_FAILED if any(page.fault for page in pages) else 0


COMMAND: Final = TopCommand()
"""What the entry point names."""


def gateways_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """
    Return the gateways that the flags name, each once.

    Raises:
        SettingsError: with every URL that is none.
    """
    gateways = tuple(dict.fromkeys(arguments.gateway or [GATEWAY_DEFAULT]))
    faults = [fault for url in gateways if (fault := url_fault("--gateway", url)) is not None]
    if faults:
        raise SettingsError("flags", faults)
    return gateways


def print_pages(pages: Sequence[Page], console: Console) -> None:
    """Print what the gateways say, since their start."""
    console.print(_table(GATEWAY_HEADINGS, (gateway_cells(gateway_row(page)) for page in pages)))
    console.print(_table(POOL_HEADINGS, (pool_cells(row) for page in pages for row in pool_rows(page))))
    console.print(_table(ENGINE_HEADINGS, (engine_cells(row) for page in pages for row in engine_rows(page))))
    policies = (policy_cells(row) for page in pages for row in policy_rows(None, page))
    console.print(_table(POLICY_HEADINGS, policies))


def _table(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


async def _fetch_once(gateways: Sequence[str]) -> tuple[Page, ...]:
    async with _client() as client:
        return await fetch_pages(client, gateways, SystemClock())


async def _watch(gateways: Sequence[str]) -> None:
    async with _client() as client:
        await TopScreen(lambda: fetch_pages(client, gateways, SystemClock())).run_async()


def _client() -> httpx.AsyncClient:
    """No environment variable about proxies is believed: gateways are near."""
    return httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False)
