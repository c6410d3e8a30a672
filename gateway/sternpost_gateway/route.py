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

REUSE_PER_REQUEST: Final = 256.0
"""For so many tokens that an engine holds of the prompt it may have one more above the mean: another engine
would have to compute them, which takes longer than to wait for a request that computes little."""

RECENT_MARGIN: Final = 6
"""Of the requests of the last seconds an engine may have so many above the mean: a burst is no trend."""


REUSE_TOKENS_MIN: Final = 64
REUSE_SHARE_MIN: Final = 0.02
"""Less reuse than this, in tokens and as a share of the prompt, is none: load then decides alone."""

DECODE_TOKENS: Final = 64.0
"""A request in flight delays a prefill about as much as so many uncached tokens in front of it would."""

WORK_WEIGHT: Final = 1.4
"""What a token counts that is computed for the request itself, beside one that is computed anyway: it makes
others wait, too. Without it, a burst behind one prefix would compute it on every engine, because that takes
no longer than to wait for the first to compute it; much larger, a burst would wait for one engine while
others idle."""

TIE_TOKENS: Final = 128.0
"""Costs that differ by the prefill of fewer tokens are equal: predictions are no better than one block."""

CHOICES: Final = 2
"""Of how many engines a miss gets the least loaded (Mitzenmacher, The Power of Two Choices)."""

AWAY_TOKENS: Final = 256.0
"""A miss leaves its two for an engine that has so much less to do, as a prefill in tokens: more than that is
not waited for where another gateway may have sent the conversation, and may not."""

RECENT_TOKENS: Final = 64.0
RECENT_TOKENS_ALONE: Final = 16.0
"""What a request of the last seconds counts to a miss, as a prefill in tokens, since its conversation may go
on. Among all engines one that idles now is found, and most of what was sent before is over; among two there
is evenness, and no more."""


class Affinity(StrEnum):
    """How a choice came about; the values are metric labels."""

    HELD = "held"
    SPILLED = "spilled"
    MISSED = "missed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    An engine that may get the request.

    `reuse_tokens` of the prompt it is predicted to hold; `ahead_tokens` it has to compute before;
    `recent` requests were sent there in the last seconds; `prefill_rate` is in tokens per second; `weight`
    is under 1 while the engine is starting slowly.
    """

    engine: Engine
    in_flight: int
    reuse_tokens: float = 0.0
    ahead_tokens: float = 0.0
    recent: float = 0.0
    prefill_rate: float = 1.0
    weight: float = 1.0

    @property
    def load(self) -> float:
        """Return how long a request without a prompt of its own would take to begin, in seconds."""
        return self._ahead / self.prefill_rate / self.weight

    @property
    def _ahead(self) -> float:
        """Return the tokens that are in front of a request, or delay it as if they were."""
        return self.ahead_tokens + DECODE_TOKENS * (self.in_flight + 1)

    def demand(self, recent_tokens: float) -> float:
        """Return the load with that of the last seconds, of which each counts so many tokens; in seconds."""
        return self.load + recent_tokens * self.recent / self.prefill_rate / self.weight

    def cost(self, prompt_tokens: float) -> float:
        """
        Return the predicted time to first token and the load of decoding, in seconds of the engine.

        An engine that starts slowly counts as slow for what it does not hold: what has begun there stays.
        """
        own = WORK_WEIGHT * max(0.0, prompt_tokens - self.reuse_tokens)
        held = min(1.0, self.reuse_tokens / prompt_tokens) if prompt_tokens else 0.0
        weight = self.weight + (1.0 - self.weight) * held
        return (self._ahead + own) / self.prefill_rate / weight


@dataclass(frozen=True, slots=True)
class Demand:
    """
    What is known of a request: its conversation key, None if it has none, and its prompt's tokens.

    With `is_alone`, no other gateway sends requests of the same conversations.
    """

    key: str | None
    prompt_tokens: float = 0.0
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen engine."""

    engine: Engine
    affinity: Affinity


class Strategy(Protocol):
    """A way to choose."""

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Choose among at least one candidate."""


class RoundRobin:
    """Each engine in turn."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Choose the next in turn."""
        return Choice(candidates[next(self._turn) % len(candidates)].engine, Affinity.NONE)


class LeastLoaded:
    """The less loaded of two engines taken by chance, which keeps many gateways from all choosing one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Choose the less loaded of two."""
        pair = candidates if len(candidates) <= CHOICES else self._chance.sample(candidates, CHOICES)
        least = min(pair, key=lambda candidate: (_crowd(candidate), self._chance.random()))
        return Choice(least.engine, Affinity.NONE)


class Rendezvous:
    """The engine that the conversation key ranks highest, the same at every gateway, however loaded it is."""

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Choose by rank; without a key every request is its own conversation, and the first is chosen."""
        best = max(candidates, key=lambda candidate: rendezvous_rank(demand.key or "", candidate.engine.url))
        return Choice(best.engine, Affinity.HELD)


class LeastCost:
    """
    The engine that is predicted to answer first, by what it holds of the prompt and what it has to do.

    An engine over the bound is passed over. Where no engine holds anything worth mentioning, the two engines
    of the highest rendezvous rank are the two choices that a miss gets the least loaded of: so gateways that
    know nothing of each other send a conversation to one of the same two, unless both have much more to do
    than another. A gateway that is alone chooses among all.
    """

    def __init__(self, chance: random.Random) -> None:
        self._least_loaded = LeastLoaded(chance)

    def choose(self, candidates: Sequence[Candidate], demand: Demand) -> Choice:
        """Choose the engine of the least cost under the bound."""
        if demand.key is None:
            return self._least_loaded.choose(candidates, demand)
        allowed = within_bounds(candidates)
        most = max(candidate.reuse_tokens for candidate in candidates)
        if most < max(REUSE_TOKENS_MIN, REUSE_SHARE_MIN * demand.prompt_tokens):
            return Choice(self._missed(allowed, demand.key, is_alone=demand.is_alone).engine, Affinity.MISSED)
        chosen = cheapest(allowed, demand)
        is_held = chosen.reuse_tokens >= most - TIE_TOKENS
        return Choice(chosen.engine, Affinity.HELD if is_held else Affinity.SPILLED)

    def _missed(self, candidates: Sequence[Candidate], key: str, *, is_alone: bool) -> Candidate:
        by_rank = sorted(candidates, key=lambda candidate: -rendezvous_rank(key, candidate.engine.url))
        if is_alone:
            return min(by_rank, key=lambda candidate: candidate.demand(RECENT_TOKENS_ALONE))
        demands = [candidate.demand(RECENT_TOKENS) for candidate in by_rank]
        own, least = demands.index(min(demands[:CHOICES])), demands.index(min(demands))
        is_near = demands[own] <= demands[least] + AWAY_TOKENS / by_rank[least].prefill_rate
        return by_rank[own if is_near else least]


def cheapest(candidates: Sequence[Candidate], demand: Demand) -> Candidate:
    """Return the candidate of the least cost; of those that are about equal, the one of the highest rank."""
    costs = [candidate.cost(demand.prompt_tokens) for candidate in candidates]
    least = min(costs)
    equal = [
        candidate
        for candidate, cost in zip(candidates, costs, strict=True)
        if cost <= least + TIE_TOKENS / candidate.prefill_rate
    ]
    if len(equal) == 1:
        return equal[0]
    return max(equal, key=lambda candidate: rendezvous_rank(demand.key or "", candidate.engine.url))


def within_bounds(candidates: Sequence[Candidate]) -> list[Candidate]:
    """
    Return the candidates that may get a request for affinity's sake; never none.

    Two bounds hold: one for the requests in flight, and one for those of the last seconds, which sees a load
    that is uneven although each burst of it is over soon. What an engine lacks that starts slowly is no
    reason for others to give up what they hold.
    """
    weights = sum(candidate.weight for candidate in candidates)
    in_flight = sum(candidate.in_flight for candidate in candidates) / weights
    recent = sum(candidate.recent for candidate in candidates) / weights
    allowed = [
        candidate
        for candidate in candidates
        if not is_over_bound(
            candidate.in_flight,
            in_flight * candidate.weight,
            BOUND_MARGIN + candidate.reuse_tokens / REUSE_PER_REQUEST,
        )
        and not is_over_bound(candidate.recent, recent * candidate.weight, RECENT_MARGIN)
    ]
    return allowed or list(candidates)


def is_over_bound(load: float, mean: float, margin: float = BOUND_MARGIN) -> bool:
    """
    Say whether an engine has too many requests to get another for affinity's sake.

    With a margin of 2 and a mean of 2, 4 are allowed (4 > 2.5, but not 2 above) and 5 are not. With a mean
    of 20, 25 are allowed (not over 25) and 26 are not.
    """
    return load > BOUND_FACTOR * mean and load > mean + margin


def require_candidates(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """
    Return the candidates.

    Raises:
        NoEngine: there are none.
    """
    if not candidates:
        raise NoEngine("no engine is ready")
    return candidates


def _crowd(candidate: Candidate) -> float:
    """Return the requests in flight, this one included, against what the engine is to get of all."""
    return (candidate.in_flight + 1) / candidate.weight
