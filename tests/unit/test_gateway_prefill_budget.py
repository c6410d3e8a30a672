"""What all builds together may cost the pool."""

from __future__ import annotations

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.prefill_budget import BUILD_SHARE, BURST_SECONDS, PrefillBudget

RATE = 1000.0
BURST = int(BURST_SECONDS * BUILD_SHARE * RATE)


def taken(budget: PrefillBudget, tokens: int, times: int) -> int:
    """Return how many of so many builds are allowed."""
    return sum(budget.take(tokens) for _ in range(times))


def test_builds_take_a_fifth_of_the_pool() -> None:
    """In a hundred seconds of constant demand no more is built than a fifth of what the pool computes."""
    clock = FakeClock()
    budget = PrefillBudget(clock, lambda: RATE, BUILD_SHARE)
    built = 0
    for _ in range(1000):
        clock.advance(0.1)
        built += 100 * taken(budget, 100, 5)

    assert BUILD_SHARE * RATE * 100 <= built <= BUILD_SHARE * RATE * 100 + BURST


def test_first_builds_start_at_once() -> None:
    """A budget that nobody has used allows a burst, and no more."""
    assert 10 == taken(PrefillBudget(FakeClock(), lambda: RATE, BUILD_SHARE), BURST // 10, 20)


def test_build_beyond_the_budget_goes_and_others_wait() -> None:
    """A long tail is not locked out for ever; what it takes too much is paid back first."""
    clock = FakeClock()
    budget = PrefillBudget(clock, lambda: RATE, BUILD_SHARE)
    large = budget.take(3 * BURST)
    clock.advance(2 * BURST_SECONDS - 0.5)
    early = budget.take(1)
    clock.advance(1.0)

    assert (True, False, True) == (large, early, budget.take(1))
