"""Asking Prometheus for a policy's figures."""

from __future__ import annotations

from typing import Any, Final, Protocol

import httpx

from sternpost_core.errors import OperatingError
from sternpost_operator.figures import Figures
from sternpost_operator.queries import Spans, policy_query, read_figures

TIMEOUT_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 1 << 20
"""The figures of one policy are some ten kilobytes."""

CONNECTIONS_MAX: Final = 8


class FiguresUnavailable(OperatingError):
    """There are no figures: nobody answered, or not in a way that can be understood."""


class FigureSource(Protocol):
    """Where figures come from."""

    async def figures(self, url: str, policy: str, spans: Spans) -> Figures:
        """Return a policy's figures; raise `FiguresUnavailable` where there are none."""


class Prometheus:
    """Asks Prometheus' HTTP API; `client` decides about the network."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def figures(self, url: str, policy: str, spans: Spans) -> Figures:
        """Return the figures of a policy by its full name."""
        query = {"query": policy_query(policy, spans)}
        address = f"{url.rstrip('/')}/api/v1/query"
        try:
            # By POST, since a query of this length does not fit into every proxy's idea of a URL.
            response = await self._client.post(address, data=query, timeout=TIMEOUT_SECONDS)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise FiguresUnavailable(f"{address} is no URL: {error}") from error
        except httpx.HTTPError as error:
            raise FiguresUnavailable(f"{address} did not answer: {type(error).__name__}") from error
        if not response.is_success or len(response.content) > ANSWER_BYTES_MAX:
            raise FiguresUnavailable(f"{address} answered with status {response.status_code}")
        return read_figures(_vector(address, response))


def prometheus_client() -> httpx.AsyncClient:
    """Return the client for Prometheus; it believes no environment variable about proxies."""
    return httpx.AsyncClient(limits=httpx.Limits(max_connections=CONNECTIONS_MAX), trust_env=False)


def _vector(address: str, response: httpx.Response) -> list[dict[str, Any]]:
    try:
        data = response.json()["data"]
        result: list[dict[str, Any]] = data["result"]
        is_vector = data["resultType"] == "vector" and all(isinstance(one, dict) for one in result)
    except (ValueError, KeyError, TypeError) as error:
        raise FiguresUnavailable(f"{address} answered, but not with figures") from error
    if not is_vector:
        raise FiguresUnavailable(f"{address} answered, but not with a vector")
    return result
