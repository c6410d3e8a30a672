"""
What the scheduler side tells the workers to do to the suffix store in one step.

The worker carries the operations out in this order: drops, begins, loads (before the forward), captures
(during the forward). Steps arrive in order, so a drop can never overtake a load of the same tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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
    beginning on, enough of them to cover the run.
    """

    blocks: tuple[int, ...]
    position: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Load:
    """Copy a stored tail's KV to a request's blocks, keys rotated to their true positions."""

    request_id: str
    entry: int
    span: Span


@dataclass(frozen=True, slots=True)
class Capture:
    """Keep the KV that this forward computes for a run of a build's tail; `final` ends the build."""

    entry: int
    span: Span
    final: bool


@dataclass(frozen=True, slots=True)
class Operations:
    """One step's operations."""

    drops: Sequence[int] = ()
    begins: Sequence[Begin] = ()
    loads: Sequence[Load] = ()
    captures: Sequence[Capture] = ()


@dataclass(frozen=True, slots=True)
class Splice:
    """
    One request's splice in this step.

    `hit` tokens come from the prefix store, tokens up to `exact` are the middle (with the tail's head), which
    rides along as a row of its own, tokens up to `copied` come from the suffix store, the rest up to `total`
    are the request's own row.
    """

    request_id: str
    entry: int
    hit: int
    exact: int
    copied: int
    total: int

    @property
    def middle_tokens(self) -> int:
        """The tokens that the extra row computes."""
        return self.exact - self.hit

    @property
    def suffix_tokens(self) -> int:
        """The tokens that come from the suffix store."""
        return self.copied - self.exact


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the workers did in one step: entries whose KV is whole, and entries whose build failed."""

    completed: Sequence[int] = field(default_factory=tuple)
    failed: Sequence[int] = field(default_factory=tuple)
