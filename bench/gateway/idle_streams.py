"""What a stream costs in memory that is open and silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import aiohttp

from bench.gateway.upstream import CHAT_PATH

STREAMS: Final = 200
SETTLE_SECONDS: Final = 1.0
"""After which a gateway holds what it will hold."""

FIRST_BYTE_SECONDS_MAX: Final = 60.0


async def bytes_per_stream(url: str, body: str, held: Callable[[], int], streams: int = STREAMS) -> float:
    """
    Open streams that stay silent behind their first event, and return what each adds to `held`, in bytes.

    One stream before them makes the gateway load whatever it loads at its first.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_read=FIRST_BYTE_SECONDS_MAX)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        AsyncExitStack() as stack,
    ):
        await _open(session, url, body, stack)
        before = await _settled(held)
        for _ in range(streams):
            await _open(session, url, body, stack)
        return (await _settled(held) - before) / streams


async def _open(session: aiohttp.ClientSession, url: str, body: str, stack: AsyncExitStack) -> None:
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = session.post(f"{url}{CHAT_PATH}", data=body.encode(), headers=headers)
    response = await stack.enter_async_context(request)
    response.raise_for_status()
    await response.content.readany()


async def _settled(held: Callable[[], int]) -> int:
    await asyncio.sleep(SETTLE_SECONDS)
    return held()
