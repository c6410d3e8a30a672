"""Which workloads a run asks, and how much of each: the quick run and the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.evaluation.targets import ANY_ENGINE, HOP, NO_CACHE, PLAIN, STERNPOST
from bench.gateway.arms import SMG

SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Amount:
    """
    How many sessions of a workload are held in one unit, how often each target gets a unit, and which do.

    Without `targets` all do that have something to show there. With `in_turn` each session is held at every
    target before the next begins; the workload's sessions have to arrive one after the other.
    """

    sessions: int
    repeats: int = 1
    targets: tuple[str, ...] = ()
    in_turn: bool = False


Scope = Mapping[str, Amount]
"""How much of each workload, in the order in which they run."""

NEIGHBOURS: Final = (PLAIN, STERNPOST, HOP, SMG)
"""What is asked in turn, in this order: what is compared comes one right after the other."""

QUICK: Final[Scope] = {
    "agent_unstable": Amount(8),
    "clean_shared": Amount(8),
    # Where no router can reuse anything, or all reuse the same, one stands for all.
    "fixed_tail": Amount(4, targets=(PLAIN, SMG, ANY_ENGINE, STERNPOST)),
    "long_reasoning": Amount(1, targets=(NO_CACHE, PLAIN, SMG, STERNPOST)),
    # Units differ by three percent from one to the next, whatever is asked. Where a bound allows one percent,
    # each session is therefore held at all targets before the next begins.
    "no_reuse": Amount(8, targets=NEIGHBOURS, in_turn=True),
    "short_chat": Amount(24, targets=NEIGHBOURS, in_turn=True),
}
"""What the bounds are about: within 15 minutes on two cores."""

WHOLE: Final[Scope] = {
    "agent_unstable": Amount(10, repeats=4),
    "clean_shared": Amount(12, repeats=4),
    "fixed_tail": Amount(5, repeats=2),
    "long_reasoning": Amount(1, repeats=2),
    # Where a bound allows one percent, each session is held at all targets before the next begins, for units
    # differ by three percent from one to the next. It takes many sessions besides, for which there is time
    # where one router stands for all: none of them can reuse anything here.
    "no_reuse": Amount(24, repeats=2, targets=NEIGHBOURS, in_turn=True),
    "short_chat": Amount(72, repeats=2, targets=NEIGHBOURS, in_turn=True),
    # No bound is about the rest, which is why they are not repeated.
    "high_dynamic": Amount(4),
    "agent_clean": Amount(10),
    "long_document_qa": Amount(2),
    "tool_turns": Amount(1),
    "regenerate": Amount(3),
    "long_session": Amount(1),
    "context_trimming": Amount(1),
    "multi_turn_qa": Amount(3),
}
"""Everything, and more of what is judged: within 90 minutes on two cores."""
