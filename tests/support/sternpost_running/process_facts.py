"""What Linux says about a running process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sternpost_gateway.bench.machine import field

KIB: Final = 1024
MIB: Final = 1024 * KIB


def rss_bytes(pid: int) -> int:
    """Return the memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(field(status, "VmRSS").split()[0]) * KIB


def sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    return sum(_is_socket(path) for path in Path(f"/proc/{pid}/fd").iterdir())


def _is_socket(path: Path) -> bool:
    with suppress(FileNotFoundError):
        # A descriptor may be closed between the listing and this look.
        return os.readlink(path).startswith("socket:")
    return False
