"""How much is taken on at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

import pytest

from sternpost_fakes.virtual_time import run_virtual
from sternpost_gateway.admit import Admission
from sternpost_gateway.errors import Overloaded
from sternpost_gateway.settings import Limits

Result = TypeVar("Result")


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
    with pytest.raises(RuntimeError), tested.request(), tested.body(10):
        raise RuntimeError

    assert (0, 0) == (tested.in_flight, tested.body_bytes)


def test_bodies_share_their_bytes() -> None:
    """Bodies are refused when they are too large together, but one alone is not."""
    tested = admission(bodies_bytes_max=100)
    with tested.body(150), pytest.raises(Overloaded), tested.body(1):
        pass
    with tested.body(60), tested.body(40):
        assert 100 == tested.body_bytes


def test_body_counts_with_what_it_turns_out_to_have() -> None:
    """A body may grow while there is room, and makes room when it shrinks; alone it may grow at will."""
    tested = admission(bodies_bytes_max=100)
    with tested.body(0) as one:
        one(150)
        one(30)
        with tested.body(60) as two:
            two(70)
            with pytest.raises(Overloaded):
                two(71)
            two(40)
        assert 30 == tested.body_bytes

    assert 0 == tested.body_bytes


def virtually(main: Callable[[], Coroutine[None, None, Result]]) -> Result:
    """Run in virtual time."""
    return run_virtual(lambda clock: main())


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [pytest.param(0, 3, id="few-requests"), pytest.param(50, 5, id="a-tenth-of-many")],
)
def test_retries_have_a_budget(in_flight: int, expected: int) -> None:
    """A tenth of the requests in flight may be retries, and always three; the next one waits in vain."""
    tested = admission()

    async def main() -> list[bool]:
        with ExitStack() as stack:
            for _ in range(in_flight):
                stack.enter_context(tested.request())
            return [await tested.take_retry() is not None for _ in range(expected + 1)]

    assert [True] * expected + [False] == virtually(main)


def test_retry_that_comes_free_goes_to_who_has_waited_longest() -> None:
    """All that a dead engine had is sent again within the budget, one after the other."""
    tested = admission(retry_min=2)
    order: list[int] = []
    most = 0

    async def one(number: int) -> None:
        nonlocal most
        give_back = await tested.take_retry()
        assert give_back is not None
        order.append(number)
        most = max(most, tested.retries)
        await asyncio.sleep(0.5)
        give_back()

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    virtually(main)

    assert (list(range(12)), 2, 0) == (order, most, tested.retries)


def test_retry_is_not_waited_for_where_there_never_is_one() -> None:
    """A budget of nothing is a decision of whoever has set it."""
    tested = admission(retry_min=0)

    async def main() -> tuple[bool, float]:
        return await tested.take_retry() is None, asyncio.get_running_loop().time()

    assert (True, 0.0) == virtually(main)


@pytest.mark.parametrize("handed_over", [False, True], ids=["while-waiting", "as-its-turn-comes"])
def test_client_that_leaves_while_it_waits_takes_no_retry_along(handed_over: bool) -> None:
    """Whoever waits behind it gets its turn."""
    tested = admission(retry_min=1)

    async def main() -> bool:
        give_back = await tested.take_retry()
        assert give_back is not None
        leaving = asyncio.ensure_future(tested.take_retry())
        next_one = asyncio.ensure_future(tested.take_retry())
        await asyncio.sleep(0.1)
        if handed_over:
            give_back()
        leaving.cancel()
        await asyncio.sleep(0.0)
        if not handed_over:
            give_back()
        return await next_one is not None

    assert virtually(main)
    assert 1 == tested.retries
