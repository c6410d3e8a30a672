"""Announcements merge, times are kept, and nobody looks at one object twice at once."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from sternpost_core.clock import SystemClock
from sternpost_fakes.clock import FakeClock
from sternpost_operator.resources import Key
from sternpost_operator.work_queue import KEYS_MAX, RETRY_SECONDS_MAX, WorkQueue

A, B = Key("CachePolicy", "x", "a"), Key("CachePolicy", "x", "b")


def test_announcements_merge() -> None:
    """Three announcements are one look, at the earliest of the three times."""
    clock = FakeClock()
    queue = WorkQueue(clock)
    queue.add(A, 60)
    queue.add(A, 5)
    queue.add(A, 30)
    clock.advance(5)

    assert (A, None) == (queue.take(), queue.take())


def test_key_that_is_worked_on_waits() -> None:
    """What changes during a look is looked at after it."""
    queue = WorkQueue(FakeClock())
    queue.add(A)
    assert A == queue.take()
    queue.add(A)
    queue.add(B)

    assert (B, None) == (queue.take(), queue.take())
    queue.done(A)
    assert A == queue.take()


def test_failures_wait_longer_each_time_up_to_a_minute() -> None:
    """1 s, 2 s, 4 s ... 60 s, and from the beginning after a success."""
    clock = FakeClock()
    queue = WorkQueue(clock)
    waits = []
    queue.add(A)
    for _ in range(8):
        assert A == queue.take()
        queue.failed(A)
        waited = 0
        while queue.take() is None:
            clock.advance(1)
            waited += 1
        queue.add(A)
        queue.done(A) if waited > RETRY_SECONDS_MAX else queue._release(A)
        waits.append(waited)

    assert [1, 2, 4, 8, 16, 32, 60, 60] == waits


def test_what_fails_for_days_is_tried_every_minute() -> None:
    """The number of failures has no end, and ends nothing."""
    clock = FakeClock()
    queue = WorkQueue(clock)
    queue.add(A)
    for _ in range(2000):
        assert A == queue.take()
        queue.failed(A)
        clock.advance(RETRY_SECONDS_MAX)

    assert A == queue.take()


def test_queue_is_bounded() -> None:
    """More keys than the limit are left to the next full list."""
    queue = WorkQueue(FakeClock())
    for number in range(KEYS_MAX + 5):
        queue.add(Key("CachePolicy", "x", str(number)))

    assert KEYS_MAX == len(queue)


async def test_waiting_ends_when_a_key_comes() -> None:
    """A worker that waits for a far time is woken by a nearer one."""
    queue = WorkQueue(SystemClock())
    queue.add(A, 3600)
    waiting = asyncio.create_task(queue.next())
    await asyncio.sleep(0)
    queue.add(B)

    assert B == await waiting


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 20), st.booleans()), max_size=40))
def test_nothing_announced_is_lost(steps: list[tuple[str, int, bool]]) -> None:
    """Whatever is announced is handed out in the end, each key once."""
    clock = FakeClock()
    queue = WorkQueue(clock)
    announced: set[Key] = set()
    for name, delay, works in steps:
        key = Key("CachePolicy", "x", name)
        queue.add(key, delay)
        announced.add(key)
        if works and (taken := queue.take()) is not None:
            announced.discard(taken)
            queue.done(taken)
    clock.advance(20)
    handed_out = []
    while (taken := queue.take()) is not None:
        handed_out.append(taken)

    assert announced == set(handed_out)
    assert len(handed_out) == len(set(handed_out))
