"""
One request's way through the planner: what it asked, what was found for it, and how it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from sternpost_core.hint import Hint, Mode, Operation, Reason
from sternpost_engine.calibration import Sample
from sternpost_engine.keys import TailKey
from sternpost_engine.matching import Run
from sternpost_engine.operations import Splice


@dataclass(frozen=True, slots=True)
class Room:
    """
    What is left in a step for rows that ride along: their tokens, and rows of the batch.

    The maxima are what the emptiest step would have.
    """

    tokens: int
    rows: int
    tokens_max: int
    rows_max: int


@dataclass(frozen=True, slots=True)
class Space:
    """
    A hash namespace for the blocks of one request that hold approximate KV.

    Tokens before `first` are exact. `seed` stands for everything that the approximate blocks depend on
    besides the tokens of their own chain.
    """

    first: int
    seed: bytes


class Course(Enum):
    """How a read goes on."""

    ASKED = auto()
    """It waits, or nothing has been found for it yet."""
    SPLICE = auto()
    """The tail is copied in the step that admits it."""
    COVERED = auto()
    """The prefix store has its approximate blocks from an earlier read: nothing is copied."""
    CHUNKED = auto()
    """Its middle is longer than a step has room for: computed over several steps, then spliced."""


@dataclass(slots=True)
class Track:
    """
    One request's way through the planner.

    `begin` is where copying begins, `space` the namespace that its blocks past the exact part are
    registered in, and `register_max` how many of its first tokens may be registered in the prefix store
    now; None means all. `splice` is its last one, and `owner` is the sharing scope of the tail that it reads.
    """

    total: int
    reason: Reason
    hint: Hint | None = None
    key: TailKey | None = None
    entry: int | None = None
    owner: str = ""
    building: bool = False
    captured: bool = False
    course: Course = Course.ASKED
    hit: int = 0
    begin: int = 0
    space: Space | None = None
    register_max: int | None = None
    splice: Splice | None = None
    deferrals: int = 0
    prompt: Sequence[int] = ()
    runs: tuple[Run, ...] | None = None
    runs_hit: int = 0
    sample: Sample | None = None
    sample_failed: bool = False

    @property
    def reads(self) -> bool:
        """Whether the request may read the store."""
        return self.hint is not None and self.hint.op is Operation.READ

    @property
    def tail_start(self) -> int:
        """The position of the tail's first token."""
        if self.sample is not None:
            return self.total - self.sample.tail_tokens
        return self.total - (self.hint.tail_tokens if self.hint else 0)

    @property
    def shift(self) -> int:
        """How many positions further on the model sees the tail: up to its anchor, if it has one."""
        anchored = self.hint is not None and self.hint.mode is Mode.ANCHOR
        return self.hint.anchor - self.tail_start if anchored and self.hint else 0

    @property
    def copy_start(self) -> int:
        """Where the copy begins when nothing of the tail is there: behind its head."""
        return self.tail_start + (self.hint.head if self.hint else 0)

    @property
    def exact_end(self) -> int:
        """
        The position behind the last token whose KV any request may read: the head's, or the middle's.

        The head of an anchored tail is computed at other positions than any other request would.
        """
        return self.tail_start if self.shift else self.copy_start

    @property
    def copied_end(self) -> int:
        """The position behind the last token that is copied; the last one is always computed."""
        return self.total - max(self.hint.last if self.hint else 1, 1)

    def give_up(self, reason: Reason) -> None:
        """Go on exactly, for good."""
        self.hint, self.reason, self.course = None, reason, Course.ASKED
        self.space, self.register_max = None, None
