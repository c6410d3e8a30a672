"""What one request showed, and what one workload showed at one target, as values and as records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    A request and its answer; times in seconds.

    `started` counts within the unit's seconds. `between` is the mean time between two pieces of the answer,
    None where there was one piece only. Prefix, suffix and computed tokens are the endpoint's own count and
    add up to the prompt's; where it reports nothing, all of the prompt counts as computed. `answer` is a
    digest of the answer's text, which is not kept. A request that failed has an `error` and no figures.
    """

    session: str
    turn: int
    measured: bool
    started: float
    ttft: float = 0.0
    total: float = 0.0
    between: float | None = None
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0
    computed_tokens: int = 0
    answer_tokens: int = 0
    reason: str = ""
    answer: str = ""
    error: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """What pairs samples of one workload at several targets."""
        return self.session, self.turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """
    One repetition of a workload at one target: its samples, and what its engines' metrics say of it.

    `seconds` is from the first request to the last answer, or the sum of that over the sessions where each
    was held at every target before the next. `counted` holds how much each metric grew, and `peak` how high
    a gauge was at most; both are empty where no engine is known.
    """

    workload: str
    target: str
    repeat: int
    seconds: float
    samples: tuple[Sample, ...]
    counted: Mapping[str, float]
    peak: Mapping[str, float]

    def to_record(self) -> dict[str, Any]:
        """Return what is written."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """
        Read what was written; members that this release does not know are passed over.

        Raises:
            TypeError: a member is missing or no such value.
        """
        known = {item.name for item in fields(Sample)}
        samples = [
            Sample(**{key: sample[key] for key in known & set(sample)}) for sample in record["samples"]
        ]
        names = {item.name for item in fields(cls)} - {"samples"}
        return cls(**{key: record[key] for key in names & set(record)}, samples=tuple(samples))


def summed(counted: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return how much each metric grew in all, of what was counted in parts."""
    total: dict[str, float] = {}
    for part in counted:
        for name, grown in part.items():
            total[name] = total.get(name, 0.0) + grown
    return total
