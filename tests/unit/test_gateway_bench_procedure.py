"""The bench's procedure: who is asked when, and what is watched meanwhile."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from sternpost_core.clock import SystemClock
from sternpost_core.errors import OperatingError, SettingsError
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_fakes.fake_http import Reply, Seen
from sternpost_gateway.bench.arrivals import hold_sessions, moments
from sternpost_gateway.bench.client import open_session
from sternpost_gateway.bench.procedure import Bench, Step, interleaved
from sternpost_gateway.bench.recipes import load_recipes
from sternpost_gateway.bench.sample import Sample
from sternpost_gateway.bench.target import Target
from sternpost_gateway.bench.watching import RESET_PATH, growth, parse_metrics, raise_peaks
from sternpost_gateway.bench.workload import Arrivals, Bursts, Closed, Poisson, Session, Traced, Workload

SESSIONS = [Session(f"s{number}", (), at=10.0 + 4 * number) for number in range(4)]
TARGETS = [Target(name=name, origins=("http://x",), model="m") for name in "abc"]
CHATS, SESSION = "/v1/chat/completions", "x-session-id"


@dataclass(slots=True)
class MeteredEngine(FakeEngine):
    """An engine whose counter grows by ten with each chat, and whose gauge falls by one from 100."""

    async def handle(self, seen: Seen) -> Reply:
        """Answer one request."""
        if seen.target != "/metrics":
            # Without arguments, `super` does not find the class that slots have made anew.
            return await FakeEngine.handle(self, seen)
        chats = len(self.chats)
        text = f"vllm:prompt_tokens_total {10 * chats}\nvllm:kv_cache_usage_perc {100 - chats}\n"
        return Reply(pieces=(text.encode(),))


def targets_at(engine: FakeEngine, names: str) -> list[Target]:
    """Return targets that are all one engine."""
    return [Target(name=name, origins=(engine.url,), model="m", engines=(engine.url,)) for name in names]


def steps_at(targets: Sequence[Target], sessions: int) -> list[Step]:
    """Return a step for each target, of a workload of short sessions."""
    return [Step(lambda: short_chats(sessions), target, 0) for target in targets]


def short_chats(sessions: int) -> Workload:
    """Return the workload of short sessions."""
    recipe = next(one for one in load_recipes() if one.name == "short_chat")
    return recipe.make(1, sessions=sessions)


def told(engine: FakeEngine) -> list[str]:
    """Return the resets, and of each chat its target and the end of its session's name, in order."""
    found = []
    for seen in engine.server.seen:
        if seen.target == RESET_PATH:
            found.append("reset")
        elif seen.target == CHATS:
            name = str(seen.header(SESSION)).removeprefix("test-short_chat-")
            found.append(name.replace("-0-", " ", 1).replace("warm-up", "warm"))
    return found


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


async def test_in_turn_each_session_is_held_at_every_target_before_the_next() -> None:
    """Each target is warmed up once; before each session no engine knows a prefix; the order changes."""
    async with running_engine(FakeEngine()) as engine, open_session() as http:
        bench = Bench(http, SystemClock(), "test", resets=(engine.url,), settle_seconds=0.0)
        units = await bench.run_in_turn(steps_at(targets_at(engine, "abc"), 3))

    warmed = [line for name in "abc" for line in ["reset", *(f"{name} warm-{number}" for number in range(3))]]
    held = ["a c0", "b c0", "c c0", "c c1", "b c1", "a c1", "b c2", "c c2", "a c2"]
    assert [*warmed, *(line for one in held for line in ("reset", one))] == told(engine)
    assert ["a", "b", "c"] == [unit.target for unit in units]
    assert [["c0", "c1", "c2"]] * 3 == [[sample.session for sample in unit.samples] for unit in units]
    assert {""} == {sample.error for unit in units for sample in unit.samples}


async def test_a_target_s_windows_come_to_one_unit() -> None:
    """Seconds and counters are summed, gauges have the highest peak, and other targets' share is in none."""
    clock = SystemClock()
    async with running_engine(MeteredEngine(first_delay_seconds=0.02)) as engine, open_session() as http:
        began = clock.monotonic()
        bench = Bench(http, clock, "test", settle_seconds=0.0)
        units = await bench.run_in_turn(steps_at(targets_at(engine, "ab"), 3))
        elapsed = clock.monotonic() - began

    assert [30.0, 30.0] == [unit.counted["vllm:prompt_tokens_total"] for unit in units]
    assert [94.0, 93.0] == [unit.peak["vllm:kv_cache_usage_perc"] for unit in units]
    assert sum(unit.seconds for unit in units) <= elapsed
    for unit in units:
        ends = [sample.started + sample.total for sample in unit.samples]
        assert sum(sample.total for sample in unit.samples) <= unit.seconds
        assert sorted(ends) == ends and ends[-1] <= unit.seconds + 1e-6


async def test_units_come_one_by_one_or_in_turn() -> None:
    """The same requests either way, in another order."""
    asked = {}
    for in_turn in (False, True):
        async with running_engine(FakeEngine()) as engine, open_session() as http:
            bench = Bench(http, SystemClock(), "test", settle_seconds=0.0)
            steps = steps_at(targets_at(engine, "ab"), 2)
            units = [unit async for unit in bench.units(steps, in_turn=in_turn)]
            asked[in_turn] = [line for line in told(engine) if "warm" not in line]
        assert [("a", 2), ("b", 2)] == [(unit.target, len(unit.samples)) for unit in units]

    assert {False: ["a c0", "a c1", "b c0", "b c1"], True: ["a c0", "b c0", "b c1", "a c1"]} == asked


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        pytest.param(Closed(2), "closed:at_once=2", id="two at once"),
        pytest.param(Poisson(0.5), "poisson:per_second=0.5", id="independent"),
        pytest.param(Bursts(4, 3.0), "bursts:size=4,seconds=3", id="bursts"),
        pytest.param(Traced(), "traced:speed=1", id="traced"),
    ],
)
async def test_sessions_that_wait_for_no_other_are_not_held_in_turn(arrivals: Arrivals, said: str) -> None:
    """And nothing is sent."""
    async with running_engine(FakeEngine()) as engine, open_session() as http:
        bench = Bench(http, SystemClock(), "test", resets=(engine.url,), settle_seconds=0.0)
        step = Step(lambda: replace(short_chats(1), arrivals=arrivals), targets_at(engine, "a")[0], 0)
        with pytest.raises(SettingsError) as caught:
            await bench.run_in_turn([step])

    assert (
        f"bench: in_turn: short_chat, {said} is not allowed; allowed: workloads of closed:at_once=1"
        == str(caught.value)
    )
    assert [] == engine.server.seen
