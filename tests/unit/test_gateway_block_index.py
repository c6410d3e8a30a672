"""Which engine holds which blocks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sternpost_fakes.clock import FakeClock
from sternpost_gateway.block_index import ENGINE_BLOCKS_MIN, PROVISIONAL_SECONDS, BlockIndex
from sternpost_gateway.fleet import Engine

ENGINES = [Engine(f"http://engine-{number}") for number in range(3)]
A, B, C = ENGINES


def prompt(length: int, name: str = "p") -> tuple[bytes, ...]:
    """Return a prompt's hashes; two prompts of one name begin alike."""
    return tuple(f"{name}-{number}".encode() for number in range(length))


def test_burst_of_equal_prompts_is_known_at_once() -> None:
    """A decision counts before the engine has answered, and no longer than it may."""
    clock = FakeClock()
    index = BlockIndex(clock)
    index.expect(A, prompt(4))
    at_once = index.match(prompt(6))
    clock.advance(PROVISIONAL_SECONDS)

    assert ({A: 4}, {}) == (at_once, index.match(prompt(6)))
    assert 0 == index.held(A)


def test_confirmed_blocks_stay() -> None:
    """What an engine has computed outlives the decision, whether it was expected or not."""
    clock = FakeClock()
    index = BlockIndex(clock)
    index.expect(A, prompt(4))
    index.confirm(A, prompt(4))
    index.expect(A, prompt(6))
    clock.advance(PROVISIONAL_SECONDS * 2)

    assert ({A: 4}, 4) == (index.match(prompt(6)), index.confirmed(A, prompt(6)))


def test_match_counts_each_engine_for_itself() -> None:
    """Engines drop out where their own blocks end."""
    index = BlockIndex(FakeClock())
    index.confirm(A, prompt(2))
    index.confirm(B, prompt(5))
    index.confirm(C, prompt(5, "q"))

    assert {A: 2, B: 5} == index.match(prompt(7))


def test_match_ends_at_the_first_missing_block() -> None:
    """Blocks behind a gap are of no use to an engine."""
    index = BlockIndex(FakeClock())
    index.confirm(A, prompt(5))
    index.missed(A, prompt(5)[2:3])

    assert {A: 2} == index.match(prompt(5))


def test_withdrawal_takes_back_what_is_provisional_only() -> None:
    """A failed request leaves nothing behind, and takes nothing with it that others left."""
    index = BlockIndex(FakeClock())
    index.confirm(A, prompt(2))
    index.expect(A, prompt(5))
    index.withdraw(A, prompt(5))

    assert {A: 2} == index.match(prompt(5))


@pytest.mark.parametrize("engine", [pytest.param(A, id="known"), pytest.param(B, id="unknown")])
def test_forgotten_engine_holds_nothing(engine: Engine) -> None:
    """After an engine's restart nothing is believed of it, and another takes no harm."""
    index = BlockIndex(FakeClock())
    index.confirm(A, prompt(3))
    index.confirm(C, prompt(3))
    index.forget(engine)

    assert {other: 3 for other in (A, C) if other is not engine} == index.match(prompt(3))


def test_least_recently_used_prompt_goes_first_and_its_end_before_its_beginning() -> None:
    """As in the engine, the beginnings that prompts share stay longest."""
    index = BlockIndex(FakeClock())
    half = ENGINE_BLOCKS_MIN // 2
    index.limit(A, ENGINE_BLOCKS_MIN)
    index.expect(A, prompt(half, "old"))
    index.expect(A, prompt(half, "new"))
    index.expect(A, prompt(10, "newest"))

    assert [half - 10, half, 10] == [
        index.match(prompt(half, name)).get(A, 0) for name in ("old", "new", "newest")
    ]


def test_room_shrinks_with_a_miss_and_grows_with_what_is_confirmed() -> None:
    """An engine that turns out to have evicted blocks is believed to have no more room than it had in use."""
    index = BlockIndex(FakeClock())
    blocks = 2 * ENGINE_BLOCKS_MIN
    index.confirm(A, prompt(blocks))
    index.missed(A, prompt(blocks)[blocks // 2 :])
    index.expect(A, prompt(blocks, "q"))
    full = index.held(A)
    for _ in range(4):
        index.confirm(A, prompt(blocks, "q"))

    assert (blocks // 2, True) == (full, index.held(A) > full)


def test_engines_share_the_bound() -> None:
    """All engines together never hold more than the index may."""
    index = BlockIndex(FakeClock(), blocks_max=3 * ENGINE_BLOCKS_MIN)
    for engine in ENGINES:
        index.confirm(engine, prompt(3 * ENGINE_BLOCKS_MIN, engine.url))

    assert [ENGINE_BLOCKS_MIN] * 3 == [index.held(engine) for engine in ENGINES]


class IndexMachine(RuleBasedStateMachine):
    """The index beside a plain model of sets, without bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.index = BlockIndex(self.clock)
        self.model: dict[Engine, dict[bytes, float]] = {engine: {} for engine in ENGINES}

    @rule(engine=st.sampled_from(ENGINES), length=st.integers(0, 6), name=st.sampled_from("pq"))
    def expect(self, engine: Engine, length: int, name: str) -> None:
        """Expect a prompt."""
        self.index.expect(engine, prompt(length, name))
        self._hold(engine, prompt(length, name), self.clock.monotonic() + PROVISIONAL_SECONDS)

    @rule(engine=st.sampled_from(ENGINES), length=st.integers(0, 6), name=st.sampled_from("pq"))
    def confirm(self, engine: Engine, length: int, name: str) -> None:
        """Confirm a prompt."""
        self.index.confirm(engine, prompt(length, name))
        self._hold(engine, prompt(length, name), float("inf"))

    @rule(engine=st.sampled_from(ENGINES))
    def forget(self, engine: Engine) -> None:
        """Forget an engine."""
        self.index.forget(engine)
        self.model[engine].clear()

    @rule(seconds=st.sampled_from([0.5, 2.0, PROVISIONAL_SECONDS]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    @invariant()
    def agrees(self) -> None:
        """Both give the same answer for both prompts."""
        for name in "pq":
            expected = {engine: self._length(engine, name) for engine in ENGINES}
            found = self.index.match(prompt(6, name))
            assert {engine: length for engine, length in expected.items() if length} == found

    def _hold(self, engine: Engine, hashes: tuple[bytes, ...], until: float) -> None:
        for block in hashes:
            self.model[engine][block] = max(until, self.model[engine].get(block, 0.0))

    def _length(self, engine: Engine, name: str) -> int:
        now, length = self.clock.monotonic(), 0
        for block in prompt(6, name):
            if self.model[engine].get(block, 0.0) <= now:
                break
            length += 1
        return length


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
