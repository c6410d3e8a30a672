"""The page as HTML: a pure function of two samples; whatever comes from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

from sternpost_core.kill import KillLevel
from sternpost_gateway.top.figures import GatewayRow, engine_rows, gateway_row, policy_rows, pool_rows
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

LEVELS: Final = {level.k: level.value for level in KillLevel}


def render(template: Template, before: Page | None, now: Page) -> str:
    """Return the page: `template` has the places `gateway`, `level`, `window` and one for each table."""
    row = gateway_row(now)
    policies = (policy_cells(one) for one in policy_rows(before, now))
    return template.substitute(
        gateway=escape(now.gateway),
        level=_level(row),
        window=_window(before, now),
        # Its last column says why a gateway does not answer; this one does.
        gateways=_table("Gateway", GATEWAY_HEADINGS[:-1], [gateway_cells(row)[:-1]]),
        policies=_table("Policies", POLICY_HEADINGS, policies),
        pools=_table("Pools", POOL_HEADINGS, (pool_cells(one) for one in pool_rows(now))),
        engines=_table("Engines", ENGINE_HEADINGS, (engine_cells(one) for one in engine_rows(now))),
    )


def _level(row: GatewayRow) -> str:
    """Return the level for all in words: colour alone would not reach everybody."""
    number = 0 if row.kill_level is None else int(row.kill_level)
    words = "nothing is switched off for all" if number == 0 else f"{LEVELS[number]} for all"
    kind = "well" if number == 0 else "killed"
    return f'<p class="level {kind}">Kill level <strong>K{number}</strong>: {words}</p>'


def _window(before: Page | None, now: Page) -> str:
    if before is None:
        return "since the gateway's start"
    return f"of the last {now.at - before.at:.0f} s"


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without its first column, which names the gateway: a page is of one gateway only."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings[1:])
    body = "".join(_row(cells[1:]) for cells in rows)
    nothing = f'<tr><td colspan="{len(headings) - 1}">none yet</td></tr>'
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body or nothing}</tbody></table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    first, *others = (escape(cell) for cell in cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
