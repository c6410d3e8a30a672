"""Whoever watches a calibration."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress(Protocol):
    """Is told of every step."""

    def begin(self, title: str, steps: int) -> None:
        """Begin a part of so many steps."""

    def step(self) -> None:
        """End one step."""


class ProgressBars:
    """Shows one bar for each part, for as long as it is entered."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, title: str, steps: int) -> None:
        """Begin a bar of so many steps."""
        for task in self._bars.task_ids:
            # A part that ended early would count on beside the ones that follow.
            self._bars.stop_task(task)
        self._task = self._bars.add_task(title, total=steps)

    def step(self) -> None:
        """Move the last bar on by one step."""
        self._bars.advance(self._task)
