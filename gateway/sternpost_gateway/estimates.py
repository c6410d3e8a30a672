"""
What has been learned about engines from their answers: how fast they are, and how far a prediction holds.

All of it is moving averages with a fixed weight, so that an engine that changes is known again within some
dozens of requests, and nothing grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sternpost_gateway.bounded import Bounded
from sternpost_gateway.fleet import Engine

WEIGHT: Final = 0.1
"""Of the newest sample in each average."""

PREFILL_RATE_DEFAULT: Final = 8000.0
"""Tokens per second, until the first engine has been measured: a mid-size model on one GPU."""

PREFILL_RATE_MIN: Final = 10.0
PREFILL_RATE_MAX: Final = 10_000_000.0
"""Bounds of a believable sample, in tokens per second."""

SAMPLE_TOKENS_MIN: Final = 128
SAMPLE_TOKENS_WHOLE: Final = 1024
"""Few tokens say more about an engine's fixed costs than about its rate: under the first number a sample is
left out, and up to the second it counts for less. An engine that holds most of its prompts would else be
taken for a slow one."""

ALIKE_FACTOR: Final = 1.5
"""Engines whose rates differ by less are taken for equally fast: they did not compute the same prompts."""

BYTES_PER_TOKEN_DEFAULT: Final = 4.0
BYTES_PER_TOKEN_MIN: Final = 1.0
BYTES_PER_TOKEN_MAX: Final = 16.0
"""Of JSON in most languages; and the bounds of what is believed of an answer's prompt tokens."""

ENGINES_MAX: Final = 1024
"""Engines whose averages are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """
    What one answer says.

    `queued_tokens` were uncached and in flight on the engine when the request was sent, `computed_tokens`
    its own; `first_token_seconds` passed until its answer began, None where that says nothing about prefill.
    `predicted_tokens` were confirmed to be held beforehand, `reused_tokens` were found, None if nobody said.
    """

    queued_tokens: float
    computed_tokens: float
    first_token_seconds: float | None
    predicted_tokens: float
    reused_tokens: float | None


@dataclass(slots=True)
class _Averages:
    prefill_rate: float | None = None
    trust: float = 1.0


class Estimates:
    """The averages of each engine, and of all together."""

    def __init__(self) -> None:
        self._engines: Bounded[Engine, _Averages] = Bounded(ENGINES_MAX)
        self._prefill_rate: float | None = None
        self._bytes_per_token = BYTES_PER_TOKEN_DEFAULT

    def tokens(self, prompt_bytes: int) -> float:
        """Return how many tokens so many bytes of a prompt are, about."""
        return prompt_bytes / self._bytes_per_token

    def prefill_rate(self, engine: Engine) -> float:
        """Return an engine's prefill rate in tokens per second; that of all until it is known to differ."""
        common = self._prefill_rate or PREFILL_RATE_DEFAULT
        averages = self._engines.get(engine)
        own = common if averages is None else averages.prefill_rate or common
        return own if max(own, common) > ALIKE_FACTOR * min(own, common) else common

    def trust(self, engine: Engine) -> float:
        """Return which share of the reuse that is predicted for an engine happens, from 0 to 1."""
        averages = self._engines.get(engine)
        return 1.0 if averages is None else averages.trust

    def learn(self, engine: Engine, sample: Sample) -> None:
        """Take one answer into the averages."""
        averages = self._engines.get(engine)
        if averages is None:
            averages = _Averages()
            self._engines.put(engine, averages)
        self._learn_rate(averages, sample)
        if sample.reused_tokens is not None and sample.predicted_tokens > 0:
            share = min(1.0, sample.reused_tokens / sample.predicted_tokens)
            averages.trust = _moved(averages.trust, share)

    def learn_length(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Take the tokens that an engine counted in a prompt."""
        if prompt_tokens > 0:
            ratio = prompt_bytes / prompt_tokens
            bounded = min(BYTES_PER_TOKEN_MAX, max(BYTES_PER_TOKEN_MIN, ratio))
            self._bytes_per_token = _moved(self._bytes_per_token, bounded)

    def forget(self, engine: Engine) -> None:
        """Forget what was learned about an engine that has started anew."""
        self._engines.drop(engine)

    def _learn_rate(self, averages: _Averages, sample: Sample) -> None:
        seconds = sample.first_token_seconds
        if seconds is None or seconds <= 0 or sample.computed_tokens < SAMPLE_TOKENS_MIN:
            return
        tokens = sample.queued_tokens + sample.computed_tokens
        rate = min(PREFILL_RATE_MAX, max(PREFILL_RATE_MIN, tokens / seconds))
        weight = WEIGHT * min(1.0, tokens / SAMPLE_TOKENS_WHOLE)
        averages.prefill_rate = _multiplied(averages.prefill_rate, rate, weight)
        self._prefill_rate = _multiplied(self._prefill_rate, rate, weight)


def _multiplied(average: float | None, sample: float, weight: float) -> float:
    """Move a geometric average, in which one absurd sample counts no more in one direction than the other."""
    return sample if average is None else average * (sample / average) ** weight


def _moved(average: float, sample: float) -> float:
    return average + WEIGHT * (sample - average)
