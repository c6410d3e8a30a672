"""Waiting for who computes the same, and for room; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from sternpost_fakes.virtual_time import VirtualClock, run_virtual
from sternpost_gateway.cold_gate import ColdGate, Entry, Pass, patience_of
from sternpost_gateway.cold_limiter import ColdLimits, Outcome
from sternpost_gateway.errors import Overloaded
from sternpost_gateway.fleet import Engine
from sternpost_gateway.prompt_blocks import BLOCK_BYTES, PromptBlocks
from sternpost_gateway.route import Affinity
from sternpost_gateway.router import Routed

ENGINE = Engine("http://engine")
LIMITS = ColdLimits(cold_tokens=1000, batched_tokens=2000)
ROOM = 4000
BLOCKS = tuple(bytes([number]) for number in range(16))


def cold(tokens: float = 1000.0, rate: float = 1000.0) -> Routed:
    """Return a request that finds nothing, and shares nothing with others."""
    return Routed(engine=ENGINE, affinity=Affinity.MISSED, prompt_tokens=tokens, prefill_rate=rate)


def sharing(held: int = 0) -> Routed:
    """Return a request of 2,048 tokens, `held` of whose 16 blocks another request is about to leave."""
    prompt = PromptBlocks(BLOCKS, len(BLOCKS) * BLOCK_BYTES)
    return Routed(
        engine=ENGINE,
        affinity=Affinity.HELD,
        blocks=prompt,
        prompt_tokens=2048.0,
        reuse_tokens=2048.0 * held / len(BLOCKS),
        held_blocks=held,
        prefill_rate=1000.0,
    )


@dataclass(slots=True)
class Scene:
    """A gate in virtual time, and what it said."""

    clock: VirtualClock
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    gate: ColdGate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = ColdGate(LIMITS, self.clock, random.Random(1), self._count)

    def _count(self, outcome: Outcome, seconds: float) -> None:
        self.outcomes[outcome] += 1

    async def enter(self, routed: Routed, wait: float = 5.0, *, in_batch: bool = False) -> Pass:
        """Wait for a request's turn, which comes."""
        passed = await self.gate.enter(routed, Entry(tenant="acme", wait_seconds=wait, in_batch=in_batch))
        assert passed is not None, "what it followed has not failed"
        return passed

    async def come(self, *routed: Routed) -> list[asyncio.Task[Pass | None]]:
        """Let requests come, and let everything happen that happens at once."""
        tasks = [asyncio.ensure_future(self.gate.enter(item, Entry())) for item in routed]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tasks


def scene(main: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scene in virtual time."""
    run_virtual(lambda clock: main(Scene(clock)))


def test_request_waits_until_there_is_room() -> None:
    """It goes on at the moment in which another's prompt has been computed."""

    async def main(tested: Scene) -> None:
        full = [await tested.enter(cold()) for _ in range(4)]
        (waiting,) = await tested.come(cold())
        await asyncio.sleep(1.0)
        before = waiting.done()
        full[0].computed()
        full[0].leave()
        await waiting

        assert (False, 1.0) == (before, tested.clock.monotonic())
        assert {Outcome.COLD: 5} == tested.outcomes

    scene(main)


def test_request_that_waits_in_vain_is_refused() -> None:
    """After its patience it is told when to come back, and takes no more room."""

    async def main(tested: Scene) -> None:
        full = [await tested.enter(cold()) for _ in range(4)]
        with pytest.raises(Overloaded) as refused:
            await tested.enter(cold(), wait=2.0)
        waited = tested.clock.monotonic()
        for passed in full:
            passed.leave()

        assert (2.0, True) == (waited, 1 <= refused.value.retry_after_seconds <= 5)
        assert "\n" not in str(refused.value)
        assert 1 == tested.outcomes[Outcome.WAITED_TOO_LONG]
        assert tested.gate.limiters()[ENGINE].is_idle

    scene(main)


def test_full_queue_refuses_at_once() -> None:
    """No time passes between the request and its refusal."""

    async def main(tested: Scene) -> None:
        await tested.come(*(cold(ROOM) for _ in range(9)))
        with pytest.raises(Overloaded):
            await tested.enter(cold(ROOM))

        assert (0.0, 1) == (tested.clock.monotonic(), tested.outcomes[Outcome.QUEUE_FULL])

    scene(main)


def test_client_that_leaves_gives_its_place_to_the_next() -> None:
    """A cancelled wait takes no room, and a cancelled holder gives it back."""

    async def main(tested: Scene) -> None:
        full = [await tested.enter(cold()) for _ in range(4)]
        gone, stays = await tested.come(cold(), cold())
        gone.cancel()
        await asyncio.sleep(0)
        full[0].leave()
        await stays

        assert (True, 0.0) == (gone.cancelled(), tested.clock.monotonic())

    scene(main)


def test_followers_go_on_when_the_leader_has_computed() -> None:
    """Three that share the leader's blocks wait for it, and then are as warm as it made them."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(sharing())
        followers = await tested.come(*(replace(sharing(held=15), reuse_tokens=2000.0) for _ in range(3)))
        await asyncio.sleep(1.0)
        waiting = [task.done() for task in followers]
        leader.computed()
        await asyncio.gather(*followers)

        assert ([False] * 3, 1.0) == (waiting, tested.clock.monotonic())
        assert {Outcome.COLD: 1, Outcome.FOLLOWED: 3} == tested.outcomes

    scene(main)


def test_followers_with_prompts_of_their_own_go_one_after_the_other() -> None:
    """The next goes when the one before has computed its prompt, or after twice the time predicted for it."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(sharing())
        own = replace(sharing(held=15), reuse_tokens=1648.0)
        short = replace(sharing(held=15), reuse_tokens=2000.0)
        quick, slow, last, brief = await tested.come(own, own, own, short)
        leader.computed()
        await asyncio.sleep(0.1)
        at_once = [task.done() for task in (quick, slow, last, brief)]
        passed = await quick
        assert passed is not None
        passed.computed()
        passed.leave()
        await slow
        second = tested.clock.monotonic()
        await last

        assert [True, False, False, True] == at_once
        assert [0.1, 0.9] == pytest.approx([second, tested.clock.monotonic()])

    scene(main)


def test_follower_that_leaves_holds_up_nobody() -> None:
    """Whether it waits for its turn or has it: the next goes at once."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(sharing())
        own = replace(sharing(held=15), reuse_tokens=1648.0)
        first, gone, last = await tested.come(own, own, own)
        leader.computed()
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.sleep(0.1)
        passed = await first
        assert passed is not None
        passed.leave()
        await last

        assert gone.cancelled()
        assert 0.2 == pytest.approx(tested.clock.monotonic())

    scene(main)


def test_nobody_stands_in_line_for_more_than_five_seconds() -> None:
    """Of many who have much to compute, those behind go when their patience is over."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(sharing())
        own = replace(sharing(held=15), reuse_tokens=1148.0)
        followers = await tested.come(*(own for _ in range(12)))
        leader.computed()
        await asyncio.gather(*followers)

        assert 5.0 == pytest.approx(tested.clock.monotonic())

    scene(main)


def test_failed_leader_is_replaced_by_one_of_its_followers() -> None:
    """Each failure makes one new leader, whom the others follow; nobody goes as a herd."""

    async def main(tested: Scene) -> None:
        leading: list[Pass] = []

        async def request() -> None:
            # The first of those that are routed anew finds nothing, and leads; the others find that.
            while (passed := await tested.gate.enter(sharing(15 if leading else 0), Entry())) is None:
                pass
            leading.append(passed)

        requests = [asyncio.ensure_future(request()) for _ in range(6)]
        await asyncio.sleep(0)
        counts = []
        for _ in range(5):
            await asyncio.sleep(0.1)
            counts.append(len(leading))
            failed = leading.pop()
            failed.leave()
        await asyncio.sleep(0.1)
        leading[0].computed()
        await asyncio.gather(*requests)

        assert [1] * 5 == counts
        assert 6 == tested.outcomes[Outcome.COLD]

    scene(main)


def test_followers_of_a_slow_leader_are_released_one_by_one() -> None:
    """After one and a half times the predicted prefill they compute for themselves, not all at once."""

    async def main(tested: Scene) -> None:
        await tested.enter(sharing())
        times = []

        async def follow() -> None:
            await tested.enter(sharing(held=15))
            times.append(tested.clock.monotonic())

        await asyncio.gather(*(follow() for _ in range(5)))
        gaps = [later - earlier for earlier, later in pairwise(times)]

        assert 1.5 * 2.048 == pytest.approx(times[0])
        assert all(0.125 <= gap <= 0.375 for gap in gaps)

    scene(main)


def test_request_that_shares_little_follows_nobody() -> None:
    """To wait pays only for what would be cold."""

    async def main(tested: Scene) -> None:
        await tested.enter(sharing())
        await tested.enter(sharing(held=3))

        assert 0.0 == tested.clock.monotonic()

    scene(main)


@pytest.mark.parametrize(
    ("rate", "waits"),
    [pytest.param(1000.0, True, id="slow-engine"), pytest.param(10_000.0, False, id="fast-engine")],
)
def test_what_takes_another_half_a_second_is_waited_for(rate: float, waits: bool) -> None:
    """However few tokens it is: on a slow engine a request follows that would not on a fast one."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(replace(sharing(), prefill_rate=rate))
        (follower,) = await tested.come(replace(sharing(held=7), prefill_rate=rate))
        waited = not follower.done()
        leader.computed()
        await follower

        assert waits == waited

    scene(main)


def test_batch_waits_for_its_first_request_although_its_prompt_is_short() -> None:
    """Of requests that say that they belong together one goes first, whatever there is to compute."""

    async def main(tested: Scene) -> None:
        leader = await tested.enter(replace(sharing(), prompt_tokens=512.0), in_batch=True)
        short = replace(sharing(held=15), prompt_tokens=512.0, reuse_tokens=480.0)
        follower = asyncio.ensure_future(tested.enter(short, in_batch=True))
        await tested.enter(short)
        alone = tested.clock.monotonic()
        await asyncio.sleep(0.5)
        waited = not follower.done()
        leader.computed()
        await follower

        assert (0.0, True, 0.5) == (alone, waited, tested.clock.monotonic())

    scene(main)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({}, 5.0, id="no-deadline"),
        pytest.param({"x-stainless-read-timeout": "600"}, 5.0, id="long"),
        pytest.param({"x-stainless-read-timeout": "8"}, 2.0, id="short"),
        pytest.param({"x-envoy-expected-rq-timeout-ms": "4000"}, 1.0, id="from-a-proxy"),
        pytest.param({"x-stainless-read-timeout": "NaN"}, 5.0, id="no-number"),
        pytest.param({"x-stainless-read-timeout": "-3"}, 5.0, id="negative"),
    ],
)
def test_patience_is_a_quarter_of_the_clients(headers: dict[str, str], expected: float) -> None:
    """Whoever waits for eight seconds is told after two that there is no room."""
    assert expected == patience_of(headers)
