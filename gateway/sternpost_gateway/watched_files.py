"""A value that files hold, and that is read again when one of them changes: keys, certificates, secrets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from sternpost_core.errors import SternpostError

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Between two looks: a mounted Secret is swapped as a whole, and a second is soon enough for a new key."""

Value = TypeVar("Value")
Fingerprint = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles(Generic[Value]):
    """
    Holds what `read` makes of some files; a change that cannot be read leaves the last good value in force.

    `what` names the value in the log, which never repeats any of it.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._fingerprint = self._look()
        self.value = read()
        self.fault = ""

    def refresh(self) -> bool:
        """Look whether a file has changed, and take the new value; return whether there is one."""
        now = self._look()
        if now == self._fingerprint:
            return False
        try:
            self.value = self._read()
        except SternpostError as error:
            if str(error) != self.fault:
                logger.error("%s: the last good one stays in force: %s", self._what, error)
            self.fault = str(error)
            return False
        self._fingerprint, self.fault = now, ""
        logger.info("%s: read again", self._what)
        return True

    async def watch(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Keep up with the files, if there are any; runs until it is cancelled."""
        while self._paths:
            await asyncio.sleep(POLL_SECONDS)
            # A disk that hangs holds up a thread, and no request.
            if await asyncio.to_thread(self.refresh):
                on_change()

    def _look(self) -> Fingerprint:
        return tuple(_fingerprint(path) for path in self._paths)


def _fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
