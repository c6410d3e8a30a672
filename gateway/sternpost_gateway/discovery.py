"""
Which engines there are.

A source tells all its engines each time, so that a missed change is mended by the next telling. What it
cannot find out changes nothing: engines that have gone without a word fail their probes, and get nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from sternpost_gateway.fleet import Engine

logger = logging.getLogger(__name__)

ENGINES_MAX: Final = 1024
"""Engines of one pool; addresses beyond them are left out."""

PORT_DEFAULT: Final = 8000
"""Where vLLM listens unless it is told otherwise."""

OnEngines = Callable[[Sequence[Engine]], None]
"""Told all engines that a source knows, whether they have changed or not."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host; raises OSError if it cannot."""


class Members:
    """The engines of all sources together, and those that are given and stay."""

    def __init__(self, static: Sequence[Engine], on_engines: OnEngines) -> None:
        self._static = tuple(static)
        self._on_engines = on_engines
        self._found: dict[str, tuple[Engine, ...]] = {}

    def source(self, name: str) -> OnEngines:
        """Return what a source of this name tells its engines to; each telling replaces its last one."""

        def take(engines: Sequence[Engine]) -> None:
            self._found[name] = tuple(engines)
            found = (engine for part in self._found.values() for engine in part)
            self._on_engines(tuple(dict.fromkeys((*self._static, *found))))

        return take


class DnsDiscovery:
    """
    The addresses behind host names, such as a headless Service's, which lists the pods that are ready.

    `urls` are http://HOST:PORT.
    """

    def __init__(self, urls: Sequence[str], resolve: Resolve, period_seconds: float) -> None:
        self._urls = tuple(urls)
        self._resolve = resolve
        self._period_seconds = period_seconds
        self._found: dict[str, tuple[Engine, ...]] = {}

    async def run(self, on_engines: OnEngines) -> None:
        """Look all names up again and again, and tell what they stand for, until cancelled."""
        while True:
            on_engines(await self.look())
            await asyncio.sleep(self._period_seconds)

    async def look(self) -> tuple[Engine, ...]:
        """Return the engines now; of a name that cannot be looked up, what was found last."""
        for url in self._urls:
            await self._look_up(url)
        found = [engine for url in self._urls for engine in self._found.get(url, ())]
        return tuple(dict.fromkeys(found))[:ENGINES_MAX]

    async def _look_up(self, url: str) -> None:
        parts = urlsplit(url)
        port = parts.port or PORT_DEFAULT
        before = self._found.get(url)
        try:
            addresses = await self._resolve(parts.hostname or "", port)
        except OSError as error:
            logger.warning("%s cannot be looked up: %s; %d engines stay", url, error, len(before or ()))
            return
        found = tuple(Engine(f"http://{_host(address)}:{port}") for address in sorted(set(addresses)))
        if found != before:
            logger.info("%s is %d engines", url, len(found))
        self._found[url] = found


async def resolve(host: str, port: int) -> list[str]:
    """
    Return the addresses of a host from the system's resolver.

    Raises:
        OSError: there are none, or the resolver does not answer.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
