"""
Telling, while figures still come in, that their mean is over a limit.

A test that looks after each figure must not be one that is made for a single look. This one is an e-detector
of the CUSUM form (Shin, Ramdas, Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection", New England Journal of Statistics in Data Science 2, 2024), over bets on the mean of figures that
are never negative (Waudby-Smith, Ramdas, "Estimating means of bounded random variables by betting", Journal
of the Royal Statistical Society B 86, 2024). It assumes no distribution, and a long good past does not make
it slower to see a change.
"""

from __future__ import annotations

from typing import Final

BETS: Final = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Shares of the wealth that are bet: the large ones find a gross fault, the small ones a slight one."""

ALARM: Final = 10_000.0
"""The mean wealth that raises an alarm: on average in no fewer figures, with a mean at the limit."""

WEALTH_MAX: Final = 1e12
"""Beyond which a wealth says nothing more."""

LIMIT_MIN: Final = 1e-6
"""What a limit of zero counts as."""


class ChangeDetector:
    """
    Watches figures that are not negative, for a mean over `limit`.

    Each bet's wealth is multiplied by `1 + bet * (figure / limit - 1)`, which is never negative, and on
    average at most 1 while the mean keeps to the limit; a wealth that has fallen under 1 begins at 1 again.
    """

    def __init__(self, limit: float) -> None:
        self._limit = max(limit, LIMIT_MIN)
        self._wealth = [1.0] * len(BETS)

    def observe(self, figure: float) -> None:
        """Take the next figure."""
        gain = figure / self._limit - 1.0
        self._wealth = [
            min(WEALTH_MAX, max(1.0, wealth) * (1.0 + bet * gain))
            for bet, wealth in zip(BETS, self._wealth, strict=True)
        ]

    @property
    def has_changed(self) -> bool:
        """Say whether the mean is over the limit by now."""
        return sum(self._wealth) / len(BETS) >= ALARM
