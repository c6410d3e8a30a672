"""
Running the gateway as a process: socket, server, signals and an orderly end.

On SIGTERM readiness goes off first; the socket closes when load balancers have had time to notice, and what
streams then may finish, up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError
from sternpost_gateway.admin import Lifecycle
from sternpost_gateway.app import create_app
from sternpost_gateway.engine_api import control_client
from sternpost_gateway.http_protocol import protocol_with
from sternpost_gateway.settings import Settings, Timeouts
from sternpost_gateway.upstream import PooledUpstream

logger = logging.getLogger(__name__)

BACKLOG: Final = 2048
"""Connections that the kernel holds until they are accepted."""

HEADER_BYTES_MAX: Final = 65536
"""Of a request's line and headers together."""

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

QUIET_LOGGERS: Final = {"httpx": logging.WARNING, "httpcore": logging.WARNING, "watchfiles": logging.WARNING}
"""Loggers that would write a line per probe."""


class Server(uvicorn.Server):
    """The HTTP server, with a drain before its own shutdown."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, drain_delay_seconds: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_delay_seconds = drain_delay_seconds

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server in an orderly way, and the process with status 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Go not ready, wait, close the socket, let requests finish; a second signal skips the wait."""
        self._lifecycle.draining = True
        logger.info("draining")
        deadline = asyncio.get_running_loop().time() + self._drain_delay_seconds
        while not self.force_exit and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
        await super().shutdown(sockets)


def serve(settings: Settings) -> None:
    """
    Run the gateway until it is told to stop.

    Raises:
        PolicyError: the policies cannot go live.
        OperatingError: the port cannot be bound, or state cannot be read.
    """
    configure_logging()
    with open_socket(settings) as listening:
        uvloop.run(_serve(settings, listening))


def open_socket(settings: Settings) -> socket.socket:
    """
    Bind the listening socket.

    Raises:
        OperatingError: host and port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise OperatingError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from None
    # What a client does not read for so long is given up by the kernel, too; its connections inherit this.
    stall_ms = int(settings.timeouts.write_stall_seconds * 1000)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    return listening


def make_registry() -> CollectorRegistry:
    """Return a registry that also tells about the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def server_config(app: ASGIApp, timeouts: Timeouts) -> uvicorn.Config:
    """Return how the HTTP server runs: it adds no header and no log line of its own."""
    return uvicorn.Config(
        app,
        loop="none",
        http=protocol_with(timeouts.headers_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=timeouts.client_keepalive_seconds,
        timeout_graceful_shutdown=timeouts.drain_seconds,
    )


def configure_logging(level: int = logging.INFO) -> None:
    """Log to standard error, one line each; libraries that would log every probe are kept quiet."""
    logging.basicConfig(level=level, format=LOG_FORMAT)
    for name, quiet in QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet)
    # An answer that is cut on purpose would be an error to the server, once for each.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


async def _serve(settings: Settings, listening: socket.socket) -> None:
    lifecycle = Lifecycle()
    app = create_app(
        settings,
        clock=SystemClock(),
        registry=make_registry(),
        upstream=PooledUpstream(settings.limits, settings.timeouts),
        control=control_client(settings.engine_key),
        chance=random.Random(),
        lifecycle=lifecycle,
    )
    server = Server(server_config(app, settings.timeouts), lifecycle, settings.timeouts.drain_delay_seconds)
    host, port = _address(listening.getsockname())
    logger.info("listening on http://%s:%s for %s", host, port, ", ".join(settings.engines))
    await server.serve(sockets=[listening])


def _address(name: Sequence[object]) -> tuple[object, object]:
    return name[0], name[1]
