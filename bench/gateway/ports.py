"""Ports of this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from bench.gateway.upstream import HOST


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [item.getsockname()[1] for item in sockets]


def url_of(port: int) -> str:
    """Return the base URL of a port on this machine."""
    return f"http://{HOST}:{port}"
