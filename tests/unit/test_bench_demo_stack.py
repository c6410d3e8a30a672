"""`sternpost up` as the demonstration's child process, played by small programs."""

import asyncio
import io
import os
import socket
import sys
from pathlib import Path

import pytest

from bench.demo.progress import Progress
from bench.demo.stack import HOST, StackSettings, free_ports, running, up_command
from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError

READY = "import os, time; print('ready: http://127.0.0.1:1/v1', os.getpid(), flush=True); "


def make_progress() -> Progress:
    """Return progress that begins now and is written nowhere."""
    clock = SystemClock()
    return Progress(clock, clock.monotonic(), io.StringIO())


def python(program: str) -> list[str]:
    """Return the command of a small program."""
    return [sys.executable, "-I", "-c", program]


def ready_pid(logs: Path) -> int:
    """Return the child's number, from its ready line in the log."""
    return int((logs / "up.log").read_text(encoding="utf-8").split()[-1])


def is_alive(pid: int) -> bool:
    """Tell whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_child_is_handed_over_when_it_is_ready_and_ended_afterwards(tmp_path: Path) -> None:
    """The child runs inside the block and is gone behind it; its words are in the log."""
    async with running(python(READY + "time.sleep(60)"), tmp_path, make_progress()):
        pid = ready_pid(tmp_path)
        assert is_alive(pid)

    assert not is_alive(pid)


async def test_child_is_ended_when_the_work_fails(tmp_path: Path) -> None:
    """An error inside the block leaves nothing behind."""
    with pytest.raises(OperatingError, match="the work failed"):
        async with running(python(READY + "time.sleep(60)"), tmp_path, make_progress()):
            raise OperatingError("the work failed")

    assert not is_alive(ready_pid(tmp_path))


async def test_child_is_ended_when_the_work_is_cancelled(tmp_path: Path) -> None:
    """Ctrl-C cancels the work; the child is ended all the same."""
    began = asyncio.Event()

    async def work() -> None:
        async with running(python(READY + "time.sleep(60)"), tmp_path, make_progress()):
            began.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not is_alive(ready_pid(tmp_path))


async def test_child_that_ends_before_it_is_ready_is_an_error(tmp_path: Path) -> None:
    """The error says where the child's words are."""
    command = python("print('a port is in use'); raise SystemExit(1)")

    with pytest.raises(OperatingError, match=r"ended before it was ready; its words are in .*up\.log"):
        async with running(command, tmp_path, make_progress()):
            pytest.fail("a child that ended was handed over")

    assert "a port is in use\n" == (tmp_path / "up.log").read_text(encoding="utf-8")


async def test_child_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    """Whoever watches the child learns that it ended, and with which status."""
    async with running(python(READY + "raise SystemExit(3)"), tmp_path, make_progress()) as stack:
        with pytest.raises(OperatingError, match="ended with status 3"):
            await stack.wait_ended()


def settings(model: Path | None) -> StackSettings:
    """Return settings of two engines."""
    return StackSettings(
        engines=2, model=model, logs=Path("logs"), state=Path("state"), port=8080, engine_port_base=8100
    )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(None, [], id="small-model"),
        pytest.param(Path("weights"), ["--model", "weights"], id="own-model"),
    ],
)
def test_command_names_what_is_started(model: Path | None, expected: list[str]) -> None:
    """The model is only named where it is not the small one."""
    flags = ["--engines", "2", "--port", "8080", "--engine-port-base", "8100"]
    folders = ["--logs", "logs", "--state", "state"]

    assert ["-m", "sternpost_core", "up", *flags, *folders, *expected] == up_command(settings(model))[1:]


def test_origins_follow_from_the_ports() -> None:
    """The engines' ports follow each other."""
    chosen = settings(None)

    assert ("http://127.0.0.1:8080", ("http://127.0.0.1:8100", "http://127.0.0.1:8101")) == (
        chosen.gateway,
        chosen.engine_origins,
    )


@pytest.mark.parametrize("count", [1, 2])
def test_ports_in_use_are_passed_over(count: int) -> None:
    """The ports that are found begin after the one that is in use."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        used = listener.getsockname()[1]

        assert free_ports(used - count + 1, count) > used
