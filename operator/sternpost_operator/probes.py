"""The HTTP client by which engines and gateways are asked."""

from __future__ import annotations

import ssl
from typing import Final

import httpx

TIMEOUT_SECONDS: Final = 2.0
CONNECTIONS_MAX: Final = 16


def probe_client(verify: ssl.SSLContext | bool = True) -> httpx.AsyncClient:
    """
    Return a client that believes no environment variable about proxies.

    `verify` is how servers show who they are where they serve TLS.
    """
    # Whoever waits for a connection is not silent: only what it takes to answer counts.
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
        timeout=httpx.Timeout(TIMEOUT_SECONDS, pool=None),
        trust_env=False,
        verify=verify,
    )
