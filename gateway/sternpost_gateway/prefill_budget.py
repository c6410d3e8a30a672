"""
The budget of work that the gateway itself makes: a share of what the pool can compute.

Epochs, rollouts, restarts and drains all make tails vanish, sometimes all at once. What building them costs
together is bounded here; until a tail's turn comes, its requests are computed exactly. Shadow replays have a
budget of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sternpost_core.clock import Clock

BUILD_SHARE: Final = 0.2
"""Of the pool's prefill rate that builds may take."""

SHADOW_SHARE: Final = 0.02
"""Of the pool's prefill rate that shadow replays may take unless told otherwise."""

BURST_SECONDS: Final = 5.0
"""For which an unused budget is kept, so that work begins at once."""


class PrefillBudget:
    """A token bucket over a share of `prefill_rate`, the pool's rate now in tokens per second."""

    def __init__(self, clock: Clock, prefill_rate: Callable[[], float], share: float) -> None:
        self._clock = clock
        self._share = share
        self._prefill_rate = prefill_rate
        self._at = clock.monotonic()
        self._tokens: float | None = None

    def take(self, tokens: int) -> bool:
        """
        Take the tokens of a piece of work, if the budget has any left.

        One may be larger than the budget ever is: then it takes all, and others wait for longer.
        """
        now = self._clock.monotonic()
        rate = self._share * self._prefill_rate()
        burst = BURST_SECONDS * rate
        kept = burst if self._tokens is None else self._tokens + (now - self._at) * rate
        self._at = now
        self._tokens = min(burst, kept)
        if self._tokens < min(tokens, burst):
            return False
        self._tokens -= tokens
        return True
