"""Which workloads a run asks, how many sessions and repetitions of each: the quick run and the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Scope:
    """Sessions of each workload, in the order in which they run, and how often everything is repeated."""

    sessions: Mapping[str, int]
    repeats: int


QUICK: Final = Scope(
    {
        "agent_unstable": 8,
        "clean_shared": 8,
        "fixed_tail": 4,
        "long_reasoning": 1,
        "no_reuse": 6,
        "short_chat": 8,
    },
    repeats=1,
)
"""What the bounds are about: within 15 minutes on two cores."""

WHOLE: Final = Scope(
    {
        "agent_unstable": 10,
        "clean_shared": 12,
        "fixed_tail": 5,
        "long_reasoning": 1,
        "no_reuse": 8,
        "short_chat": 10,
        "high_dynamic": 4,
        "agent_clean": 10,
        "long_document_qa": 2,
        "tool_turns": 1,
        "regenerate": 3,
        "long_session": 1,
        "context_trimming": 1,
        "multi_turn_qa": 3,
    },
    repeats=2,
)
"""Everything, and twice over what is judged: within 90 minutes on two cores."""

ONCE: Final = frozenset(
    {
        "agent_clean",
        "high_dynamic",
        "long_document_qa",
        "tool_turns",
        "regenerate",
        "long_session",
        "context_trimming",
        "multi_turn_qa",
    }
)
"""Workloads that no bound is about: they are not repeated, so that what is judged can be within the time."""
