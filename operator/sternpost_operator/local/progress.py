"""What a person sees of `sternpost up`: lines that stay, and on a terminal one line that moves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from sternpost_operator.local.child import ChildSpec, ChildState

CLEAR_LINE: Final = "\r\x1b[2K"

LINES_ON_DEATH: Final = 10
"""How many of a log's last lines are shown when a child dies soon after its start."""


class Progress:
    """Writes progress to one stream and the ready line to another, the moving line on a terminal only."""

    def __init__(self, progress: TextIO, result: TextIO) -> None:
        self._progress = progress
        self._result = result
        self._live = progress.isatty()
        self._shown = ""

    def tell(self, line: str) -> None:
        """Write a line that stays."""
        self._clear()
        print(line, file=self._progress, flush=True)

    def announce(self, line: str) -> None:
        """Write the ready line."""
        self._clear()
        print(line, file=self._result, flush=True)

    def show(self, line: str) -> None:
        """Replace the moving line; an empty one removes it."""
        if self._live and line != self._shown:
            self._shown = line
            columns = shutil.get_terminal_size().columns
            print(CLEAR_LINE + line[: columns - 1], end="", file=self._progress, flush=True)

    def _clear(self) -> None:
        self.show("")


def loading_line(children: Sequence[ChildSpec], states: Mapping[str, ChildState], now: float) -> str:
    """
    Return the moving line: what each child is at, or nothing once all are ready.

    For example `engine-1 12 s, engine-2 ready, gateway waits`.
    """
    if all(states[child.name].ready for child in children):
        return ""
    return ", ".join(f"{child.name} {_stage(states[child.name], now)}" for child in children)


def death_lines(
    name: str, state: ChildState, last_lines: Sequence[str], restart_seconds: float | None
) -> list[str]:
    """Return what is said of a child that died, its log's last lines indented; None for no restart."""
    lived = (state.ended_at or 0.0) - (state.started_at or 0.0)
    next_step = "" if restart_seconds is None else f"; starting it again in {restart_seconds:.0f} s"
    return [
        f"{name}: died with {_status(state.exit_status)} after {lived:.0f} s{next_step}",
        *(f"    {line}" for line in last_lines),
    ]


def _stage(state: ChildState, now: float) -> str:
    if state.ready:
        return "ready"
    if state.running and state.started_at is not None:
        return f"{now - state.started_at:.0f} s"
    return "waits"


def _status(exit_status: int | None) -> str:
    if exit_status is not None and exit_status > 128:
        return f"signal {exit_status - 128}"
    return f"status {exit_status}"
