"""A bar that shows how much of a log has been read; on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(size: int, output: TextIO) -> Iterator[Callable[[str, int], None]]:
    """Yield what is told a pass's name and the bytes that it has read on top; `size` is all bytes of one."""
    console = Console(file=output)
    if not output.isatty():
        yield lambda name, read: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:

        def advance(name: str, read: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=size)
            progress.update(tasks[name], advance=read)

        yield advance
