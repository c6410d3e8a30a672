"""What the processes of a group hold of the machine's memory, and what they have had of its processors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sternpost_gateway.bench.machine import field

PROC: Final = Path("/proc")

GROUP_FIELD: Final = 2
USER_FIELD: Final = 11
SYSTEM_FIELD: Final = 12
"""Of /proc/PID/stat, counted behind the command's closing bracket: process group, and ticks of CPU time."""

KIB: Final = 1024
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def group_bytes(group: int, proc: Path = PROC) -> int:
    """
    Return the memory of all processes of a group; 0 where the system does not tell.

    Pages that several processes share count once, spread over them (Pss).
    """
    return sum(_process_bytes(folder) for folder, _ in _members(group, proc))


def group_cpu_seconds(group: int, proc: Path = PROC) -> float:
    """Return the CPU time that the living processes of a group have had, all threads together."""
    ticks = (int(stat[USER_FIELD]) + int(stat[SYSTEM_FIELD]) for _, stat in _members(group, proc))
    return sum(ticks) / TICKS_PER_SECOND


def _members(group: int, proc: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder of each process of a group, and what it says of itself."""
    for folder in proc.glob("[0-9]*"):
        stat = _stat(folder)
        if len(stat) > SYSTEM_FIELD and stat[GROUP_FIELD] == str(group):
            yield folder, stat


def _stat(folder: Path) -> list[str]:
    try:
        # The command may hold spaces and brackets, so fields are counted behind the last one.
        return (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        # The process has ended meanwhile.
        return []


def _process_bytes(folder: Path) -> int:
    try:
        rollup = (folder / "smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int((field(rollup, "Pss") or "0 kB").split()[0]) * KIB
