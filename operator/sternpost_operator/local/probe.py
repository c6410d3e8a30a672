"""Asks children whether they are well, over HTTP, with a limit."""

from __future__ import annotations

import httpx


async def is_well(client: httpx.AsyncClient, url: str, seconds_max: float) -> bool:
    """Tell whether `url` answers 200 within `seconds_max`."""
    try:
        response = await client.get(url, timeout=seconds_max)
    except httpx.TransportError:
        return False
    return response.status_code == httpx.codes.OK


def make_client() -> httpx.AsyncClient:
    """Return a client that talks to this machine itself, whatever proxies the environment names."""
    return httpx.AsyncClient(trust_env=False)
