"""
The liveness endpoint: it answers for as long as the event loop turns, with or without an API server.

kopf's own begins only once the API server has been reached. An operator that starts within an outage would be
taken for dead, and started again later and later, long after the server is back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from sternpost_core.errors import OperatingError

PATH: Final = "/healthz"
EVERY_ADDRESS: Final = "0.0.0.0"
END_SECONDS_MAX: Final = 1.0


@asynccontextmanager
async def serve_health(port: int) -> AsyncIterator[None]:
    """
    Answer `GET /healthz` for the length of a block; a port of 0 is not listened on.

    Raises:
        OperatingError: the port cannot be listened on.
    """
    if not port:
        yield
        return
    application = web.Application()
    application.router.add_get(PATH, _answer)
    runner = web.AppRunner(
        application, handle_signals=False, access_log=None, shutdown_timeout=END_SECONDS_MAX
    )
    await runner.setup()
    try:
        await _listen(runner, port)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: int) -> None:
    try:
        await web.TCPSite(runner, EVERY_ADDRESS, port).start()
    except OSError as error:
        raise OperatingError(f"--health-port {port} cannot be listened on: {error}") from error


async def _answer(request: web.Request) -> web.Response:
    return web.json_response({})
