"""Shadow replays under load, in virtual time: what they find, and what they cost."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from sternpost_core.kill import KillLevel
from sternpost_core.policy import Shadow
from sternpost_fakes.sim_checks import violations
from sternpost_fakes.sim_client import Ask
from sternpost_fakes.sim_engine import Machine
from sternpost_fakes.sim_faults import Fault, FaultKind
from sternpost_fakes.sim_run import POLICY, Plan, Run, simulate, words
from sternpost_gateway.metrics import Metrics

MACHINE = Machine(prefill_rate=8000.0, cache_tokens=60_000)
ALL_SAMPLED = replace(POLICY, shadow=Shadow(sample_rate=1.0))
SPOILT_AT = 4.0
REPLAYS = "sternpost_gateway_shadow_replays_total"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are what these tests are about: nobody needs to read of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def asks(seconds: float, rate: float) -> list[Ask]:
    """Return requests at a constant rate, each with the same tail."""
    return [
        Ask(
            number=number,
            at=0.2 + number / rate,
            tenant="acme",
            session=f"session-{number % 7}",
            system=words("s", 40),
            user=words(f"u{number}", 10),
            tail=words("t", 60),
        )
        for number in range(int(seconds * rate))
    ]


def run_with(requests: Sequence[Ask], *faults: Fault) -> tuple[Run, CollectorRegistry]:
    """Run two engines whose every hit is sampled."""
    registry = CollectorRegistry()
    plan = Plan(seed=1, asks=requests, faults=faults, engines=2, machine=MACHINE, policy=ALL_SAMPLED)
    run = simulate(plan, Metrics(registry))
    assert [] == violations(run)
    return run, registry


def reads(run: Run, after: float) -> int:
    """Return how many tails were read after a moment."""
    return sum(
        seen.at > after and seen.hint is not None and seen.hint.op == "read"
        for engine in run.engines
        for seen in engine.seen
    )


def test_tail_that_is_spoilt_is_demoted_within_seconds() -> None:
    """A store that goes wrong at some moment is found by the replays that follow, and no request fails."""
    spoilt = Fault(FaultKind.SPOILS, SPOILT_AT, 60.0, 0, KillLevel.NONE)
    other = replace(spoilt, engine=1)
    run, _ = run_with(asks(40.0, 4.0), spoilt, other)
    last = max(
        seen.at
        for engine in run.engines
        for seen in engine.seen
        if seen.hint is not None and seen.hint.op == "read"
    )

    assert {"whole"} == {told.outcome for told in run.told}
    assert run.parts is not None
    assert 1 == run.parts.verdicts.demoted(POLICY.full_name)
    assert SPOILT_AT < last < SPOILT_AT + 25.0


def test_good_tail_goes_on_being_read() -> None:
    """Replays that agree change nothing."""
    run, registry = run_with(asks(30.0, 4.0))

    assert reads(run, after=25.0) > 10
    assert (registry.get_sample_value(REPLAYS, {"policy": POLICY.full_name, "outcome": "compared"}) or 0) > 5


def test_replays_take_no_more_than_their_share() -> None:
    """Two percent of the pool's rate, and what an unused budget allows at the beginning."""
    run, _ = run_with(asks(30.0, 4.0))
    computed = sum(seen.computed_tokens for engine in run.engines for seen in engine.replays)
    began = min(seen.at for engine in run.engines for seen in engine.replays)
    ended = max(seen.at for engine in run.engines for seen in engine.replays)
    rate = len(run.engines) * MACHINE.prefill_rate

    assert 0 < computed <= 0.02 * rate * (ended - began + 5.0) + 200


def test_engines_under_load_replay_nothing() -> None:
    """While an engine has all that it can do, replays wait, and clients' answers come as without any."""
    slow = replace(MACHINE, prefill_rate=400.0)
    requests = asks(20.0, 12.0)
    plan = Plan(seed=1, asks=requests, engines=2, machine=slow, policy=ALL_SAMPLED)
    with_replays = simulate(plan, Metrics(CollectorRegistry()))
    without = simulate(replace(plan, policy=POLICY), Metrics(CollectorRegistry()))
    slowest = [
        sorted(told.seconds for told in run.told)[-len(run.told) // 10] for run in (with_replays, without)
    ]

    assert slowest[0] <= 1.1 * slowest[1]
