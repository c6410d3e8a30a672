"""A value that files hold follows them, and nobody waits for a disk meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from sternpost_core.errors import OperatingError
from sternpost_fakes.gateway import eventually
from sternpost_gateway.watched_files import WatchedFiles


async def test_a_disk_that_hangs_holds_up_nothing_but_the_value(tmp_path: Path) -> None:
    """Requests go on with the last value until the new one has been read."""
    path = tmp_path / "keys"
    path.write_text("old")
    asked, answers = threading.Event(), threading.Event()

    def read() -> str:
        text = path.read_text()
        if text != "old":
            asked.set()
            assert answers.wait(60.0), "the disk answers in the end"
        return text

    watched = WatchedFiles("the keys", [path], read)
    task = asyncio.create_task(watched.watch())
    path.write_text("newer")
    await eventually(asked.is_set)
    during = watched.value
    answers.set()
    await eventually(lambda: watched.value == "newer")
    task.cancel()

    assert "old" == during


def test_what_cannot_be_read_leaves_the_last_value_in_force(tmp_path: Path) -> None:
    """The fault is there to be told until a good value comes."""
    path = tmp_path / "keys"
    path.write_text("good")

    def read() -> str:
        text = path.read_text()
        if "bad" in text:
            raise OperatingError("line 1 is no key")
        return text

    watched = WatchedFiles("the keys", [path], read)
    path.write_text("bad, and longer")
    refused = (watched.refresh(), watched.value, watched.fault)
    path.write_text("better")
    taken = (watched.refresh(), watched.value, watched.fault)

    assert (False, "good", "line 1 is no key") == refused
    assert (True, "better", "") == taken
