"""The gateway with any strategy: `python -m bench.routing.gateway STRATEGY POLICIES PORT ENGINE...`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry

from sternpost_core.clock import SystemClock
from sternpost_gateway.admin import Lifecycle
from sternpost_gateway.app import create_app
from sternpost_gateway.engine_api import control_client
from sternpost_gateway.pooled_upstream import PooledUpstream
from sternpost_gateway.route import LeastCost, LeastLoaded, Rendezvous, Strategy
from sternpost_gateway.router import Strategies
from sternpost_gateway.server import configure_logging, server_config
from sternpost_gateway.settings import Settings

STRATEGIES: Final[Mapping[str, Callable[[random.Random], Strategy]]] = {
    "sternpost": LeastCost,
    "rendezvous": lambda chance: Rendezvous(),
    "least_loaded": LeastLoaded,
}


def main(arguments: list[str]) -> None:
    """Serve until told to stop."""
    name, policies, port, *engines = arguments
    settings = Settings(
        policies=Path(policies), engines=tuple(engines), port=int(port), salt_secret=b"benchmark" * 4
    )
    configure_logging(settings.log_format)
    app = create_app(
        settings,
        clock=SystemClock(),
        registry=CollectorRegistry(),
        upstream=PooledUpstream(settings.limits, settings.timeouts),
        control=control_client(),
        chance=random.Random(1),
        lifecycle=Lifecycle(),
        strategies=lambda chance: Strategies(
            affinity=STRATEGIES[name](chance), least_loaded=LeastLoaded(chance)
        ),
    )
    config = server_config(app, settings.limits, settings.timeouts)
    config.host, config.port, config.loop = "127.0.0.1", settings.port, "uvloop"
    config.timeout_graceful_shutdown = 1
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(sys.argv[1:])
