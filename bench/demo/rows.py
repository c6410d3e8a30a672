"""What one request showed; each row of `rows.jsonl` is one of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Arm(StrEnum):
    """Whom a request was sent to: an engine itself, or the gateway in front of the same engines."""

    BASELINE = "baseline"
    STERNPOST = "sternpost"


class Phase(StrEnum):
    """The part of the demonstration that a request belongs to."""

    WARM_UP = "warm_up"
    MEASURED = "measured"
    LOAD = "load"
    RETURN = "return"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    An answer that came whole.

    `ttft_seconds` is the time to the first token of content. Prefix, suffix and computed tokens are the
    engine's own count and add up to the prompt's; `engine` is the engine's name for itself.
    """

    ttft_seconds: float
    total_seconds: float
    prompt_tokens: int
    prefix_tokens: int
    suffix_tokens: int
    computed_tokens: int
    reason: str
    engine: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request; `started_seconds` is since the demonstration's start, `error` is empty for an answer."""

    phase: Phase
    arm: Arm
    question: str
    started_seconds: float
    answer: Answer | None = None
    error: str = ""

    @property
    def suffix_tokens(self) -> int:
        """How many tokens came from the suffix store; 0 for a failed request."""
        return self.answer.suffix_tokens if self.answer else 0

    def to_mapping(self) -> dict[str, Any]:
        """Return the row flat, as it is written."""
        fields = asdict(self)
        answer = fields.pop("answer") or {}
        return {**fields, **answer}


def answers(rows: Sequence[Row], phase: Phase, arm: Arm) -> list[Answer]:
    """Return the answers of one arm in one phase, in order."""
    return [row.answer for row in rows if row.phase is phase and row.arm is arm and row.answer]
