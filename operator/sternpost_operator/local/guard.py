"""
The program between `sternpost up` and each of its children, so that no child outlives it, come what may.

Run as `python -I -S guard.py LIFELINE COMMAND...`. LIFELINE is the number of the reading end of a pipe whose
writing end `up` alone holds: when `up` ends, even by SIGKILL, the kernel closes it, and the guard ends the
child. The child leads a process group of its own, and whatever is left of that group when the child has
ended is killed too: an engine killed alone would leave its workers behind, with all their memory.

    SIGTERM   is passed on to the child
    SIGUSR1   kills the child's whole group at once

The guard exits with the child's status, or 128 plus the number of the signal that ended the child.
It uses the standard library alone and is started without site-packages, because it is started per child.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

ORPHAN_SECONDS_MAX: Final = 5.0
"""How long a child may take to end by itself after `up` has gone."""

GROUP_SECONDS: Final = 0.2
"""The moment that the rest of the group gets to tidy up after the child has ended."""

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>: sets the signal that a process gets when its parent ends."""

EXIT_CANNOT_START: Final = 127


class Guard:
    """
    Watches one child and the lifeline.

    The child is not reaped before its group is killed: until then its number belongs to it and its group, so
    that no signal can reach a stranger.
    """

    def __init__(self, lifeline: int, command: Sequence[str]) -> None:
        self._lifeline = lifeline
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        # A signal writes a byte there, so that it ends the wait below. The handlers stand before the child
        # does, so that none of its signals is lost.
        signal.set_wakeup_fd(writer)
        self._noted: list[int] = []
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, self._note)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._child = subprocess.Popen(list(command), process_group=0, preexec_fn=_set_up_child)

    def run(self) -> int:
        """Wait for the child's end, and return its status."""
        try:
            if self._watch():
                time.sleep(GROUP_SECONDS)
        finally:
            os.killpg(self._child.pid, signal.SIGKILL)
        status = self._child.wait()
        return 128 - status if status < 0 else status

    def _note(self, number: int, frame: object) -> None:
        self._noted.append(number)

    def _watch(self) -> bool:
        """Return True when the child has ended by itself, False when it is to be killed."""
        deadline: float | None = None
        while not self._ended():
            if self._obey() or (deadline is not None and time.monotonic() >= deadline):
                return False
            if self._wait(deadline):
                # `up` is gone. Nothing is ever written to the lifeline, so it is readable at its end only.
                os.kill(self._child.pid, signal.SIGTERM)
                deadline = time.monotonic() + ORPHAN_SECONDS_MAX
        return True

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _obey(self) -> bool:
        """Do what the noted signals ask for, and tell whether the child is to be killed."""
        noted, self._noted = self._noted, []
        if signal.SIGTERM in noted:
            os.kill(self._child.pid, signal.SIGTERM)
        return signal.SIGUSR1 in noted

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a signal, the deadline or the lifeline's end, and tell whether the lifeline has ended."""
        if deadline is None:
            readable, _, _ = select.select([self._wakeup, self._lifeline], [], [])
        else:
            readable, _, _ = select.select([self._wakeup], [], [], max(0.0, deadline - time.monotonic()))
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
        return self._lifeline in readable


def _set_up_child() -> None:
    # The guard itself may be killed; its child then is too. Elsewhere than on Linux the lifeline has to do.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The guard ignores SIGINT, and what is ignored is inherited.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main(arguments: Sequence[str]) -> int:
    """Guard the command in `arguments`; return the exit status."""
    try:
        guard = Guard(int(arguments[0]), arguments[1:])
    except OSError as error:
        print(f"cannot start {arguments[1]}: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
