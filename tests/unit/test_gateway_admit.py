"""How much is taken on at once."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sternpost_gateway.admit import Admission
from sternpost_gateway.errors import Overloaded
from sternpost_gateway.settings import Limits


def admission(**limits: int) -> Admission:
    """Return an admission with other limits."""
    return Admission(replace(Limits(), **limits), random.Random(1))


def test_requests_beyond_the_limit_are_refused() -> None:
    """The limit is reached exactly, and a slot that comes free is taken again."""
    tested = admission(in_flight_max=2)
    with tested.request():
        with tested.request(), pytest.raises(Overloaded), tested.request():
            pass
        with tested.request():
            assert 2 == tested.in_flight

    assert 0 == tested.in_flight


def test_refusal_says_when_to_come_back() -> None:
    """The seconds are whole, between 1 and 5, and not always the same."""
    tested = admission(in_flight_max=0)
    seconds = set()
    for _ in range(100):
        with pytest.raises(Overloaded) as refused, tested.request():
            pass
        seconds.add(refused.value.retry_after_seconds)

    assert {1, 2, 3, 4, 5} == seconds


def test_slot_is_returned_after_a_failure() -> None:
    """Whatever happens inside, the counts return to where they were."""
    tested = admission()
    with pytest.raises(RuntimeError), tested.request(), tested.body(10), tested.retry():
        raise RuntimeError

    assert (0, 0, 0) == (tested.in_flight, tested.body_bytes, tested.retries)


def test_bodies_share_their_bytes() -> None:
    """Bodies are refused when they are too large together, but one alone is not."""
    tested = admission(bodies_bytes_max=100)
    with tested.body(150), pytest.raises(Overloaded), tested.body(1):
        pass
    with tested.body(60), tested.body(40):
        assert 100 == tested.body_bytes


@pytest.mark.parametrize(
    ("in_flight", "retries", "expected"),
    [
        pytest.param(0, 2, True, id="few-requests-below-the-least"),
        pytest.param(0, 3, False, id="few-requests-at-the-least"),
        pytest.param(50, 4, True, id="many-requests-below-the-share"),
        pytest.param(50, 5, False, id="many-requests-at-the-share"),
    ],
)
def test_retries_have_a_budget(in_flight: int, retries: int, expected: bool) -> None:
    """A tenth of the requests in flight may be retries, and always three."""
    tested = admission()
    with ExitStack() as stack:
        for _ in range(in_flight):
            stack.enter_context(tested.request())
        for _ in range(retries):
            stack.enter_context(tested.retry())

        assert expected is tested.may_retry()
