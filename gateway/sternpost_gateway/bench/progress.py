"""A bar that shows how many units are done; lines in its place where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[str], None]
"""Is told what has been done."""


@contextmanager
def unit_progress(units: int, output: TextIO) -> Iterator[Advance]:
    """Yield what is told each unit that is done."""
    if not output.isatty():
        yield lambda line: print(line, file=output, flush=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=output)) as progress:
        task = progress.add_task("bench", total=units)

        def advance(line: str) -> None:
            progress.console.print(line, highlight=False, markup=False)
            progress.update(task, advance=1)

        yield advance
