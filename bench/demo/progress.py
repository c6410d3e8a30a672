"""Lines on the terminal, each with the seconds since the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from sternpost_core.clock import Clock


@dataclass(frozen=True, slots=True)
class Progress:
    """Writes lines, and knows how long ago the demonstration began."""

    clock: Clock
    started: float
    stream: TextIO

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return self.clock.monotonic() - self.started

    def tell(self, line: str) -> None:
        """Write a line."""
        print(f"[{self.elapsed():6.1f} s] {line}", file=self.stream, flush=True)
