"""Which workloads a run asks, and how much of each: the quick run and the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Amount:
    """How many sessions of a workload are held in one unit, and how often each target gets a unit."""

    sessions: int
    repeats: int = 1


Scope = Mapping[str, Amount]
"""How much of each workload, in the order in which they run."""

QUICK: Final[Scope] = {
    "agent_unstable": Amount(8),
    "clean_shared": Amount(8),
    "fixed_tail": Amount(4),
    "long_reasoning": Amount(1),
    "no_reuse": Amount(6),
    "short_chat": Amount(8),
}
"""What the bounds are about: within 15 minutes on two cores."""

WHOLE: Final[Scope] = {
    "agent_unstable": Amount(10, repeats=4),
    "clean_shared": Amount(12, repeats=4),
    "fixed_tail": Amount(5, repeats=2),
    "long_reasoning": Amount(1, repeats=2),
    # Where a bound allows one percent, targets change more often: what drifts does so by more than that.
    "no_reuse": Amount(4, repeats=4),
    "short_chat": Amount(5, repeats=6),
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
