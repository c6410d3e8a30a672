"""Single faults under steady load, each with the mark that it has to reach; all in virtual time."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.kill import KillLevel
from sternpost_fakes.sim_checks import violations
from sternpost_fakes.sim_client import Ask, Told
from sternpost_fakes.sim_engine import Machine, SimEngine
from sternpost_fakes.sim_faults import Fault, FaultKind
from sternpost_fakes.sim_run import COLD, Plan, Run, simulate, words
from sternpost_gateway.adaptive_limit import percentile
from sternpost_gateway.cold_gate import ColdGate
from sternpost_gateway.cold_limiter import ColdLimits
from sternpost_gateway.fleet import FAILURES_MAX
from sternpost_gateway.metrics import Metrics
from sternpost_gateway.pipeline import Parts
from sternpost_gateway.settings import Timeouts
from sternpost_gateway.transition import Pace

MACHINE = Machine(prefill_rate=8000.0, cache_tokens=60_000)
ENGINES = 4
NOBODY = KillLevel.NONE
SPILL_MAX = 1.25
"""Of what an engine gets for affinity's sake to the mean of those that are well."""

DRAWS = range(5, 11)
"""Of a load, where one draw may have bad luck."""

CALM_SHARE_MIN = 0.85
"""Of the limiters of engines that are well; 31 of 32 are, on the average, in sixteen draws."""

SILENT_SECONDS = FAILURES_MAX * (Timeouts().probe_period_seconds + Timeouts().probe_seconds) + 0.5
"""After which an engine is not ready whose probes have no answer."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are what these tests are about: nobody needs to read of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def steady(
    seconds: float,
    rate: float,
    *,
    sessions: int = 24,
    fresh: int = 1,
    words_of_session: int = 40,
    draw: int = 5,
) -> list[Ask]:
    """Return warm load: sessions behind three prefixes ask at random moments, each with fresh words."""
    asks: list[Ask] = []
    chance, at = random.Random(draw), 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        session = chance.randrange(sessions)
        asks.append(
            Ask(
                number=len(asks),
                at=at,
                tenant=("acme", "globex")[session % 2],
                session=f"session-{session}",
                system=words(f"s{session % 3}", 120),
                user=words(f"u{session}", words_of_session) + " " + words(f"q{len(asks)}", fresh),
                tail=words("t", 60),
            )
        )
    return asks


def run_of(plan: Plan) -> Run:
    """Run a plan, in which everything that always holds has to hold."""
    run = simulate(plan, Metrics(CollectorRegistry()))
    assert [] == violations(run)
    return run


def plan_of(asks: Sequence[Ask], *faults: Fault) -> Plan:
    """Return a plan with four engines."""
    return Plan(seed=1, asks=asks, faults=faults, engines=ENGINES, machine=MACHINE)


def p99(told: Sequence[Told]) -> float:
    """Return the 99th percentile of the times to first byte of answers."""
    return percentile([item.seconds for item in told if item.status == 200], 0.99)


def outcomes(run: Run) -> Counter[str]:
    """Return how requests ended."""
    return Counter(told.outcome for told in run.told)


def between(run: Run, first: float, last: float) -> list[Told]:
    """Return what became of the requests that came in an interval."""
    return [told for told in run.told if first <= told.ask.at < last]


def computed_share(run: Run, after: float) -> float:
    """Return the share of prompt tokens that were computed, of requests that arrived after a moment."""
    seen = [seen for engine in run.engines for seen in engine.seen if seen.at > after]
    return sum(item.computed_tokens for item in seen) / sum(item.prompt_tokens for item in seen)


def cold_limits(run: Run) -> list[int]:
    """Return how many cold requests each engine may have in the end."""
    assert run.parts is not None, "the run has ended"
    limits = {engine.url: limiter.adaptive.limit for engine, limiter in run.parts.gate.limiters().items()}
    return [limits[engine.url] for engine in run.engines]


def arrivals(engine: SimEngine, after: float) -> int:
    """Return how many requests reached an engine after a moment."""
    return sum(seen.at > after for seen in engine.seen)


def test_f1_engine_dies_in_the_middle_of_streams() -> None:
    """Its streams end cut, nothing is sent twice, others hardly notice, and soon nothing goes there."""
    asks = steady(12.0, 25.0)
    calm = run_of(plan_of(asks))
    run = run_of(plan_of(asks, Fault(FaultKind.DIES, 6.0, 90.0, 0, NOBODY)))
    dead = run.engines[0]

    assert set(outcomes(run)) <= {"whole", "cut"}
    assert 0 == arrivals(dead, after=6.0)
    assert p99(between(run, 6.0, 12.0)) <= 1.3 * p99(calm.told) + 0.05


def test_f2_engine_that_hangs_is_left_alone() -> None:
    """An engine that accepts and never answers loses what it has, and after three probes it gets nothing."""
    asks = steady(24.0, 20.0)
    run = run_of(plan_of(asks, Fault(FaultKind.HANGS, 8.0, 60.0, 1, NOBODY)))
    lost = [told for told in run.told if told.outcome != "whole"]

    assert 0 == arrivals(run.engines[1], after=8.0 + SILENT_SECONDS)
    assert all(told.ask.at < 8.0 + SILENT_SECONDS for told in lost)
    assert len(lost) <= len(between(run, 7.5, 8.0 + SILENT_SECONDS)) / 2


def test_f2_engine_that_fails_behind_a_healthy_probe_is_ejected() -> None:
    """Five failures in a row are enough, although its health check passes all the time."""
    asks = steady(14.0, 20.0)
    run = run_of(plan_of(asks, Fault(FaultKind.FAILS, 8.0, 60.0, 2, NOBODY)))

    assert outcomes(run)["500"] <= 6
    assert 0 == arrivals(run.engines[2], after=10.0)


def test_f3_slow_engine_sheds_its_load_to_others() -> None:
    """An engine that becomes ten times slower gets less, and none of the others slows down much."""
    asks = steady(18.0, 16.0, sessions=60, fresh=200)
    calm = run_of(plan_of(asks))
    run = run_of(plan_of(asks, Fault(FaultKind.SLOWS, 6.0, 90.0, 3, NOBODY)))
    shares = [arrivals(one.engines[3], after=9.0) for one in (calm, run)]

    assert {"whole": len(asks)} == outcomes(run)
    assert shares[1] < 0.8 * shares[0]
    others = [arrivals(engine, after=9.0) for engine in run.engines[:3]]
    assert max(others) <= SPILL_MAX * sum(others) / len(others)


def test_f3_limiter_of_a_slow_engine_drops_and_no_other() -> None:
    """What is cold would make its warm requests wait even longer; others change hardly ever."""
    calm, others = [], []
    for draw in DRAWS:
        asks = steady(18.0, 20.0, fresh=60, draw=draw)
        calm += cold_limits(run_of(plan_of(asks)))
        *well, slow = cold_limits(run_of(plan_of(asks, Fault(FaultKind.SLOWS, 6.0, 90.0, 3, NOBODY))))
        others += well
        assert slow <= COLD.slots_max / 2

    # By chance a few prompts may come to one engine at once, whose warm requests wait for them, too.
    for limits in (calm, others):
        assert calm_share(limits) >= CALM_SHARE_MIN


def calm_share(limits: Sequence[int]) -> float:
    """Return the share of limiters that let as much through as they may."""
    return sum(limit == COLD.slots_max for limit in limits) / len(limits)


@pytest.mark.parametrize(
    ("silent", "within"),
    [pytest.param(False, 0.01, id="watched"), pytest.param(True, 7.0, id="f5-watch-is-silent")],
)
def test_f4_f5_kill_arrives_by_watch_or_poll(silent: bool, within: float) -> None:
    """A level that the watch does not tell is found by the next poll, and no request fails."""
    asks = steady(16.0, 15.0)
    faults = [Fault(FaultKind.KILL, 8.0, 90.0, 0, KillLevel.NO_SUFFIX_READS)]
    if silent:
        faults.append(Fault(FaultKind.WATCH_SILENT, 2.0, 90.0, 0, NOBODY))
    run = run_of(plan_of(asks, *faults))
    reads = [seen.at for engine in run.engines for seen in engine.seen if _reads(seen.hint)]

    assert {"whole": len(asks)} == outcomes(run)
    assert 8.0 - 0.5 < max(reads) <= 8.0 + within


def test_f4_kill_over_http_counts_although_the_watch_is_dead() -> None:
    """What is said to the gateway itself needs no API server."""
    asks = steady(12.0, 15.0)
    silent = Fault(FaultKind.WATCH_SILENT, 1.0, 90.0, 0, NOBODY)
    kill = Fault(FaultKind.KILL_HTTP, 8.0, 90.0, 0, KillLevel.NEW_EPOCH)
    run = run_of(plan_of(asks, silent, kill))
    reads = [seen.at for engine in run.engines for seen in engine.seen if _reads(seen.hint)]

    assert {"whole": len(asks)} == outcomes(run)
    assert max(reads) <= 8.01


EFFECT_SECONDS = 60.0
"""For which a kill's effect is looked at."""


@pytest.mark.parametrize(
    ("level", "slower_max"),
    [
        pytest.param(KillLevel.NO_SUFFIX_READS, 1.1, id="k1"),
        pytest.param(KillLevel.NEW_EPOCH, 1.5, id="k2"),
    ],
)
def test_f8_kill_under_load_makes_no_stampede(level: KillLevel, slower_max: float) -> None:
    """Prefixes are found as before, nobody is refused, and tails cost what they cost without a store."""
    calm, always, run = (
        under_load(NOBODY, 0.2),
        under_load(KillLevel.NO_SUFFIX_READS, 0.2),
        under_load(level, 8.0),
    )
    seconds = [p99(between(one, 8.0, 8.0 + EFFECT_SECONDS)) for one in (run, always)]

    assert {"whole"} == set(outcomes(run))
    assert seconds[0] <= slower_max * seconds[1]
    assert held_share(run, 8.0) >= held_share(calm, 8.0) - 0.02


@cache
def under_load(level: KillLevel, at: float) -> Run:
    """Return a run that is killed at a moment, and goes on for a minute at least."""
    asks = steady(8.0 + EFFECT_SECONDS, 20.0, sessions=12, words_of_session=300)
    return run_of(plan_of(asks, Fault(FaultKind.KILL_HTTP, at, 90.0, 0, level)))


def held_share(run: Run, after: float) -> float:
    """Return the share of prompt tokens that prefix stores held, of requests that arrived after a moment."""
    seen = [seen for engine in run.engines for seen in engine.seen if seen.at > after]
    return sum(item.held_tokens for item in seen) / sum(item.prompt_tokens for item in seen)


def test_what_was_killed_comes_back_by_steps() -> None:
    """A few sessions read again at first, then more, then all; nobody is refused on the way."""
    asks = steady(20.0, 30.0, sessions=200)
    kill = Fault(FaultKind.KILL_HTTP, 4.0, 2.0, 0, KillLevel.NO_SUFFIX_READS)
    run = run_of(replace(plan_of(asks, kill), pace=Pace(back_step_seconds=2.0)))
    shares = [
        read_share(run, *span) for span in ((2.0, 4.0), (4.1, 6.0), (6.1, 8.0), (12.0, 14.0), (16.5, 20.0))
    ]

    assert {"whole": len(asks)} == outcomes(run)
    assert shares[1] == 0.0
    assert shares[0] > 0.9 < shares[4]
    assert shares[2] < 0.1 < shares[3] < 0.5


def read_share(run: Run, first: float, last: float) -> float:
    """Return the share of requests of an interval that were asked to read a tail."""
    seen = [seen for engine in run.engines for seen in engine.seen if first <= seen.at < last]
    return sum(_reads(item.hint) for item in seen) / len(seen)


def test_level_that_makes_prompts_cold_reaches_sessions_one_after_the_other() -> None:
    """Nobody is refused, no tail is read from the first moment on, and less is cold at once than by force."""
    asks = steady(20.0, 16.0, sessions=200, words_of_session=500)
    kill = Fault(FaultKind.KILL_HTTP, 6.0, 90.0, 0, KillLevel.NO_REWRITE)
    forced = replace(kill, kind=FaultKind.KILL_FORCED)
    ramped, at_once = (
        run_of(replace(plan_of(asks, fault), pace=Pace(rise_seconds=12.0))) for fault in (kill, forced)
    )

    assert {"whole": len(asks)} == outcomes(ramped)
    assert 0.0 == read_share(ramped, 6.01, 20.0)
    assert most_computed(ramped, 6.0) < 0.9 * most_computed(at_once, 6.0)


def most_computed(run: Run, after: float, seconds: float = 2.0) -> int:
    """Return the most prompt tokens that engines computed of requests that came within some seconds."""
    seen = [seen for engine in run.engines for seen in engine.seen if seen.at >= after]
    return max(
        sum(item.computed_tokens for item in seen if first.at <= item.at < first.at + seconds)
        for first in seen
    )


def test_f8_rewriting_switched_off_by_force_refuses_only_what_is_long() -> None:
    """At K3 all prompts are cold at once: engines keep within their room, and what is warm goes through."""
    warm = steady(16.0, 16.0, sessions=12)
    asks = [*warm, *(long(len(warm) + number, 8.0 + 0.02 * number) for number in range(160))]
    forced = Fault(FaultKind.KILL_FORCED, 8.0, 90.0, 0, KillLevel.NO_REWRITE)
    run = run_of(replace(plan_of(asks, forced), cold=STAMPEDE_COLD))
    refused = [told.ask for told in run.told if told.outcome == "429"]

    assert set(outcomes(run)) <= {"whole", "429"}
    assert refused
    assert all(ask.session.startswith("long-") for ask in refused)


DEATHS = 5


def test_f11_leader_that_dies_again_and_again_is_followed_by_one_at_a_time() -> None:
    """Each time that the engine dies with a leader, one of its followers takes over, never all."""
    burst = [
        Ask(
            number=number,
            at=2.0,
            tenant="acme",
            session=f"s{number}",
            system=words("s", 3000),
            user=f"q{number}",
        )
        for number in range(24)
    ]
    deaths = [
        Fault(FaultKind.RESTARTS, 2.1 + 0.4 * number, 0.1, number % 2, NOBODY) for number in range(DEATHS)
    ]
    run = run_of(Plan(seed=1, asks=burst, faults=deaths, engines=2, machine=MACHINE))
    cold = [seen for engine in run.engines for seen in engine.seen if seen.computed_tokens > 2000]

    assert set(outcomes(run)) <= {"whole", "502"}
    assert len(cold) <= 1 + DEATHS


def test_f15_clock_that_jumps_changes_nothing() -> None:
    """What is decided depends on no date: a run in which it jumps is the same run, with the same versions."""
    asks = steady(8.0, 12.0)
    jumps = [Fault(FaultKind.CLOCK_JUMPS, 2.0 + number, 1.0, number, NOBODY) for number in range(4)]
    steady_run, jumping = run_of(plan_of(asks)), run_of(plan_of(asks, *jumps))

    assert steady_run.digest() == jumping.digest()
    assert versions(steady_run) == versions(jumping) != Counter()


def versions(run: Run) -> Counter[str]:
    """Return how often each version of prefix and tail was told to clients."""
    return Counter(told.headers.get("x-sternpost-version", "") for told in run.told)


def test_rollout_under_load_costs_nobody_more_than_the_streams_that_were_cut() -> None:
    """Four engines restart one after the other; those that come back start slowly."""
    asks = steady(24.0, 12.0)
    run = run_of(plan_of(asks, Fault(FaultKind.ROLLOUT, 4.0, 4.0, 0, NOBODY)))

    assert set(outcomes(run)) <= {"whole", "cut"}
    assert outcomes(run)["cut"] <= 8


STAMPEDE_COLD = ColdLimits(cold_tokens=400, batched_tokens=500)
STAMPEDE_AT = 4.0
LONG_SECONDS = 0.03
LONGS = 255
"""Of long prompts before and after: so many that hardly an engine is ever free of them."""


def long(number: int, at: float) -> Ask:
    """Return a long prompt that shares its prefix alone."""
    return Ask(
        number=number,
        at=at,
        tenant=f"tenant-{number % 8}",
        session=f"long-{number}",
        system=words("s0", 120),
        user=words(f"long{number}", 1200),
    )


def stampede(*, limited: bool) -> tuple[Run, float]:
    """
    Empty all stores at full load, which some long prompts are part of, and let many more come at once.

    Return the run, and the warm requests' p99 over that of a run without all this.
    """

    def change(parts: Parts) -> Parts:
        wide = ColdLimits(cold_tokens=10**6, batched_tokens=10**6)
        return parts if limited else replace(parts, gate=ColdGate(wide, parts.clock, parts.gate.chance))

    warm = steady(2 * STAMPEDE_AT, 20.0, sessions=12)
    usual = [*warm, *(long(len(warm) + number, LONG_SECONDS * number) for number in range(LONGS))]
    surge = [long(len(usual) + number, STAMPEDE_AT + 0.004 * number) for number in range(40)]
    plan = Plan(seed=1, asks=usual, engines=ENGINES, machine=MACHINE, cold=STAMPEDE_COLD)
    epoch = Fault(FaultKind.KILL_HTTP, STAMPEDE_AT - 0.1, 0.05, 0, KillLevel.NEW_EPOCH)
    calm = simulate(plan, Metrics(CollectorRegistry()))
    run = simulate(
        replace(plan, asks=[*usual, *surge], faults=[epoch], change=change), Metrics(CollectorRegistry())
    )
    tails = [
        p99([told for told in between(one, STAMPEDE_AT, 2 * STAMPEDE_AT) if told.ask.number < len(warm)])
        for one in (run, calm)
    ]
    return run, tails[0] / tails[1]


def test_f10_stampede_leaves_warm_requests_alone() -> None:
    """With every tail gone and forty long prompts at once, only long prompts are refused."""
    run, ratio = stampede(limited=True)
    refused = [told.ask.session for told in run.told if told.outcome == "429"]
    builds = Counter((engine.url, key) for engine in run.engines for _, key in engine.builds)

    assert [] == violations(run)
    assert set(outcomes(run)) <= {"whole", "429"}
    assert all(session.startswith("long-") for session in refused)
    assert 1 == max(builds.values())
    assert ratio <= 1.5


REBUILD_SHARE = 0.35
REBUILD_SLACK = 1.5
"""A rebuild of W tokens may take W / (share x the pool's prefill rate) x slack."""


def test_f10_all_tails_are_rebuilt_in_time() -> None:
    """Each session comes every two seconds, so that nothing waits to be asked for."""
    machine, at = replace(MACHINE, prefill_rate=1500.0), 10.0
    asks = [asked_in_turn(number, 24, 12.0) for number in range(264)]
    bump = Fault(FaultKind.KILL_HTTP, at, 0.05, 0, KillLevel.NEW_EPOCH)
    plan = replace(plan_of(asks, bump), machine=machine)
    run = run_of(plan)
    again = [built for engine in run.engines for built in engine.built if built.began >= at]
    allowed = REBUILD_SLACK * sum(built.tokens for built in again) / (REBUILD_SHARE * ENGINES * 1500.0)

    assert len(again) >= 20
    assert max(built.ended for built in again) - at <= allowed
    assert 0.0 < read_share(run, at, at + allowed) < 1.0 == read_share(run, at + allowed, 22.2)
    assert {"whole": len(asks)} == outcomes(run)


def asked_in_turn(number: int, sessions: int, rate: float) -> Ask:
    """Return a request of sessions that take turns, with a tail that is worth rebuilding."""
    session = number % sessions
    return Ask(
        number=number,
        at=0.2 + number / rate,
        tenant=f"tenant-{session % 8}",
        session=f"session-{session}",
        system=words(f"s{session % 3}", 120),
        user=words(f"u{session}", 40) + f" q{number}",
        tail=words("t", 300),
    )


def test_f10_without_the_limiter_the_mark_is_missed() -> None:
    """What the limiter is for: the same run without it makes warm requests wait."""
    _, ratio = stampede(limited=False)

    assert ratio > 1.5


def _reads(hint: object) -> bool:
    return hint is not None and getattr(hint, "op", None) == "read"
