"""
What the scheduler side tells the workers to do to the suffix store in one step.

The worker carries the operations out in this order: drops, begins, finished means, loads (before the
forward), captures (during the forward). Steps arrive in order, so a drop can never overtake a load of the
same tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sternpost_engine.calibration import AS_BUILT, SCAFFOLD, Mix
from sternpost_engine.matching import Run

ROW_MARK: Final = "#sternpost-row-"
"""Marks the id of a row that rides along; no request of a client can have it, for vLLM makes the ids."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Make room for a tail; `tokens` are its ids, which the worker uses to check its own arithmetic."""

    entry: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """
    A run of one request's tokens: `count` tokens from prompt position `position` on.

    `offset` is where the run begins in the tail, and `blocks` are the request's KV blocks from the prompt's
    beginning on, enough of them to cover the run. For the model the tokens stand `shift` positions further
    on, where the tail is anchored.
    """

    blocks: tuple[int, ...]
    position: int
    offset: int
    count: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Copy a tail's KV, in this mix of variants, to a request's blocks, keys rotated to their positions."""

    request_id: str
    entry: int
    span: Span
    mix: Mix = AS_BUILT


@dataclass(frozen=True, slots=True)
class Built:
    """A tail's KV after the scaffold, or one sample of one of its variants."""

    entry: int
    variant: int = SCAFFOLD


@dataclass(frozen=True, slots=True)
class Capture:
    """
    Keep the KV that this forward computes for a run of a tail; `final` ends the build, or the sample.

    A sample's KV goes into the mean of its variant; `number` counts the samples of a mean from 0 on.
    """

    entry: int
    span: Span
    final: bool
    variant: int = SCAFFOLD
    number: int = 0

    @property
    def built(self) -> Built:
        """What it is a part of."""
        return Built(self.entry, self.variant)


@dataclass(frozen=True, slots=True)
class Operations:
    """One step's operations; `shifts` are the runs that the forward computes at other positions."""

    drops: Sequence[int] = ()
    begins: Sequence[Begin] = ()
    finished: Sequence[Built] = ()
    loads: Sequence[Load] = ()
    captures: Sequence[Capture] = ()
    shifts: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class Splice:
    """
    One request's splice in this step.

    `hit` tokens are in the KV cache already, tokens up to `exact` are the middle (with the tail's head),
    which rides along as a row of its own, tokens up to `copied` come from the suffix store, the rest up to
    `total` are the request's own row. `runs` are tokens among the copied ones, by their offsets from `tail`,
    that are computed afresh all the same, each run as a row of its own. `approximate` tokens of the hit are
    the tail's too: blocks that the prefix store kept from an earlier read. The model sees the tail `shift`
    positions further on.
    """

    request_id: str
    entry: int
    hit: int
    exact: int
    copied: int
    total: int
    tail: int = 0
    shift: int = 0
    runs: tuple[Run, ...] = ()
    mix: Mix = AS_BUILT
    approximate: int = 0

    @property
    def middle_tokens(self) -> int:
        """The tokens that the middle's row computes."""
        return self.exact - self.hit

    @property
    def matched_tokens(self) -> int:
        """The tokens that the runs' rows compute."""
        return sum(run.count for run in self.runs)

    @property
    def suffix_tokens(self) -> int:
        """The tokens whose KV comes from the suffix store, now or when the hit's blocks were written."""
        return self.copied - self.exact - self.matched_tokens + self.approximate

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The rows that ride along: each one's first position and the position behind its last."""
        runs = tuple((self.tail + run.offset, self.tail + run.end) for run in self.runs)
        return ((self.hit, self.exact), *runs) if self.middle_tokens else runs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the workers did in one step: the tails and samples that are whole, and those that failed."""

    completed: Sequence[Built] = field(default_factory=tuple)
    failed: Sequence[Built] = field(default_factory=tuple)
