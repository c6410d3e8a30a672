"""Ports of this machine for programs that listen."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel gives to connections: one that is chosen stays free until it is listened on."""

TRIES_MAX: Final = 200


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, on whichever of the machine's addresses."""
    found: list[int] = []
    with ExitStack() as stack:
        # Chosen by chance of the machine's own, for two processes that test at the same time.
        for port in random.SystemRandom().sample(PORTS, TRIES_MAX):
            if len(found) < count:
                probe = stack.enter_context(socket.socket())
                with suppress(OSError):
                    probe.bind(("", port))
                    found.append(port)
    assert len(found) == count, f"{count} ports of {TRIES_MAX} should be free"
    return found
