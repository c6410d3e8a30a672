"""
The route stage: which engine gets a request.

A strategy is a pure choice among candidates. Whatever it prefers, one hot engine never switches affinity off
for others: the bound is judged for each request by itself.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sternpost_core.keys import rendezvous_rank
from sternpost_gateway.errors import NoEngine
from sternpost_gateway.fleet import Engine

BOUND_FACTOR: Final = 1.25
"""An engine is over the bound when it has this many times the mean number of requests in flight ..."""

BOUND_MARGIN: Final = 2
"""... and more than so many above it: at small numbers the factor alone would be crossed by chance."""


class Affinity(StrEnum):
    """How a choice came about; the values are metric labels."""

    HELD = "held"
    SPILLED = "spilled"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine that may get the request, its requests in flight, and whether it holds the request's tail."""

    engine: Engine
    in_flight: int
    holds_tail: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen engine."""

    engine: Engine
    affinity: Affinity


class Strategy(Protocol):
    """A way to choose."""

    def choose(self, candidates: Sequence[Candidate], key: str | None) -> Choice:
        """Choose among at least one candidate; `key` is the conversation key, None if there is none."""


class RoundRobin:
    """Each engine in turn."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, candidates: Sequence[Candidate], key: str | None) -> Choice:
        """Choose the next in turn."""
        return Choice(candidates[next(self._turn) % len(candidates)].engine, Affinity.NONE)


class LeastLoaded:
    """The less loaded of two engines taken by chance, which keeps many gateways from all choosing one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, candidates: Sequence[Candidate], key: str | None) -> Choice:
        """Choose the less loaded of two."""
        pair = candidates if len(candidates) <= 2 else self._chance.sample(candidates, 2)
        least = min(pair, key=lambda candidate: (candidate.in_flight, self._chance.random()))
        return Choice(least.engine, Affinity.NONE)


class Rendezvous:
    """The engine that the conversation key ranks highest, the same at every gateway, however loaded it is."""

    def choose(self, candidates: Sequence[Candidate], key: str | None) -> Choice:
        """Choose by rank; without a key every request is its own conversation, and the first is chosen."""
        best = max(candidates, key=lambda candidate: rendezvous_rank(key or "", candidate.engine.url))
        return Choice(best.engine, Affinity.HELD)


class TailAffinity:
    """
    An engine that holds the tail before one that does not, among equals the one of the highest rank.

    An engine over the bound is passed over; when all preferred ones are, the least loaded gets the request,
    and so it comes to hold the tail, too.
    """

    def __init__(self, chance: random.Random) -> None:
        self._spill = LeastLoaded(chance)

    def choose(self, candidates: Sequence[Candidate], key: str | None) -> Choice:
        """Choose the best engine under the bound."""
        if key is None or len(candidates) == 1:
            return self._spill.choose(candidates, key)
        mean = sum(candidate.in_flight for candidate in candidates) / len(candidates)
        best = max(
            candidates,
            key=lambda candidate: (candidate.holds_tail, rendezvous_rank(key, candidate.engine.url)),
        )
        if not is_over_bound(best.in_flight, mean):
            return Choice(best.engine, Affinity.HELD)
        under = [candidate for candidate in candidates if not is_over_bound(candidate.in_flight, mean)]
        return Choice(self._spill.choose(under, key).engine, Affinity.SPILLED)


def is_over_bound(in_flight: int, mean: float) -> bool:
    """
    Say whether an engine has too many requests in flight to get another for affinity's sake.

    With a mean of 2, 4 are allowed (4 > 2.5, but not 2 above) and 5 are not. With a mean of 20, 25 are
    allowed (not over 25) and 26 are not.
    """
    return in_flight > BOUND_FACTOR * mean and in_flight > mean + BOUND_MARGIN


def require_candidates(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """
    Return the candidates.

    Raises:
        NoEngine: there are none.
    """
    if not candidates:
        raise NoEngine("no engine is ready")
    return candidates
