"""The least engines that keep a promise, what their stores take, and what they cost; all of it pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sternpost_core.errors import OperatingError
from sternpost_gateway.bench.stats import mean, percentile
from sternpost_gateway.capacity.demand import Demand
from sternpost_gateway.capacity.queueing import Waiting, simulate
from sternpost_gateway.capacity.speed import Speed

HOURS_PER_MONTH: Final = 730.0

ENGINES_MAX: Final = 4096
"""More than that is a mistake in the flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """
    What is to be kept: times to first token, and how busy engines may be at most.

    `requests_per_second` come, with `answer_tokens` on average to be made for each.
    """

    requests_per_second: float
    answer_tokens: float
    ttft_p95_seconds: float
    utilisation_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What an engine costs, and how much memory a token's KV takes; the price is in any currency."""

    engine_hour: float
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What one arm takes. Memory is in bytes, cost per month.

    `prefix_bytes` is what the prefixes of the log's last requests take, all engines together;
    `suffix_bytes` is the suffix store of each engine.
    """

    engines: int
    waiting: Waiting
    reuse: float
    prefix_bytes: float
    suffix_bytes: float
    cost: float


def plan(demand: Demand, speed: Speed, promise: Promise, prices: Prices) -> Plan:
    """
    Return the least engines that keep the promise.

    Raises:
        OperatingError: no number of engines does.
    """
    engines, waiting = _least(demand, speed, promise)
    return Plan(
        engines=engines,
        waiting=waiting,
        reuse=demand.reuse,
        prefix_bytes=demand.prefix_tokens * prices.kv_bytes_per_token,
        suffix_bytes=demand.tail_tokens * prices.kv_bytes_per_token,
        cost=engines * prices.engine_hour * HOURS_PER_MONTH,
    )


def _least(demand: Demand, speed: Speed, promise: Promise) -> tuple[int, Waiting]:
    works = demand.works
    busy = promise.requests_per_second * mean(
        [speed.busy_seconds(one, promise.answer_tokens) for one in works]
    )
    # A rate or a length without measure takes more engines than a number can tell.
    engines = max(1, math.ceil(min(busy / promise.utilisation_max, ENGINES_MAX + 1.0)))
    alone = percentile([speed.first_token_seconds(one) for one in works], 0.95)
    if alone > promise.ttft_p95_seconds:
        raise OperatingError(
            f"no number of engines keeps a time to first token of {promise.ttft_p95_seconds:g} s for 95% of "
            f"requests: without any waiting it is {alone:.2f} s"
        )
    while engines <= ENGINES_MAX:
        waiting = simulate(works, promise.answer_tokens, speed, promise.requests_per_second, engines)
        if waiting.ttft_p95 <= promise.ttft_p95_seconds:
            return engines, waiting
        # One more at a time where few are needed, a fraction more where many are.
        engines += max(1, engines // 20)
    raise OperatingError(
        f"more than {ENGINES_MAX} engines would be needed for a time to first token of "
        f"{promise.ttft_p95_seconds:g} s at {promise.requests_per_second:g} requests per second"
    )
