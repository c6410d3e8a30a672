"""What a dashboard shows, as values: panels of queries, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Query:
    """A query in PromQL, and what its lines are called in terms of its labels."""

    text: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """
    One panel.

    `unit` is Grafana's id of it; `alerts` are those whose runbooks explain what is seen. `is_stat` panels
    show the last value instead of a history.
    """

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    alerts: tuple[str, ...] = ()
    is_stat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; `prices` adds the two prices of a million tokens as fields to fill in."""

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    prices: bool = False
