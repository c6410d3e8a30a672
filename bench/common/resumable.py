"""Benchmarks that are run again to go on where they were: how a run ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.common.store import OutOfTime
from bench.demo.progress import Progress
from sternpost_core.command import EXIT_FAILED
from sternpost_core.errors import SternpostError

EXIT_MORE: Final = 75
"""From <sysexits.h>, EX_TEMPFAIL: run it again."""

EXIT_INTERRUPTED: Final = 130
"""As shells have it of a program that Ctrl-C has ended."""


def status_of(work: Callable[[], None], progress: Progress) -> int:
    """Do a run's work and return the exit status that says how it ended; what ended it is told."""
    try:
        work()
    except OutOfTime as error:
        progress.tell(str(error))
        return EXIT_MORE
    except SternpostError as error:
        progress.tell(f"failed: {error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        progress.tell("interrupted; what is done is kept")
        return EXIT_INTERRUPTED
    return 0
