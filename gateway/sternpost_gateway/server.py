"""
Running the gateway as a process: socket, server, signals and an orderly end.

On SIGTERM readiness goes off first; the socket closes when load balancers have had time to notice, and what
streams then may finish, up to a limit.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Final

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.types import ASGIApp

from sternpost_core.clock import SystemClock
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import OperatingError, SternpostError
from sternpost_core.logs import LogFormat, configure_logs
from sternpost_gateway.admin import Lifecycle
from sternpost_gateway.app import MakeMetrics, create_app
from sternpost_gateway.dialer import Dialer
from sternpost_gateway.engine_api import control_client
from sternpost_gateway.http_protocol import protocol_with
from sternpost_gateway.listening import bound_socket
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.pooled_upstream import PooledUpstream
from sternpost_gateway.settings import Limits, Settings, Timeouts, Traces
from sternpost_gateway.tls import Tls, engine_tls, server_tls
from sternpost_gateway.tracing import NO_TRACING, REQUEST, Tracing
from sternpost_gateway.workers import supervise

logger = logging.getLogger(__name__)

BACKLOG: Final = 2048
"""Connections that the kernel holds until they are accepted."""

YOUNG_OBJECTS: Final = 50_000
"""So many more objects than were freed since, and the garbage collector looks at them: those of some hundred
requests in flight, which with Python's own 700 it looks at again and again. An exchange leaves no cycle
behind, so that there is next to nothing to find."""

QUIET_LOGGERS: Final = {"httpx": logging.WARNING, "httpcore": logging.WARNING, "watchfiles": logging.WARNING}
"""Loggers that would write a line per probe."""


class Server(uvicorn.Server):
    """The HTTP server, with a drain before its own shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        lifecycle: Lifecycle,
        drain_delay_seconds: float,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._drain_delay_seconds = drain_delay_seconds
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to take requests, and say so."""
        await super().startup(sockets)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain on the first signal; a second one, of whatever kind, ends what is left at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

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


def serve(settings: Settings, make_metrics: MakeMetrics = Metrics) -> None:
    """
    Run the gateway until it is told to stop; `make_metrics` returns what its processes count in.

    Raises:
        PolicyError: the policies cannot go live.
        OperatingError: the port cannot be bound, state cannot be read, or no worker can be kept running.
    """
    configure_logging(settings.log_format)
    if settings.workers > 1:
        supervise(settings, partial(run_worker, make_metrics=make_metrics))
        return
    with open_socket(settings) as listening:
        uvloop.run(_serve(settings, listening, make_metrics))


def run_worker(settings: Settings, serves: Event, make_metrics: MakeMetrics = Metrics) -> None:
    """Run one of several workers, as the whole of its process; `serves` is set when it takes requests."""
    configure_logging(settings.log_format)
    # A terminal's interrupt reaches all processes: the one that started this one tells it to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with bound_socket(settings) as bound:
            uvloop.run(_serve(settings, bound, make_metrics, serves.set))
    except SternpostError as error:
        logger.critical("%s", error)
        sys.exit(EXIT_FAILED)


def open_socket(settings: Settings) -> socket.socket:
    """
    Bind the socket that clients connect to, and listen on it.

    Raises:
        OperatingError: host and port cannot be bound.
    """
    listening = bound_socket(settings)
    listening.listen(BACKLOG)
    return listening


def make_registry() -> CollectorRegistry:
    """Return a registry that also tells about the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def server_config(app: ASGIApp, limits: Limits, timeouts: Timeouts, tls: Tls | None = None) -> uvicorn.Config:
    """Return how the HTTP server runs: it adds no header and no log line of its own."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=protocol_with(timeouts.headers_seconds, limits.connections_max),
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
    if tls is not None:
        # Loading the configuration would make a context of its own.
        config.load()
        config.ssl = tls.context
    return config


def configure_logging(log_format: LogFormat) -> None:
    """Log to standard error, one line each; libraries that would log every probe are kept quiet."""
    configure_logs(log_format, context=REQUEST.get)
    for name, quiet in QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet)
    # An answer that is cut on purpose would be an error to the server, once for each.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


async def _serve(
    settings: Settings,
    listening: socket.socket,
    make_metrics: MakeMetrics,
    on_started: Callable[[], None] = lambda: None,
) -> None:
    lifecycle = Lifecycle()
    tls = server_tls(settings.tls) if settings.tls is not None else None
    to_engines = engine_tls(settings.engine_tls)
    app = create_app(
        settings,
        clock=SystemClock(),
        registry=make_registry(),
        upstream=PooledUpstream(settings.limits, settings.timeouts, to_engines),
        control=control_client(to_engines),
        chance=random.Random(),
        lifecycle=lifecycle,
        tracing=tracing_of(settings.traces),
        dialer=Dialer(settings.timeouts, to_engines),
        files={"engines' TLS": to_engines.files, **({} if tls is None else {"TLS": tls.files})},
        make_metrics=make_metrics,
    )

    def started() -> None:
        calm_collector()
        on_started()

    server = Server(
        server_config(app, settings.limits, settings.timeouts, tls),
        lifecycle,
        settings.timeouts.drain_delay_seconds,
        started,
    )
    if settings.worker is None:
        host, port = _address(listening.getsockname())
        scheme = "http" if tls is None else "https"
        logger.info("listening on %s://%s:%s for %s", scheme, host, port, ", ".join(settings.engines))
    with _ended_with_parent(server):
        await server.serve(sockets=[listening])


def calm_collector() -> None:
    """Have the garbage collector pass over what was made at the start, and look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def _ended_with_parent(server: Server) -> Iterator[None]:
    """End the server when the process that has started this one is gone without a word."""
    parent = multiprocessing.parent_process()
    if parent is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        loop.remove_reader(parent.sentinel)
        server.handle_exit(signal.SIGTERM, None)

    loop.add_reader(parent.sentinel, orphaned)
    try:
        yield
    finally:
        loop.remove_reader(parent.sentinel)


def tracing_of(traces: Traces | None) -> Tracing:
    """
    Return where traces go.

    Raises:
        OperatingError: the packages that tracing needs are not installed.
    """
    if traces is None:
        return NO_TRACING
    try:
        # These packages take time and memory to load: only gateways that trace need them.
        from sternpost_gateway.otel import make_tracing
    except ImportError as error:
        raise OperatingError(f"traces need `pip install 'sternpost[traces]'`: {error}") from None
    return make_tracing(traces)


def _address(name: Sequence[object]) -> tuple[object, object]:
    return name[0], name[1]
