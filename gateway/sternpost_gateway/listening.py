"""The socket that clients connect to."""

from __future__ import annotations

import os
import socket

from sternpost_core.errors import OperatingError
from sternpost_gateway.settings import Settings


def bound_socket(settings: Settings) -> socket.socket:
    """
    Bind a socket to the host and port, without listening; workers of one gateway bind one each.

    Raises:
        OperatingError: host and port cannot be bound.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.workers > 1:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        bound.close()
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise OperatingError(f"cannot listen on {settings.host}:{settings.port}: {reason}") from None
    # What a client does not read for so long is given up by the kernel, too; its connections inherit this.
    stall_ms = int(settings.timeouts.write_stall_seconds * 1000)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    return bound
