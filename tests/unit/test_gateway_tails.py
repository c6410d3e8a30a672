"""The tails registry: every transition of a tail's state, and the bounds."""

from __future__ import annotations

import pytest

from sternpost_core.content import ContentId
from sternpost_fakes.clock import FakeClock
from sternpost_gateway.bounded import Bounded
from sternpost_gateway.bypass import Bypass
from sternpost_gateway.fleet import Engine
from sternpost_gateway.tails import (
    BUILD_INTERVAL_SECONDS,
    MISSES_HOLD_SECONDS,
    MISSES_MAX,
    Refused,
    TailKey,
    Tails,
    TailState,
)
from sternpost_gateway.tokens import TailFacts

ENGINE = Engine("http://engine")
OTHER = Engine("http://other")
TEMPLATE_ID = ContentId("t")
KEY = TailKey("agents/support", TEMPLATE_ID, "salt", 0)
FACTS = TailFacts((1,), (2, 3), 1, ContentId("s"))


def built(tails: Tails) -> None:
    """Build the tail on the engine."""
    assert tails.begin_build(ENGINE, KEY)
    tails.end_build(ENGINE, KEY, built=True)


def test_build_goes_from_absent_to_built() -> None:
    """A claim makes the tail building, and success makes it built."""
    tails = Tails(FakeClock())
    states = [tails.state(ENGINE, KEY)]
    tails.begin_build(ENGINE, KEY)
    states.append(tails.state(ENGINE, KEY))
    tails.end_build(ENGINE, KEY, built=True)
    states.append(tails.state(ENGINE, KEY))

    assert [TailState.ABSENT, TailState.BUILDING, TailState.BUILT] == states
    assert TailState.ABSENT is tails.state(OTHER, KEY)


def test_one_build_at_a_time() -> None:
    """While a tail is being built, or is built, nobody else gets the claim."""
    tails = Tails(FakeClock())
    claims = [tails.begin_build(ENGINE, KEY), tails.begin_build(ENGINE, KEY), tails.begin_build(OTHER, KEY)]
    tails.end_build(ENGINE, KEY, built=True)

    assert [True, False, True, False] == [*claims, tails.begin_build(ENGINE, KEY)]


def test_failed_build_backs_off() -> None:
    """A tail is tried at most once per interval."""
    clock = FakeClock()
    tails = Tails(clock)
    tails.begin_build(ENGINE, KEY)
    tails.end_build(ENGINE, KEY, built=False)
    clock.advance(BUILD_INTERVAL_SECONDS - 0.1)
    early = tails.begin_build(ENGINE, KEY)
    clock.advance(0.1)

    assert (False, True) == (early, tails.begin_build(ENGINE, KEY))


def test_restart_voids_a_build_under_way() -> None:
    """A build that ends after its engine's restart does not count."""
    tails = Tails(FakeClock())
    tails.begin_build(ENGINE, KEY)
    tails.forget_engine(ENGINE)
    tails.end_build(ENGINE, KEY, built=True)

    assert TailState.ABSENT is tails.state(ENGINE, KEY)


def test_restart_voids_one_engine_only() -> None:
    """What other engines hold stays believed."""
    tails = Tails(FakeClock())
    built(tails)
    tails.hit(OTHER, KEY)
    tails.forget_engine(ENGINE)

    assert (TailState.ABSENT, TailState.BUILT) == (tails.state(ENGINE, KEY), tails.state(OTHER, KEY))


def test_miss_makes_absent() -> None:
    """An engine that says it does not hold the tail is believed."""
    tails = Tails(FakeClock())
    built(tails)
    tails.missed(ENGINE, KEY)

    assert TailState.ABSENT is tails.state(ENGINE, KEY)


def test_miss_during_a_build_changes_nothing() -> None:
    """A request that ran beside the build finds nothing, which is no news."""
    tails = Tails(FakeClock())
    tails.begin_build(ENGINE, KEY)
    tails.missed(ENGINE, KEY)

    assert TailState.BUILDING is tails.state(ENGINE, KEY)


def test_hit_without_a_build_is_believed() -> None:
    """Another gateway may have had the tail built."""
    tails = Tails(FakeClock())
    tails.hit(ENGINE, KEY)

    assert TailState.BUILT is tails.state(ENGINE, KEY)


def test_misses_after_builds_stop_building() -> None:
    """A tail that is built again and again and never found is left alone, and its tokens found anew."""
    clock = FakeClock()
    tails = Tails(clock)
    tails.learn(TEMPLATE_ID, FACTS)
    for _ in range(MISSES_MAX):
        built(tails)
        tails.missed(ENGINE, KEY)
        clock.advance(BUILD_INTERVAL_SECONDS)
    held = tails.begin_build(ENGINE, KEY)
    clock.advance(MISSES_HOLD_SECONDS)

    assert (False, True) == (held, tails.begin_build(ENGINE, KEY))
    assert tails.facts(TEMPLATE_ID) is None


def test_hits_between_misses_keep_building() -> None:
    """A tail that is evicted now and then is worth building."""
    clock = FakeClock()
    tails = Tails(clock)
    for _ in range(MISSES_MAX + 1):
        built(tails)
        tails.hit(ENGINE, KEY)
        tails.missed(ENGINE, KEY)
        clock.advance(BUILD_INTERVAL_SECONDS)

    assert tails.begin_build(ENGINE, KEY)


def test_refusal_expires() -> None:
    """What could not be had may be tried again after a while."""
    clock = FakeClock()
    tails = Tails(clock)
    tails.refuse(TEMPLATE_ID, Bypass.TAIL_REFUSED, 60.0)
    found = tails.facts(TEMPLATE_ID)
    clock.advance(60.0)

    assert isinstance(found, Refused) and Bypass.TAIL_REFUSED is found.reason
    assert tails.facts(TEMPLATE_ID) is None


def test_tokens_are_kept() -> None:
    """What was found out stays known."""
    tails = Tails(FakeClock())
    tails.learn(TEMPLATE_ID, FACTS)

    assert FACTS == tails.facts(TEMPLATE_ID)


def test_keys_are_bounded() -> None:
    """Beyond the bound the least recently used tail is forgotten."""
    tails = Tails(FakeClock(), tails_max=2)
    keys = [TailKey("p", TEMPLATE_ID, f"salt-{number}", 0) for number in range(3)]
    tails.hit(ENGINE, keys[0])
    tails.hit(ENGINE, keys[1])
    tails.state(ENGINE, keys[0])
    tails.hit(ENGINE, keys[2])

    assert [TailState.BUILT, TailState.ABSENT, TailState.BUILT] == [tails.state(ENGINE, key) for key in keys]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(TailKey("agents/other", TEMPLATE_ID, "salt", 0), id="policy"),
        pytest.param(TailKey("agents/support", ContentId("u"), "salt", 0), id="template"),
        pytest.param(TailKey("agents/support", TEMPLATE_ID, "other", 0), id="salt"),
        pytest.param(TailKey("agents/support", TEMPLATE_ID, "salt", 1), id="epoch"),
    ],
)
def test_other_key_is_another_tail(other: TailKey) -> None:
    """Each part of the key keeps tails apart."""
    tails = Tails(FakeClock())
    tails.hit(ENGINE, KEY)

    assert TailState.ABSENT is tails.state(ENGINE, other)


def test_bounded_forgets_and_drops() -> None:
    """A bounded mapping keeps what was used last, and gives up what is dropped."""
    bounded: Bounded[str, int] = Bounded(2)
    for number, key in enumerate("abc"):
        bounded.put(key, number)
    bounded.drop("b")
    bounded.drop("never there")

    assert (1, ((("c", 2)),), (2,)) == (len(bounded), bounded.items(), bounded.values())
