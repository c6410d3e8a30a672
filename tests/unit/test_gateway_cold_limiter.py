"""How much of long prompts one engine computes at once, and who has to wait."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sternpost_gateway.adaptive_limit import SAMPLES_MIN
from sternpost_gateway.cold_limiter import (
    COLD_SHARE,
    FRESH_SECONDS,
    QUEUE_FACTOR,
    TENANT_SHARE,
    ColdLimiter,
    ColdLimits,
    Standing,
    Ticket,
)

LIMITS = ColdLimits(cold_tokens=100, batched_tokens=500)
ROOM = 1000


def ticket(tokens: float, tenant: str = "acme", arrived: float = 0.0) -> Ticket:
    """Return a request's ticket."""
    return Ticket(tokens, tenant, arrived)


def entered(limiter: ColdLimiter, *tickets: Ticket) -> list[Standing]:
    """Let requests enter one after the other; return how each stands at once."""
    return [limiter.enter(item) for item in tickets]


def busy(tenants: str = "abcd") -> tuple[ColdLimiter, list[Ticket]]:
    """Return a limiter whose room four tenants share."""
    limiter = ColdLimiter(LIMITS)
    tickets = [ticket(250, tenant) for tenant in tenants]
    assert {Standing.ADMITTED} == set(entered(limiter, *tickets))
    return limiter, tickets


def test_warm_requests_never_wait() -> None:
    """Whatever is in flight, a short prompt goes on."""
    limiter, _ = busy()

    assert [Standing.ADMITTED] * 20 == entered(limiter, *(ticket(99) for _ in range(20)))


def test_room_is_two_batches() -> None:
    """What fits is admitted, what does not waits until room comes free."""
    limiter, (first, *_) = busy()
    waits = ticket(250)
    stood = limiter.enter(waits)
    granted = limiter.leave(first, 1.0)

    assert (Standing.WAITING, [waits], ROOM) == (stood, granted, limiter.active_tokens)


def test_prompt_longer_than_the_room_goes_alone() -> None:
    """Never below one: the longest prompt is computed, too, when no other is."""
    limiter = ColdLimiter(LIMITS)
    long, next_long = ticket(5 * ROOM), ticket(5 * ROOM)

    assert [Standing.ADMITTED, Standing.WAITING] == entered(limiter, long, next_long)
    assert [next_long] == limiter.leave(long, 1.0)


def test_cold_gets_half_while_warm_is_being_computed() -> None:
    """A warm request in flight leaves cold ones half of the room."""
    limiter = ColdLimiter(LIMITS)
    warm = ticket(10)
    stood = entered(limiter, warm, *(ticket(250, tenant) for tenant in "abc"))
    granted = limiter.leave(warm, 1.0)

    assert [Standing.ADMITTED] * 3 + [Standing.WAITING] == stood
    assert COLD_SHARE * ROOM == 2 * 250
    assert 1 == len(granted)


def test_queue_is_bounded() -> None:
    """Beyond eight times the room a request is refused at once."""
    limiter, _ = busy()
    count = QUEUE_FACTOR * ROOM // 250
    stood = entered(limiter, *(ticket(250) for _ in range(count + 2)))

    assert [Standing.WAITING] * count + [Standing.REFUSED] * 2 == stood


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(FRESH_SECONDS, "oldest", id="in-time"),
        pytest.param(FRESH_SECONDS + 0.1, "newest", id="too-late"),
    ],
)
def test_newest_goes_first_when_the_oldest_waits_too_long(now: float, expected: str) -> None:
    """Somebody who has waited for long may be gone already."""
    limiter, (first, *_) = busy()
    waiting = {"oldest": ticket(250, "e"), "newest": ticket(250, "f", arrived=1.0)}
    entered(limiter, *waiting.values())

    assert [waiting[expected]] == limiter.leave(first, now)


def test_one_tenant_gets_a_quarter_while_others_wait() -> None:
    """A tenant who holds its share is passed over for the next one's request."""
    limiter, (first, *_) = busy("aabb")
    again, other = ticket(250, "a"), ticket(250, "c")
    entered(limiter, again, other)

    assert TENANT_SHARE * ROOM == 250
    assert [other] == limiter.leave(first, 1.0)


def test_one_tenant_alone_gets_everything() -> None:
    """Without others that wait there is nobody to be fair to."""
    limiter = ColdLimiter(LIMITS)

    assert [Standing.ADMITTED] * 4 == entered(limiter, *(ticket(250) for _ in range(4)))


def test_adaptive_limit_counts_requests() -> None:
    """What the warm requests' times say bounds the cold ones, however much room there is."""
    limiter = ColdLimiter(LIMITS)
    for window, seconds in enumerate([0.1, *[1.0] * 9]):
        for step in range(SAMPLES_MIN + 1):
            limiter.adaptive.observe(seconds, window + step / SAMPLES_MIN)

    assert [Standing.ADMITTED, Standing.WAITING] == entered(limiter, ticket(100, "a"), ticket(100, "b"))


def test_limits_follow_the_engine() -> None:
    """Room is two of its batches; slots are what has room there, and a quarter of its sequences."""
    assert (16384, 4) == (ColdLimits().room_tokens, ColdLimits().slots_max)
    assert (1, 2) == (ColdLimits(sequences=2).slots_max, ColdLimits(sequences=8).slots_max)


class LimiterMachine(RuleBasedStateMachine):
    """Any traffic: the room is never exceeded, nobody is lost, and nobody waits beside free room."""

    def __init__(self) -> None:
        super().__init__()
        self.limiter = ColdLimiter(LIMITS)
        self.tickets: list[Ticket] = []
        self.now = 0.0

    @rule(tokens=st.integers(0, 1500), tenant=st.sampled_from("abc"))
    def enter(self, tokens: int, tenant: str) -> None:
        """A request comes."""
        item = ticket(tokens, tenant, self.now)
        if self.limiter.enter(item) is not Standing.REFUSED:
            self.tickets.append(item)

    @rule(chosen=st.integers(0, 50))
    def leave(self, chosen: int) -> None:
        """A request goes, wherever it stands."""
        if self.tickets:
            item = self.tickets.pop(chosen % len(self.tickets))
            granted = self.limiter.leave(item, self.now)
            assert all(other.standing is Standing.ADMITTED for other in granted)

    @rule(seconds=st.sampled_from([0.1, 3.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @invariant()
    def cold_room_is_kept(self) -> None:
        """Cold requests fit into the room, but for one alone."""
        cold = [item.tokens for item in self.limiter.active if item.is_cold]
        assert len(cold) <= 1 or sum(cold) <= ROOM

    @invariant()
    def everybody_stands_somewhere(self) -> None:
        """Each request that has entered and not left is admitted or waits, once."""
        assert sorted(map(id, self.tickets)) == sorted(map(id, [*self.limiter.active, *self.limiter.waiting]))
        assert all(item.is_cold for item in self.limiter.waiting)

    @invariant()
    def somebody_goes_on(self) -> None:
        """Nobody waits for nothing."""
        assert not self.limiter.waiting or any(item.is_cold for item in self.limiter.active)


TestLimiterMachine = LimiterMachine.TestCase
TestLimiterMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
