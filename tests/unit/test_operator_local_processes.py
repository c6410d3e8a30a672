"""`sternpost up` with real processes, signals and ports: no child outlives it, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sternpost_fakes import local_child, local_up
from sternpost_running.ports import free_ports

WAIT_SECONDS_MAX: Final = 20.0
"""Far more than anything here takes, also on a busy machine."""


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds; tell whether it came to that."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    """Tell whether the process runs; one that merely waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@dataclass(frozen=True)
class Up:
    """A running `up` over fake children, with its output in files."""

    process: "subprocess.Popen[bytes]"
    folder: Path

    def output(self, name: str) -> str:
        """Return what stands in one of its files by now."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def child_pids(self) -> list[int]:
        """Return the numbers of all processes that the children noted, in order."""
        return [int(line) for line in self.output("pids").split()]

    def living(self) -> list[int]:
        """Return the numbers of those that still run."""
        return [pid for pid in self.child_pids() if is_alive(pid)]

    def all_end(self) -> bool:
        """Wait until none of them runs any more."""
        return wait_until(lambda: self.living() == [])

    def heard(self, text: str) -> bool:
        """Wait until `text` stands on either stream."""
        return wait_until(lambda: text in self.output("out") + self.output("err"))

    def end(self, number: int) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_SECONDS_MAX)


Launch = Callable[..., Up]


def child(tmp_path: Path, name: str, *flags: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a child's specification, on a port of its own."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/health"
    command = [sys.executable, "-S", local_child.__file__, "--port", str(port)]
    return {
        "name": name,
        "command": [*command, "--pids", str(tmp_path / "pids"), *flags],
        "ready_url": url,
        "live_url": url,
        "log": str(tmp_path / f"{name}.log"),
        "ready_seconds_max": 10,
        "stop_seconds_max": 5,
        "start_deaths_max": 3,
        "waits_for": [],
        **fields,
    }


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Return a function that starts `up` over the given children, and end what is left afterwards."""
    started: list[Up] = []

    def launch_up(*children: dict[str, Any]) -> Up:
        command = [sys.executable, local_up.__file__, json.dumps(children)]
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            up = Up(subprocess.Popen(command, stdout=out, stderr=err), tmp_path)
        started.append(up)
        return up

    yield launch_up
    for up in started:
        up.process.kill()
        up.process.wait()
        assert up.all_end()


def test_ready_line_comes_once_on_the_standard_output(launch: Launch, tmp_path: Path) -> None:
    """A script that waits for the ready line gets it alone, when every child is ready."""
    slow = child(tmp_path, "slow", "--ready-after", "0.5")
    up = launch(slow, child(tmp_path, "fast"))

    assert up.heard("ready: all")
    assert up.heard("slow: ready after")
    assert up.heard("fast: ready after")
    assert 0 == up.end(signal.SIGTERM)
    assert "ready: all\n" == up.output("out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_everything(number: signal.Signals, launch: Launch, tmp_path: Path) -> None:
    """Ctrl-C, a service manager's stop and a closed terminal all end the children, and `up` with status 0."""
    up = launch(child(tmp_path, "one", "--grandchild"), child(tmp_path, "two"))
    assert up.heard("ready: all")
    pids = up.child_pids()

    assert 0 == up.end(number)
    assert (3, []) == (len(pids), up.living())


def test_what_waits_for_others_ends_first(launch: Launch, tmp_path: Path) -> None:
    """The gateway has drained before the engines are asked to end."""
    engine = child(tmp_path, "engine")
    gateway = child(tmp_path, "gateway", "--ignore-sigterm", stop_seconds_max=0.5, waits_for=["engine"])
    up = launch(engine, gateway)
    assert up.heard("ready: all")
    engine_pid = up.child_pids()[0]
    up.process.send_signal(signal.SIGTERM)
    time.sleep(0.25)

    assert is_alive(engine_pid)
    assert 0 == up.process.wait(timeout=WAIT_SECONDS_MAX)
    assert not is_alive(engine_pid)


def test_child_that_ignores_the_signal_is_killed_after_its_limit(launch: Launch, tmp_path: Path) -> None:
    """A stubborn child holds up the end for its limit only, and is named."""
    up = launch(child(tmp_path, "stubborn", "--ignore-sigterm", stop_seconds_max=0.3))
    assert up.heard("ready: all")

    assert 0 == up.end(signal.SIGTERM)
    assert up.heard("stubborn: did not end within 0 s; killed")
    assert [] == up.living()


def test_second_signal_ends_everything_at_once(launch: Launch, tmp_path: Path) -> None:
    """Who presses Ctrl-C twice does not wait for a stubborn child's limit."""
    up = launch(child(tmp_path, "stubborn", "--ignore-sigterm", stop_seconds_max=60))
    assert up.heard("ready: all")
    up.process.send_signal(signal.SIGINT)
    assert up.heard("Ctrl-C again")
    began = time.monotonic()

    assert 0 == up.end(signal.SIGINT)
    assert time.monotonic() - began < WAIT_SECONDS_MAX
    assert [] == up.living()


def test_no_child_outlives_a_killed_up(launch: Launch, tmp_path: Path) -> None:
    """SIGKILL leaves `up` no time to end anything; its children and theirs end all the same."""
    up = launch(
        child(tmp_path, "one", "--grandchild"),
        child(tmp_path, "two", "--grandchild"),
        child(tmp_path, "three"),
    )
    assert up.heard("ready: all")
    assert len(up.living()) == 5
    up.end(signal.SIGKILL)

    assert up.all_end()


def test_no_grandchild_outlives_a_killed_child(launch: Launch, tmp_path: Path) -> None:
    """An engine that the kernel kills takes its workers along, and both come again."""
    up = launch(child(tmp_path, "engine", "--grandchild"))
    assert up.heard("ready: all")
    first = up.child_pids()
    os.kill(first[0], signal.SIGKILL)

    assert up.heard("engine: died with signal 9")
    assert wait_until(lambda: len(up.child_pids()) == 4)
    assert [] == [pid for pid in first if is_alive(pid)]


def test_child_that_dies_is_started_again_with_its_last_words_shown(launch: Launch, tmp_path: Path) -> None:
    """Each early death is told with the log's last lines and the wait, which doubles."""
    up = launch(child(tmp_path, "frail", "--die-after", "0.3", "--status", "3"))

    assert up.heard("frail: died with status 3")
    assert up.heard("    the reason of its death")
    assert wait_until(lambda: len(up.child_pids()) >= 3)
    assert "ready: all\n" == up.output("out")


def test_child_that_never_starts_ends_everything(launch: Launch, tmp_path: Path) -> None:
    """After its last try the log is named, and the other children end too."""
    hopeless = child(tmp_path, "hopeless", "--die-after", "0", "--ready-after", "60")
    up = launch(child(tmp_path, "other"), hopeless)

    assert 1 == up.process.wait(timeout=WAIT_SECONDS_MAX)
    assert up.heard(f"hopeless died 3 times in a row and was never ready; its log is {hopeless['log']}")
    assert [] == up.living()


def test_child_that_never_gets_ready_is_killed(launch: Launch, tmp_path: Path) -> None:
    """A child that runs but never answers is treated as dead after its limit."""
    stuck = child(tmp_path, "stuck", "--ready-after", "60", ready_seconds_max=0.5, start_deaths_max=1)
    up = launch(stuck)

    assert up.heard("stuck: was not ready within 0 s; killing it")
    assert 1 == up.process.wait(timeout=WAIT_SECONDS_MAX)
    assert [] == up.living()


def test_command_that_does_not_exist_is_told(launch: Launch, tmp_path: Path) -> None:
    """What the guard says is in the log, and so among the last words."""
    up = launch(child(tmp_path, "missing", command=["/no/such/program"], start_deaths_max=1))

    assert up.heard("cannot start /no/such/program")
    assert 1 == up.process.wait(timeout=WAIT_SECONDS_MAX)
