"""How many requests each engine was sent lately."""

from __future__ import annotations

import math

import pytest

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.fleet import Engine
from sternpost_gateway.recent import DECAY_SECONDS, Recent

ENGINE, OTHER = Engine("http://engine"), Engine("http://other")


def test_requests_count_for_less_the_older_they_are() -> None:
    """After the decay's time a request counts 1/e, however it was added."""
    clock = FakeClock()
    recent = Recent(clock)
    recent.add(ENGINE)
    at_once = recent.count(ENGINE)
    clock.advance(DECAY_SECONDS)
    recent.add(ENGINE)

    assert (1.0, 0.0) == (at_once, recent.count(OTHER))
    assert 1.0 + math.exp(-1) == pytest.approx(recent.count(ENGINE))


def test_engine_that_is_gone_counts_nothing() -> None:
    """What comes back begins anew."""
    recent = Recent(FakeClock())
    recent.add(ENGINE)
    recent.forget(ENGINE)

    assert 0.0 == recent.count(ENGINE)
