"""The kill file: what it sets, what takes it back, and what changes nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sternpost_core.errors import SettingsError
from sternpost_core.kill import REASON_LENGTH_MAX, KillLevel
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway import eventually
from sternpost_gateway.kill_file import FILE_BYTES_MAX, NO_REASON, KillFile, read_kill_file
from sternpost_gateway.kills import Kills, Source

SECONDS_MAX = 1.0
"""Within which the file's word must count."""


def kill_file(path: Path, state: Path | None = None) -> tuple[KillFile, Kills]:
    """Return a kill file and the kills that it acts on."""
    kills = Kills(FakeClock(), state)
    return KillFile(path, kills), kills


@pytest.mark.parametrize(
    ("text", "level", "reason"),
    [
        pytest.param("NoSuffixReads", KillLevel.NO_SUFFIX_READS, NO_REASON, id="name"),
        pytest.param("K3\n", KillLevel.NO_REWRITE, NO_REASON, id="number"),
        pytest.param("k2\r\nincident 4711\r\n", KillLevel.NEW_EPOCH, "incident 4711", id="reason-crlf"),
        pytest.param("PlainProxy\nwhy\nmore", KillLevel.PLAIN_PROXY, "why", id="third-line"),
        pytest.param("\ufeffK1", KillLevel.NO_SUFFIX_READS, NO_REASON, id="byte-order-mark"),
    ],
)
def test_level_and_reason_are_read(tmp_path: Path, text: str, level: KillLevel, reason: str) -> None:
    """The first line is the level, the second the reason."""
    path = tmp_path / "kill"
    path.write_text(text, newline="")
    tested, kills = kill_file(path)
    tested.load()
    latch = kills.latched(Source.FILE)

    assert latch is not None
    assert (level, level, reason) == (kills.table.everyone, latch.level, latch.reason)
    assert None is tested.fault


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        pytest.param("NoRewrite force\nincident 4711", True, id="forced"),
        pytest.param("K3  force ", True, id="spaces"),
        pytest.param("NoRewrite\nforce", False, id="force-is-the-reason"),
    ],
)
def test_force_stands_behind_the_level(tmp_path: Path, text: str, forced: bool) -> None:
    """Every session then gets the level at once."""
    path = tmp_path / "kill"
    path.write_text(text)

    assert (KillLevel.NO_REWRITE, forced) == (read_kill_file(path).level, read_kill_file(path).forced)


@pytest.mark.parametrize("text", ["K3 now", "force K3", "K3 force force", "K3force"])
def test_first_line_that_says_more_is_refused(tmp_path: Path, text: str) -> None:
    """What is not understood whole is not obeyed in part."""
    path = tmp_path / "kill"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_kill_file(path)

    assert text in caught.value.faults[0].value
    assert "force" in caught.value.faults[0].allowed


def test_missing_file_says_nothing(tmp_path: Path) -> None:
    """Without a file nothing is set, and nothing is told."""
    told: list[object] = []
    kills = Kills(FakeClock(), None, lambda latch, table: told.append(latch))
    KillFile(tmp_path / "kill", kills).load()

    assert ([], ()) == (told, kills.latches)


def test_unchanged_file_is_taken_once(tmp_path: Path) -> None:
    """Looking again and again writes no log line and no state."""
    told: list[object] = []
    kills = Kills(FakeClock(), None, lambda latch, table: told.append(latch))
    path = tmp_path / "kill"
    path.write_text("K1\ndrill")
    tested = KillFile(path, kills)
    for _ in range(3):
        tested.load()

    assert 1 == len(told)


def unreadable(path: Path) -> None:
    """Put a directory in the file's place."""
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    """Put a named pipe in the file's place, which would hang whoever opens it."""
    path.unlink()
    os.mkfifo(path)


def dangling(path: Path) -> None:
    """Put a link to nowhere in the file's place."""
    path.unlink()
    path.symlink_to("nowhere")


def parent_gone(path: Path) -> None:
    """Take the whole directory away, as a volume that is lost does."""
    path.parent.rename(path.parent.with_name("away"))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_text(""), id="empty"),
        pytest.param(lambda path: path.write_text("K9"), id="unknown-level"),
        pytest.param(lambda path: path.write_text("NoSuffixReads please"), id="more-than-a-level"),
        pytest.param(lambda path: path.write_bytes(b"\xff\xfe"), id="no-text"),
        pytest.param(lambda path: path.write_text("K1\n" + "x" * (REASON_LENGTH_MAX + 1)), id="long-reason"),
        pytest.param(lambda path: path.write_text("K1\na\x1b[2Jb"), id="reason-that-cannot-be-shown"),
        pytest.param(lambda path: path.write_text("K1\n" + "\n" * FILE_BYTES_MAX), id="long-file"),
        pytest.param(unreadable, id="directory"),
        pytest.param(pipe, id="pipe"),
        pytest.param(dangling, id="dangling-link"),
        pytest.param(parent_gone, id="directory-gone"),
    ],
)
async def test_last_known_level_stays(tmp_path: Path, spoil: object) -> None:
    """What cannot be read or understood changes nothing, is shown, and goes when it is mended."""
    path = tmp_path / "volume" / "kill"
    path.parent.mkdir()
    path.write_text("K3\nincident")
    tested, kills = kill_file(path)
    tested.load()
    assert callable(spoil)
    spoil(path)
    await tested.refresh()

    assert KillLevel.NO_REWRITE is kills.table.everyone
    assert tested.fault is not None and "--kill-file" == tested.fault.path


def test_wrong_level_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    """Whoever wrote it sees what would have been right."""
    (tmp_path / "kill").write_text("NoSufixReads")

    with pytest.raises(SettingsError, match=r"'NoSufixReads'.* allowed: None, NoSuffixReads.* or K0 to K5"):
        read_kill_file(tmp_path / "kill")


async def test_mended_file_has_no_fault(tmp_path: Path) -> None:
    """The fault is of the file as it is now."""
    path = tmp_path / "kill"
    path.write_text("x")
    tested, kills = kill_file(path)
    tested.load()
    path.write_text("K1")
    await tested.refresh()

    assert (None, KillLevel.NO_SUFFIX_READS) == (tested.fault, kills.table.everyone)


@pytest.mark.parametrize(
    "clear",
    [
        pytest.param(lambda path: path.unlink(), id="removed"),
        pytest.param(lambda path: path.write_text("None"), id="none"),
    ],
)
async def test_clearing_leaves_other_sources_alone(tmp_path: Path, clear: object) -> None:
    """A level that was set over HTTP, and a higher one by signal, are not the file's to take back."""
    path = tmp_path / "kill"
    path.write_text("K4")
    tested, kills = kill_file(path)
    tested.load()
    kills.latch(KillLevel.NO_SUFFIX_READS, None, "drill", "test", Source.HTTP)
    kills.latch(KillLevel.NEW_EPOCH, None, "drill", "test", Source.SIGNAL)
    assert callable(clear)
    clear(path)
    await tested.refresh()

    assert {Source.HTTP, Source.SIGNAL} == {latch.source for latch in kills.latches}
    assert KillLevel.NEW_EPOCH is kills.table.everyone


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        pytest.param(True, KillLevel.NO_REWRITE, id="still-there"),
        pytest.param(False, KillLevel.NONE, id="gone"),
    ],
)
def test_restart_goes_by_the_file(tmp_path: Path, present: bool, expected: KillLevel) -> None:
    """A file that was removed while the gateway was down has taken back what it set."""
    path, state = tmp_path / "kill", tmp_path / "state"
    path.write_text("K3")
    kill_file(path, state)[0].load()
    if not present:
        path.unlink()
    tested, kills = kill_file(path, state)
    before = kills.table.everyone
    tested.load()

    assert (KillLevel.NO_REWRITE, expected) == (before, kills.table.everyone)


def test_level_counts_although_it_cannot_be_kept(tmp_path: Path) -> None:
    """A full disk does not stop a kill."""
    path, blocked = tmp_path / "kill", tmp_path / "file"
    path.write_text("K1")
    blocked.write_bytes(b"")
    tested, kills = kill_file(path, blocked / "state")
    tested.load()

    assert KillLevel.NO_SUFFIX_READS is kills.table.everyone


async def test_watch_acts_within_a_second(tmp_path: Path) -> None:
    """A file that appears, changes and goes counts each time."""
    path = tmp_path / "kill"
    tested, kills = kill_file(path)
    task = asyncio.ensure_future(tested.watch(0.05))
    try:
        path.write_text("K1")
        await eventually(lambda: kills.table.everyone is KillLevel.NO_SUFFIX_READS, SECONDS_MAX)
        (tmp_path / "new").write_text("K3")
        os.replace(tmp_path / "new", path)
        await eventually(lambda: kills.table.everyone is KillLevel.NO_REWRITE, SECONDS_MAX)
        path.unlink()
        await eventually(lambda: kills.table.everyone is KillLevel.NONE, SECONDS_MAX)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
