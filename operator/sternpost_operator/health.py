"""
What a kubelet asks: whether the operator lives, with or without an API server, and whether it works.

kopf's own endpoint begins only once the API server has been reached. An operator that starts within an outage
would be taken for dead, and started again later and later, long after the server is back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from sternpost_core.errors import OperatingError

LIVE_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
NOT_READY: Final = {"reason": "not every kind of object has been listed yet"}
EVERY_ADDRESS: Final = "0.0.0.0"
END_SECONDS_MAX: Final = 1.0


@asynccontextmanager
async def serve_health(port: int, is_ready: Callable[[], bool]) -> AsyncIterator[None]:
    """
    Answer `GET /healthz` and `GET /readyz` for the length of a block; a port of 0 is not listened on.

    The first answers 200 for as long as the event loop turns, the second 503 until `is_ready` says yes.

    Raises:
        OperatingError: the port cannot be listened on.
    """
    if not port:
        yield
        return

    async def live(request: web.Request) -> web.Response:
        return web.json_response({})

    async def ready(request: web.Request) -> web.Response:
        return web.json_response({}) if is_ready() else web.json_response(NOT_READY, status=503)

    application = web.Application()
    application.add_routes([web.get(LIVE_PATH, live), web.get(READY_PATH, ready)])
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
