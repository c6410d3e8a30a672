"""
How long requests wait for engines, by simulation.

Requests come independently of one another (Poisson), each goes to the engine that is free first, and an
engine does one at a time. A continuous batch shares an engine between prompts, which changes who waits but
not for how long all of them do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Final

from sternpost_gateway.bench.stats import mean, percentile
from sternpost_gateway.capacity.speed import Speed, Work

REQUESTS: Final = 20_000
"""Simulated requests: percentiles then move by a few percent from one seed to the next."""

WARM_UP_SHARE: Final = 0.1
"""The first requests find empty engines and do not count."""

SEED: Final = 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """Times to first token in seconds, and the share of their time that engines are busy."""

    ttft_mean: float
    ttft_p50: float
    ttft_p95: float
    utilisation: float


def simulate(
    works: Sequence[Work],
    answer_tokens: float,
    speed: Speed,
    requests_per_second: float,
    engines: int,
    requests: int = REQUESTS,
) -> Waiting:
    """Return how long requests wait for so many engines; what they take is drawn from what is given."""
    chance = Random(SEED)
    free = [0.0] * engines
    now = busy = 0.0
    ttfts: list[float] = []
    for _ in range(requests):
        now += chance.expovariate(requests_per_second)
        work = chance.choice(works)
        begins = max(now, heapq.heappop(free))
        held = speed.busy_seconds(work, answer_tokens)
        heapq.heappush(free, begins + held)
        busy += held
        ttfts.append(begins - now + speed.first_token_seconds(work))
    counted = list(islice(ttfts, int(len(ttfts) * WARM_UP_SHARE), None))
    return Waiting(
        ttft_mean=mean(counted),
        ttft_p50=percentile(counted, 0.5),
        ttft_p95=percentile(counted, 0.95),
        utilisation=busy / (now * engines),
    )
