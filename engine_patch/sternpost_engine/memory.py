"""How much memory is free where stored tails are kept: on the device, or on the host of a CPU engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
import torch

CGROUP: Final = Path("/sys/fs/cgroup")
"""Where a container finds its own limits (cgroup v2)."""


def free_bytes(device: torch.device, cgroup: Path = CGROUP) -> int:
    """
    Return the bytes that are free for new tensors on `device`.

    A container's limit counts on a CPU: the host's free memory is not the container's.
    """
    if is_host(device):
        available = int(psutil.virtual_memory().available)
        room = _cgroup_room(cgroup)
        return available if room is None else min(available, room)
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free)


def is_host(device: torch.device) -> bool:
    """Whether the device's memory is the host's, which all workers of an engine share."""
    return str(device.type) == "cpu"


def _cgroup_room(folder: Path) -> int | None:
    """What a container's limit leaves; None without a limit. File pages that can be dropped count as free."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text())
        pages = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(int(limit) - used + int(pages.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        # No container, an older kernel, or a form that is not known here: the host's figure counts.
        return None
