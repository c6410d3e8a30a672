"""Routing one request after the other: what is remembered of decisions, and learned from answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from sternpost_core.content import ContentId
from sternpost_core.hint import Reason, Report
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import SYSTEM, TAIL, Scene, policy
from sternpost_gateway.block_index import PROVISIONAL_SECONDS
from sternpost_gateway.ejection import FAILURES_MAX
from sternpost_gateway.errors import NoEngine
from sternpost_gateway.estimates import PREFILL_RATE_DEFAULT
from sternpost_gateway.fleet import Engine, Health
from sternpost_gateway.plan import Planned
from sternpost_gateway.route import Affinity
from sternpost_gateway.router import Lesson, Routed
from sternpost_gateway.routing import Routing, make_routing
from sternpost_gateway.tails import Tails
from sternpost_gateway.tokens import TailFacts

ENGINES = [Engine(f"http://engine-{number}") for number in range(4)]
PREFIX = "north " * 2000
NOTHING = Lesson()
OBSERVING = policy(suffixCache=None)


@dataclass(frozen=True, slots=True)
class Pool:
    """A routing whose engines are all ready, with its clock and tails."""

    routing: Routing
    clock: FakeClock
    tails: Tails

    def send(self, planned: Planned) -> Routed:
        """Route a request and let it count."""
        routed = self.routing.router.route(planned)
        self.routing.router.sent(routed)
        return routed

    def answer(self, planned: Planned, lesson: Lesson = NOTHING) -> Routed:
        """Route a request and have it answered."""
        routed = self.send(planned)
        self.routing.router.began(routed)
        self.routing.router.succeeded(routed, lesson)
        return routed


def pool() -> Pool:
    """Return a pool of four."""
    clock = FakeClock()
    tails = Tails(clock)
    routing = make_routing(ENGINES, tails, clock, random.Random(1))
    for engine in ENGINES:
        routing.fleet.probed(engine, Health.UP)
    return Pool(routing, clock, tails)


def chat(
    question: str, session: str | None = None, prefix: str = PREFIX, *, goes_on: bool = False
) -> Planned:
    """Return the plan of a chat behind a long prefix."""
    headers = ((b"x-tenant-id", b"acme"), *(((b"x-session-id", session.encode()),) if session else ()))
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    if goes_on:
        messages += [{"role": "assistant", "content": "There."}, {"role": "user", "content": "Sure?"}]
    return Scene(body={"model": "qwen", "messages": messages}, policy=OBSERVING, headers=headers).plan()


def report(prefix: int, computed: int, engine: str = "b1") -> Report:
    """Return an engine's report."""
    return Report(
        prefix_tokens=prefix,
        suffix_tokens=0,
        computed_tokens=computed,
        reason=Reason.NOT_ASKED,
        engine=engine,
    )


def test_burst_behind_one_prefix_stays_together() -> None:
    """Eight chats that arrive before any answer go to one engine: it computes their prefix once."""
    tested = pool()
    burst = [tested.send(chat(f"Where is {number}?")) for number in range(8)]

    assert 1 == len({routed.engine for routed in burst})
    assert [Affinity.MISSED] + [Affinity.HELD] * 7 == [routed.affinity for routed in burst]
    assert burst[0].uncached_tokens > 2900 > 200 > burst[1].uncached_tokens


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(0.0, Affinity.SPILLED, id="hardly-begun"),
        pytest.param(3.0, Affinity.HELD, id="nearly-computed"),
    ],
)
def test_burst_behind_what_is_nearly_computed_waits_for_it(seconds: float, expected: Affinity) -> None:
    """How much an engine has still to compute counts, not how much it was sent."""
    tested = pool()
    first = tested.send(chat("Where?"))
    long = first.prompt_tokens * 1.5
    with tested.routing.fleet.flight(first.engine, long) as flight:
        flight.sent()
        tested.clock.advance(seconds * long / PREFILL_RATE_DEFAULT / 3.0)

        assert expected is tested.send(chat("When?")).affinity


def test_decision_without_an_answer_is_forgotten() -> None:
    """After some seconds an engine that has not answered is not believed to hold anything."""
    tested = pool()
    tested.send(chat("Where?"))
    tested.clock.advance(PROVISIONAL_SECONDS)

    assert Affinity.MISSED is tested.send(chat("When?")).affinity


def test_answered_prompt_is_held_until_the_engine_starts_anew() -> None:
    """What was believed of an engine's store is void with its next start."""
    tested = pool()
    first = tested.answer(chat("Where?"))
    tested.clock.advance(PROVISIONAL_SECONDS)
    held = tested.send(chat("When?"))
    tested.clock.advance(PROVISIONAL_SECONDS)
    tested.routing.fleet.reported(first.engine, "b2")

    assert [Affinity.HELD, Affinity.MISSED] == [held.affinity, tested.send(chat("Why?")).affinity]


def test_sessions_are_compared_whole() -> None:
    """Sessions whose names begin alike are two conversations."""
    homes = {
        name: pool().send(chat("Where?", session=name, prefix="short")).engine
        for name in (f"session-{number}" for number in range(20))
    }

    assert 1 < len({homes["session-1"], *(homes[f"session-1{digit}"] for digit in range(10))})


@pytest.mark.parametrize("tried", [0, 1, 3], ids=["none-tried", "one-tried", "all-but-one-tried"])
def test_engine_that_was_tried_is_avoided(tried: int) -> None:
    """A retry goes to another engine, whatever is held where."""
    tested = pool()
    held = tested.answer(chat("Where?")).engine
    others = [engine for engine in ENGINES if engine != held]
    avoided = [held, *others][:tried]

    assert tested.routing.router.route(chat("When?"), avoided).engine not in avoided


def test_engine_that_keeps_failing_is_ejected() -> None:
    """Failures in a row take an engine out; what it was expected to hold is withdrawn."""
    tested = pool()
    failing = tested.answer(chat("Where?")).engine
    outcomes = [tested.routing.router.failed(tested.send(chat("Where?"))) for _ in range(FAILURES_MAX)]
    later = tested.send(chat("Where?"))

    assert [False] * (FAILURES_MAX - 1) + [True] == outcomes
    assert failing not in [view.engine for view in tested.routing.router.views()]
    assert (True, Affinity.MISSED) == (later.engine != failing, later.affinity)


def test_refusal_says_nothing_against_an_engine() -> None:
    """A request that is wrong ejects nobody, however often it comes."""
    tested = pool()
    for _ in range(2 * FAILURES_MAX):
        tested.routing.router.refused(tested.send(chat("Where?")))

    assert 4 == len(tested.routing.router.views())


def test_evicted_prefix_is_found_out_by_the_report() -> None:
    """An engine that reports fewer tokens than predicted is corrected; it holds what it has just computed."""
    tested = pool()
    tested.answer(chat("Where?"), Lesson(report=report(0, 3000)))
    missed = tested.send(chat("When?"))
    before = tested.routing.index.held(missed.engine)
    tested.routing.router.succeeded(missed, Lesson(report=report(500, 2500)))

    assert missed.confirmed_blocks > 20
    assert missed.confirmed_blocks <= tested.routing.index.held(missed.engine) <= before
    assert tested.routing.estimates.trust(missed.engine) < 1.0


def test_engine_without_a_prefix_cache_is_routed_by_load() -> None:
    """Where predictions never come true, the router becomes least-loaded."""
    tested = pool()
    for number in range(400):
        tested.answer(chat(f"Number {number}?"), Lesson(cached_tokens=0, prompt_tokens=3000))
    affinities = [tested.answer(chat(f"Later {number}?")).affinity for number in range(20)]

    assert [Affinity.MISSED] * 20 == affinities


def test_engine_that_holds_the_tail_is_preferred() -> None:
    """The suffix store's tokens count like the prefix cache's."""
    tested = pool()
    planned = Scene(
        body={"model": "qwen", "messages": [SYSTEM, {"role": "user", "content": "hi " * 400}, TAIL]}
    ).plan()
    assert planned.wish is not None
    tested.tails.learn(
        planned.wish.template.template_id, TailFacts((1, 2), tuple(range(300)), 2, ContentId("c" * 64))
    )
    for engine in ENGINES:
        tested.tails.hit(engine, planned.wish.key)
        routed = tested.routing.router.route(planned)
        tested.tails.missed(engine, planned.wish.key)

        assert (engine, 300 - 32) == (routed.engine, routed.reuse_tokens)


def test_without_a_ready_engine_there_is_no_route() -> None:
    """Nobody is asked who is not ready."""
    tested = pool()
    for engine in ENGINES:
        tested.routing.fleet.probed(engine, Health.DOWN)

    with pytest.raises(NoEngine):
        tested.routing.router.route(chat("Where?"))


@pytest.mark.parametrize(
    ("others_begin", "engines"),
    [
        pytest.param(False, 4, id="conversations-begin-here"),
        pytest.param(True, 2, id="conversations-begin-elsewhere"),
    ],
)
def test_gateway_that_is_alone_sends_a_conversation_to_any_engine(others_begin: bool, engines: int) -> None:
    """Where others send turns of the same conversations, one of the two of its rank is where they look."""
    tested = pool()
    for number in range(40):
        name, prefix = f"session-{number}", f"{number} {PREFIX}"
        if not others_begin:
            tested.answer(chat("Where?", name, prefix))
        tested.answer(chat("Where?", name, prefix, goes_on=True))
    homes = set()
    for number in range(4):
        # Nothing shared: each is a miss, and each engine has had one request more than the next by then.
        routed = tested.send(chat("Where?", "one", f"new {number} {PREFIX}"))
        homes.add(routed.engine)
        tested.routing.router.failed(routed)

    assert engines == len(homes)
