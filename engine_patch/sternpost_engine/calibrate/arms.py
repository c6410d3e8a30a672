"""The ways of computing a prompt that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Source(StrEnum):
    """Where the tail's KV comes from."""

    BF16 = "exact, bfloat16"
    GAP = "exact, behind a gap"
    ALONE = "alone"
    SCAFFOLD = "scaffold"
    CALIBRATED = "calibrated"


EXACT: Final = (Source.BF16, Source.GAP)
"""The tail is computed with everything else."""

REUSED: Final = (Source.ALONE, Source.SCAFFOLD, Source.CALIBRATED)


@dataclass(frozen=True, slots=True)
class Arm:
    """
    One way: the tail's source, and how many of its tokens are computed afresh.

    `match` is the most tokens that the middle's words point at, 0 for none. `anchored` puts the tail at a
    fixed position, behind a gap, where otherwise its keys are rotated to where it stands.
    """

    source: Source
    last: int = 0
    head: int = 0
    match: int = 0
    anchored: bool = False

    @property
    def exact(self) -> bool:
        """Whether the tail is computed, not reused."""
        return self.source in EXACT

    def __str__(self) -> str:
        if self.exact:
            return self.source.value
        place = ", anchored" if self.anchored else ""
        return f"{self.source.value}{place}, last {self.last}, head {self.head}, match {self.match}"

    @property
    def twin(self) -> Arm:
        """The calibrated arm that computes the same tokens, and so takes the same time."""
        return Arm(Source.CALIBRATED, self.last, self.head, self.match)


FLOOR: Final = Arm(Source.BF16)
"""The noise floor: the same computation in the dtype that models are served in."""

GAP: Final = Arm(Source.GAP, anchored=True)
"""What an anchored tail costs before anything is reused."""


def grid(lasts: Sequence[int], heads: Sequence[int], match: int) -> tuple[Arm, ...]:
    """Return every source with every count of last and first tokens, without and with matched words."""
    matches = (0, match) if match else (0,)
    return tuple(
        Arm(source, last, head, cap)
        for source in REUSED
        for last in lasts
        for head in heads
        for cap in matches
    )


def anchored(lasts: Sequence[int], match: int) -> tuple[Arm, Arm]:
    """Return the two arms that show what anchored mode costs: the gap alone, and reuse behind it."""
    return GAP, Arm(Source.CALIBRATED, max(lasts), 0, match, anchored=True)
