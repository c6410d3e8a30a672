"""The bench's procedure: who is asked when, and what is watched meanwhile."""

import asyncio
from random import Random

import pytest

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_gateway.bench.arrivals import hold_sessions, moments
from sternpost_gateway.bench.client import open_session
from sternpost_gateway.bench.procedure import Bench, Step, interleaved
from sternpost_gateway.bench.recipes import load_recipes
from sternpost_gateway.bench.sample import Sample
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.watching import growth, parse_metrics, raise_peaks
from sternpost_gateway.bench.workload import Bursts, Closed, Poisson, Session, Traced

SESSIONS = [Session(f"s{number}", (), at=10.0 + 4 * number) for number in range(4)]
TARGETS = [Target(name=name, origins=("http://x",), model="m") for name in "abc"]


def test_no_target_always_follows_the_same_other_one() -> None:
    """Two are asked in ABBA order; of more, each follows each."""
    orders = {repeat: "".join(one.name for one in order) for repeat, order in interleaved(TARGETS, 4)}

    assert {0: "abc", 1: "cba", 2: "bca", 3: "acb"} == orders
    assert ["ab", "ba"] == ["".join(one.name for one in order) for _, order in interleaved(TARGETS[:2], 2)]


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        pytest.param(Closed(2), None, id="closed"),
        pytest.param(Bursts(2, 3.0), [0.0, 0.0, 3.0, 3.0], id="bursts"),
        pytest.param(Traced(), [0.0, 4.0, 8.0, 12.0], id="traced"),
        pytest.param(Traced(2.0), [0.0, 2.0, 4.0, 6.0], id="traced at twice the speed"),
    ],
)
def test_moments(arrivals: Closed | Bursts | Traced, expected: list[float] | None) -> None:
    """They count from the first session."""
    assert expected == moments(arrivals, SESSIONS, Random(1))


def test_independent_arrivals_keep_their_rate() -> None:
    """The mean of many gaps is one over the rate, and the same seed gives the same moments."""
    sessions = [Session(str(number), ()) for number in range(4000)]
    found = moments(Poisson(2.0), sessions, Random(5))

    assert found == moments(Poisson(2.0), sessions, Random(5))
    assert found is not None and found == sorted(found)
    assert 0.5 == pytest.approx(found[-1] / len(sessions), rel=0.05)


async def test_a_closed_loop_has_no_more_clients_than_it_says() -> None:
    """And its samples come back in the sessions' order, whichever ended first."""
    running = most = 0

    async def converse(session: Session) -> list[Sample]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3 if session.id == "s0" else 1):
            await asyncio.sleep(0)
        running -= 1
        return [Sample(session=session.id, turn=0, measured=True, started=0.0)]

    found = await hold_sessions(SESSIONS, Closed(2), Random(1), converse)

    assert 2 == most
    assert ["s0", "s1", "s2", "s3"] == [sample.session for sample in found]


def test_counters_grow_and_gauges_have_peaks() -> None:
    """A counter that began anew, as after an engine's restart, has grown by what it is."""
    name, gauge = "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc"
    text = f'# HELP {name} x\n{name}{{engine="0"}} 5.0\n{name}{{engine="1"}} 7.0\n{gauge} 0.5\nother 1.0\n'

    assert [(name, 5.0), (name, 7.0), (gauge, 0.5)] == parse_metrics(text)
    assert {name: 4.0} == growth({name: 8.0}, {name: 12.0})
    assert {name: 3.0} == growth({name: 8.0}, {name: 3.0})
    peak = {gauge: 0.5}
    raise_peaks(peak, {gauge: 0.25})
    assert {gauge: 0.5} == peak


async def test_a_unit_is_warmed_up_then_measured() -> None:
    """Warm-ups are asked, and are no samples."""
    recipe = next(one for one in load_recipes() if one.name == "fixed_tail")
    engine = FakeEngine()
    async with running_engine(engine), open_session() as http:
        target = Target(name="fake", origins=(engine.url,), model="m", engines=(engine.url,))
        bench = Bench(http, SystemClock(), "test", settle_seconds=0.0)
        unit = await bench.run(Step(lambda: recipe.make(1, sessions=2), target, 0))

    assert (5, 2) == (len(engine.chats), len(unit.samples))
    assert ("fixed_tail", "fake", 0, {}) == (unit.workload, unit.target, unit.repeat, dict(unit.counted))
    assert [""] * 2 == [sample.error for sample in unit.samples]


async def test_an_engine_that_keeps_its_prefixes_is_said() -> None:
    """Else a target would find what another one left, and be praised for it."""
    recipe = load_recipes()[0]
    target = Target(name="none", origins=("http://127.0.0.1:9",), model="m")
    async with open_session() as http:
        bench = Bench(http, SystemClock(), "test", resets=("http://127.0.0.1:9",), settle_seconds=0.0)
        with pytest.raises(OperatingError, match=r"did not empty the prefix cache .*VLLM_SERVER_DEV_MODE=1"):
            await bench.run(Step(lambda: recipe.make(1), target, 0))
