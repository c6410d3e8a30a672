"""
How many cold requests one engine takes at once, found by what they do to the warm ones.

Each second the warm requests' time to first token is held against its own baseline, and the limit moves: up
by one step while nobody suffers, down by a factor when somebody does. The form is that of Netflix's
concurrency-limits and Envoy's adaptive concurrency. The baseline is the lowest that was seen; it is
forgotten slowly.
"""

from __future__ import annotations

import math
from typing import Final

WINDOW_SECONDS: Final = 1.0
SAMPLES_MIN: Final = 20
"""Warm answers that make a window; with fewer it goes on. Of a handful the percentile is the slowest one, and
the lowest that was seen of those is luck, which no later window has."""

SAMPLES_MAX: Final = 1024
"""Of one window; more change nothing."""

PERCENTILE: Final = 0.9

CALM_RATIO: Final = 1.2
BUSY_RATIO: Final = 1.5
"""Of the percentile to the baseline: up to the first the limit grows, from the second on it shrinks."""

SHRINK: Final = 0.7
FORGET: Final = 1.001
"""By which the baseline grows in each window, so that an engine that became slower is measured anew."""

LIMIT_MIN: Final = 1.0


class AdaptiveLimit:
    """The limit of one engine; it begins at its maximum."""

    def __init__(self, limit_max: int) -> None:
        self._limit_max = max(LIMIT_MIN, float(limit_max))
        self._limit = self._limit_max
        self._baseline: float | None = None
        self._samples: list[float] = []
        self._began: float | None = None

    @property
    def limit(self) -> int:
        """Return how many cold requests may be in flight; never less than one."""
        return int(self._limit)

    def observe(self, seconds: float, now: float) -> None:
        """Take a warm request's time to first token."""
        if self._began is None:
            self._began = now
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(seconds)
        if now - self._began >= WINDOW_SECONDS and len(self._samples) >= SAMPLES_MIN:
            self._close(now)

    def _close(self, now: float) -> None:
        found = percentile(self._samples, PERCENTILE)
        self._samples.clear()
        self._began = now
        baseline = found if self._baseline is None else min(found, self._baseline * FORGET)
        self._baseline = baseline
        if found > BUSY_RATIO * baseline:
            self._limit = max(LIMIT_MIN, self._limit * SHRINK)
        elif found <= CALM_RATIO * baseline:
            self._limit = min(self._limit_max, self._limit + 1.0)


def percentile(samples: list[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
