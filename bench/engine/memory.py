"""What an engine's processes hold of the machine's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sternpost_gateway.bench.machine import field

PROC: Final = Path("/proc")

GROUP_FIELD: Final = 2
"""Of /proc/PID/stat, counted behind the command's closing bracket: the process group."""

KIB: Final = 1024


def group_bytes(group: int, proc: Path = PROC) -> int:
    """
    Return the memory of all processes of a group; 0 where the system does not tell.

    Pages that several processes share count once, spread over them (Pss).
    """
    return sum(_process_bytes(folder) for folder in proc.glob("[0-9]*") if _group(folder) == group)


def _group(folder: Path) -> int | None:
    try:
        # The command may hold spaces and brackets, so fields are counted behind the last one.
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[GROUP_FIELD])
    except (OSError, ValueError, IndexError):
        # The process has ended meanwhile.
        return None


def _process_bytes(folder: Path) -> int:
    try:
        rollup = (folder / "smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int((field(rollup, "Pss") or "0 kB").split()[0]) * KIB
