"""
The kill file: a level that anybody sets who can write a file where the gateway runs.

Its first line is a level, with the word `force` behind it where every session is to get it at once; its
second, if there is one, is the reason. Removing the file takes back what it has set, and nothing else. A file
that cannot be read or understood changes nothing: what was known last stays, and the fault is logged and
shown. A directory that is gone says nothing about the file in it.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sternpost_core.errors import Fault, OperatingError, SettingsError
from sternpost_core.kill import LEVEL_FORMS, REASON_LENGTH_MAX, KillLevel, level_named
from sternpost_core.text import describe
from sternpost_gateway.kills import Kills, Source

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 8192
"""The largest kill file that is read: a level and a reason are far smaller."""

FLAG: Final = "--kill-file"
FORCE: Final = "force"
"""Behind the level, what has it count for every session at once."""

WORDS_MAX: Final = 3
"""Of the first line that are looked at: one more than are allowed."""

NO_REASON: Final = "no reason given"
REMOVED: Final = "the file was removed"


@dataclass(frozen=True, slots=True)
class Content:
    """What a kill file says."""

    level: KillLevel
    reason: str
    forced: bool = False


NOTHING: Final = Content(KillLevel.NONE, REMOVED)
"""What a file says that is not there."""


class KillFile:
    """Keeps the latch of the kill file; `fault` is what is wrong with the file now, if anything is."""

    def __init__(self, path: Path, kills: Kills) -> None:
        self.path = path
        self.fault: Fault | None = None
        self._kills = kills

    async def watch(self, poll_seconds: float) -> None:
        """Keep up with the file; runs until it is cancelled."""
        while True:
            await asyncio.sleep(poll_seconds)
            await self.refresh()

    async def refresh(self) -> None:
        """Look at the file without holding up the event loop: its disk may hang."""
        try:
            content = await asyncio.to_thread(read_kill_file, self.path)
        except SettingsError as error:
            self._refuse(error.faults[0])
        else:
            self._take(content)

    def load(self) -> None:
        """Look at the file before the first request is served."""
        try:
            self._take(read_kill_file(self.path))
        except SettingsError as error:
            self._refuse(error.faults[0])

    def _take(self, content: Content) -> None:
        self.fault = None
        latch = self._kills.latched(Source.FILE)
        known = Content(latch.level, latch.reason, latch.forced) if latch else NOTHING
        if content == known or (content.level is KillLevel.NONE and latch is None):
            return
        try:
            by = f"file {self.path}"
            self._kills.latch(content.level, None, content.reason, by, Source.FILE, forced=content.forced)
        except OperatingError as error:
            # The level counts; after a restart the file itself is read again.
            logger.error("the kill file's level is not kept in the state directory: %s", error)

    def _refuse(self, fault: Fault) -> None:
        if fault != self.fault:
            logger.error("the kill file is refused, the last known level stays: %s", fault)
        self.fault = fault


def read_kill_file(path: Path) -> Content:
    """
    Return what a kill file says.

    Raises:
        SettingsError: it is there, but cannot be read or understood; or its directory is gone.
    """
    text = _read_text(path)
    if text is None:
        return NOTHING
    first, _, rest = text.partition("\n")
    word, *others = first.split()[:WORDS_MAX] or [""]
    level = level_named(word)
    if level is None or others not in ([], [FORCE]):
        raise _error(
            f"{describe(first.strip())} in the first line", f"{LEVEL_FORMS}; then {FORCE}, or nothing"
        )
    reason = rest.partition("\n")[0].strip()
    if len(reason) > REASON_LENGTH_MAX or not reason.isprintable():
        allowed = f"at most {REASON_LENGTH_MAX} printable characters"
        raise _error(f"{len(reason)} characters in the second line", allowed)
    return Content(level, reason or NO_REASON, forced=bool(others))


def _read_text(path: Path) -> str | None:
    try:
        status = path.stat()
        # Opening anything else, a pipe for one, could hang.
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise _error(f"what is at {path}", f"a file of at most {FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if path.is_symlink() or not path.parent.is_dir():
            raise _error(f"{path}, whose place is gone", "a file in an existing directory") from None
        return None
    except OSError as error:
        raise _error(f"{path}: {error.strerror}", "a readable file") from None
    except UnicodeDecodeError:
        raise _error(f"the content of {path}", "text in UTF-8") from None


def _error(value: str, allowed: str) -> SettingsError:
    return SettingsError("kill file", [Fault(FLAG, value, allowed)])
