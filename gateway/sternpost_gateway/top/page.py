"""One gateway's /metrics at one moment, fetched and read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from sternpost_core.clock import Clock

PREFIX: Final = "sternpost_gateway_"

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A page that is larger is no gateway's."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value, by the metric's name without the product's prefix, and labels."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """What a gateway said; `at` in monotonic seconds. With a `fault` it said nothing that could be read."""

    gateway: str
    at: float
    series: tuple[Series, ...] = ()
    fault: str | None = None


def series_of(families: Iterable[Metric]) -> tuple[Series, ...]:
    """Return the gateway's own series, from a registry or from a page that was parsed."""
    return tuple(
        Series(sample.name.removeprefix(PREFIX), sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    )


def read_page(text: str) -> tuple[Series, ...]:
    """
    Return the gateway's own series of a page in Prometheus' text format.

    Raises:
        ValueError: the text is not in that format.
    """
    return series_of(text_string_to_metric_families(text))


async def fetch_pages(client: httpx.AsyncClient, gateways: Sequence[str], clock: Clock) -> tuple[Page, ...]:
    """Ask all gateways at once; one that does not answer is a page with a fault."""
    return tuple(await asyncio.gather(*(_fetch(client, gateway, clock) for gateway in gateways)))


async def _fetch(client: httpx.AsyncClient, gateway: str, clock: Clock) -> Page:
    try:
        answer = await client.get(f"{gateway.rstrip('/')}/metrics")
        if answer.status_code != 200:
            return Page(gateway, clock.monotonic(), fault=f"status {answer.status_code}")
        if len(answer.content) > PAGE_BYTES_MAX:
            return Page(gateway, clock.monotonic(), fault=f"a page of over {PAGE_BYTES_MAX} bytes")
        return Page(gateway, clock.monotonic(), read_page(answer.text))
    except httpx.HTTPError as error:
        return Page(gateway, clock.monotonic(), fault=str(error) or type(error).__name__)
    except ValueError:
        return Page(gateway, clock.monotonic(), fault="no metrics in Prometheus' format")
