"""The side by side of Sternpost, plain vLLM and other routers."""

import contextlib
import io
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from bench.common.engine_api import Engine
from bench.common.engine_process import EngineSettings
from bench.common.store import OutOfTime, RecordStore
from bench.demo.progress import Progress
from bench.evaluation.__main__ import Found, bounds_table, document_of
from bench.evaluation.claims import BEST_PEER, CLAIMS, Claim, judge
from bench.evaluation.peers import litellm_settings
from bench.evaluation.scope import QUICK, WHOLE, Amount, Scope
from bench.evaluation.targets import ANY_ENGINE, HOP, NO_CACHE, PLAIN, POLICIES, STERNPOST, targets_of
from bench.evaluation.units import Run, groups, is_asked, recorded_units, run_all, unit_key, with_memory
from bench.gateway.arms import LITELLM, SMG
from bench.routing.routers import Router
from sternpost_core.clock import SystemClock
from sternpost_core.kill import KillLevel
from sternpost_core.policy import Layout
from sternpost_core.policy_parse import parse
from sternpost_fakes.engine import FakeEngine, running_engine
from sternpost_gateway.bench.procedure import check_in_turn
from sternpost_gateway.bench.recipes import load_recipes
from sternpost_gateway.bench.sample import Sample, Unit
from sternpost_gateway.bench.summary import MEMORY, figures_of

PEER_NAMES = ("vllm_router", SMG, LITELLM)
SMALL: Scope = {"multi_turn_qa": Amount(1), "no_reuse": Amount(1, repeats=2)}
MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return what makes a run of the small scope on fake engines; `elapsed` is how long it has run."""

    @contextlib.asynccontextmanager
    async def start(settings: EngineSettings) -> AsyncIterator[Engine]:
        async with running_engine(FakeEngine()) as fake, httpx.AsyncClient(base_url=fake.url) as http:
            yield Engine(settings.name, "m", 0, http)

    def make(elapsed: float = 0.0) -> Run:
        (tmp_path / "logs").mkdir(exist_ok=True)
        clock = SystemClock()
        return Run(
            scope=SMALL,
            only=(),
            routers=[],
            records=RecordStore(tmp_path / "records.jsonl", "f"),
            progress=Progress(clock, clock.monotonic() - elapsed, io.StringIO()),
            start=start,
            model=tmp_path,
            folder=tmp_path,
            seconds_max=600.0,
            settle_seconds=0.0,
        )

    return make


def refuse(settings: EngineSettings) -> contextlib.AbstractAsyncContextManager[Engine]:
    """Start no engine."""
    raise AssertionError("nothing is left to run")


def unit(workload: str, target: str, ttft: float, computed: int = 100) -> Unit:
    """Return a unit of six equal requests."""
    samples = tuple(
        Sample(
            session=f"s{number}",
            turn=0,
            measured=True,
            started=0.0,
            ttft=ttft,
            total=ttft,
            prompt_tokens=100,
            computed_tokens=computed,
        )
        for number in range(6)
    )
    return Unit(workload=workload, target=target, repeat=0, seconds=1.0, samples=samples, counted={}, peak={})


async def test_every_target_gets_its_workloads_and_a_second_run_nothing(make_run: MakeRun) -> None:
    """What is recorded is not run again."""
    await run_all(make_run())

    run = make_run()
    assert 4 == len(run.records) == len(recorded_units(run.records, SMALL, [NO_CACHE, PLAIN]))
    await run_all(replace(run, start=refuse))


async def test_a_run_that_is_out_of_time_keeps_what_it_has(make_run: MakeRun) -> None:
    """The next one goes on there."""
    with pytest.raises(OutOfTime, match="run it again to go on"):
        await run_all(make_run(elapsed=601.0))
    assert 0 == len(make_run().records)


def test_repetitions_of_a_workload_follow_one_another_backwards(make_run: MakeRun) -> None:
    """So that drift is nobody's; what is not judged runs once."""
    targets = targets_of({}, ["http://a"], "m")

    assert [
        ("multi_turn_qa", 0, NO_CACHE),
        ("multi_turn_qa", 0, PLAIN),
        ("no_reuse", 0, PLAIN),
        ("no_reuse", 1, PLAIN),
    ] == [
        (piece.recipe.name, piece.repeat, piece.target.name)
        for group in groups(make_run(), targets)
        for piece in group.pieces
    ]


@pytest.mark.parametrize(
    ("in_turn", "recorded", "expected"),
    [
        pytest.param(False, [], ["0 no", "0 plain", "1 plain", "1 no"], id="one by one"),
        pytest.param(False, ["0 no"], ["0 plain", "1 plain", "1 no"], id="one by one, one is there"),
        pytest.param(True, [], ["0 no, 0 plain", "1 plain, 1 no"], id="in turn"),
        pytest.param(True, ["0 no"], ["0 no, 0 plain", "1 plain, 1 no"], id="in turn, one is there"),
        pytest.param(True, ["0 no", "0 plain"], ["1 plain, 1 no"], id="in turn, all are there"),
    ],
)
def test_what_is_held_in_turn_is_done_together(
    make_run: MakeRun, in_turn: bool, recorded: list[str], expected: list[str]
) -> None:
    """And again where one of its units is missing: pairs are requests of the same time."""
    short = {NO_CACHE: "no", PLAIN: "plain"}
    keys = {
        f"{repeat} {short[name]}": unit_key("fixed_tail", repeat, name) for name in short for repeat in (0, 1)
    }
    run = replace(make_run(), scope={"fixed_tail": Amount(1, repeats=2, in_turn=in_turn)})
    for one in recorded:
        run.records.add(keys[one], {})

    found = list(groups(run, targets_of({HOP: "http://g"}, ["http://a"], "m")))

    assert {in_turn} == {group.in_turn for group in found}
    assert expected == [
        ", ".join(f"{piece.repeat} {short[piece.target.name]}" for piece in group.pieces) for group in found
    ]


async def test_a_group_that_is_recorded_in_part_is_run_again_in_turn(make_run: MakeRun) -> None:
    """A new record takes the place of the old one, in the file as well; what is whole stays."""
    scope: Scope = {"fixed_tail": Amount(2, repeats=2, in_turn=True)}
    run = replace(make_run(), scope=scope)
    for repeat, target in ((0, PLAIN), (1, PLAIN), (1, NO_CACHE)):
        old = replace(unit("fixed_tail", target, 1.0), repeat=repeat)
        run.records.add(unit_key("fixed_tail", repeat, target), old.to_record())
    fakes: list[FakeEngine] = []

    @contextlib.asynccontextmanager
    async def start(settings: EngineSettings) -> AsyncIterator[Engine]:
        async with running_engine(FakeEngine()) as fake, httpx.AsyncClient(base_url=fake.url) as http:
            fakes.append(fake)
            yield Engine(settings.name, "m", 0, http)

    await run_all(replace(run, start=start))

    for records in (run.records, make_run().records):
        units = recorded_units(records, scope, [NO_CACHE, PLAIN])
        assert [(NO_CACHE, 0, 2), (NO_CACHE, 1, 6), (PLAIN, 0, 2), (PLAIN, 1, 6)] == [
            (one.target, one.repeat, len(one.samples)) for one in units
        ]
    # Before the warm-ups of both targets, and before each of two sessions at each.
    assert [2 + 2 * 2] * 2 == [len(fake.posts("/reset_prefix_cache")) for fake in fakes]
    await run_all(replace(run, start=refuse))


@pytest.mark.parametrize("scope", [QUICK, WHOLE], ids=["quick", "whole"])
def test_what_is_judged_by_a_percent_is_held_in_turn(scope: Scope) -> None:
    """Units differ by more; and sessions of these workloads come one after the other."""
    arrivals = {recipe.name: recipe.arrivals for recipe in load_recipes()}
    found = {name: arrivals[name] for name, amount in scope.items() if amount.in_turn}

    assert {one.bound.workload for one in CLAIMS if 1.0 <= one.bound.limit <= 1.01} == set(found)
    check_in_turn("in_turn", found)


@pytest.mark.parametrize("scope", [QUICK, WHOLE], ids=["quick", "whole"])
def test_what_is_compared_in_turn_stands_side_by_side(scope: Scope, make_run: MakeRun) -> None:
    """Of what a pair of targets is asked, no third one is asked in between; each repetition begins so."""
    targets = targets_of(dict.fromkeys((SMG, "litellm", STERNPOST, HOP), "http://g"), ["http://a"], "m")
    found = [group for group in groups(replace(make_run(), scope=scope), targets) if group.in_turn]

    assert {(PLAIN, STERNPOST, HOP, SMG)} == {
        tuple(piece.target.name for piece in group.pieces) for group in found
    }


def test_what_is_judged_is_repeated() -> None:
    """One repetition would hold a bound to one draw of the workload."""
    judged = {claim.bound.workload for claim in CLAIMS}

    assert judged == {name for name, amount in WHOLE.items() if amount.repeats > 1}


def test_all_targets_get_answers_of_one_length_and_only_one_is_salted() -> None:
    """Else their latencies would not compare."""
    targets = targets_of({STERNPOST: "http://g"}, ["http://a", "http://b"], "m")

    assert {NO_CACHE: True, PLAIN: False, STERNPOST: False} == {one.name: one.salted for one in targets}
    assert 1 == len({str(one.extra) for one in targets})
    assert ("http://a", "http://b") == targets[1].origins
    assert ("http://g",) == targets[2].origins


@pytest.mark.parametrize(
    ("name", "layout", "suffix", "level"),
    [
        pytest.param(ANY_ENGINE, Layout.TAIL_FIRST, False, KillLevel.NONE, id="any engine"),
        pytest.param(STERNPOST, Layout.FIXED_TAIL, True, KillLevel.NONE, id="with the plugin"),
        pytest.param(HOP, Layout.FIXED_TAIL, True, KillLevel.PLAIN_PROXY, id="plain proxy"),
    ],
)
def test_policies_are_policies(name: str, layout: Layout, suffix: bool, level: KillLevel) -> None:
    """One needs no plugin, one reuses tails where they stand, one passes everything through."""
    policy = parse(POLICIES[name])

    found = (policy.prompt.layout, policy.suffix_cache is not None, policy.kill_level)
    assert (layout, suffix, level) == found


def test_the_plain_proxy_is_asked_only_what_its_claim_is_about(make_run: MakeRun) -> None:
    """It has nothing to show where prompts repeat."""
    targets = targets_of({HOP: "http://g"}, ["http://a"], "m")
    run = replace(make_run(), scope={"fixed_tail": Amount(1), "no_reuse": Amount(1)})

    found = [piece for group in groups(run, targets) for piece in group.pieces]
    assert ["no_reuse"] == [one.recipe.name for one in found if one.target.name == HOP]


@pytest.mark.parametrize("scope", [QUICK, WHOLE], ids=["quick", "whole"])
def test_scopes_name_built_in_workloads_and_cover_the_claims(scope: Scope) -> None:
    """A claim about a workload that never runs would never hold."""
    known = {recipe.name for recipe in load_recipes()}

    assert set() == set(scope) - known
    assert set() == {claim.bound.workload for claim in CLAIMS} - set(scope)
    assert known == set(WHOLE)


@pytest.mark.parametrize("scope", [QUICK, WHOLE], ids=["quick", "whole"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.bound.workload}-{claim.target}")
def test_scopes_ask_whom_the_claims_are_about(scope: Scope, claim: Claim) -> None:
    """A claim needs its target, what it is measured against, and beside other routers every one of them."""
    workload = claim.bound.workload
    known = [NO_CACHE, PLAIN, *PEER_NAMES, ANY_ENGINE, STERNPOST, HOP]
    asked = {name for name in known if is_asked(workload, scope[workload], name)}
    needed = {claim.target, *(PEER_NAMES if claim.against == BEST_PEER else [claim.against])}

    assert set() == needed - asked
    assert asked & set(PEER_NAMES), "another router is always there"


def test_a_claim_is_judged_against_the_best_of_the_others() -> None:
    """This project's own targets are no peers of each other."""
    units = [
        unit("agent_unstable", PLAIN, 1.0),
        unit("agent_unstable", "fast_peer", 0.8, 90),
        unit("agent_unstable", ANY_ENGINE, 0.1, 10),
        unit("agent_unstable", STERNPOST, 0.3, 30),
    ]
    found = {
        (one.claim.bound.workload, one.claim.bound.metric, one.claim.target): one for one in judge(units)
    }

    for target, ratio in ((STERNPOST, 0.375), (ANY_ENGINE, 0.125)):
        ttft = found["agent_unstable", "ttft_p50", target]
        assert ("fast_peer", True) == (ttft.against, ttft.holds)
        assert ttft.figure is not None and ratio == pytest.approx(ttft.figure.value)
    not_run = found["no_reuse", "ttft_p50", STERNPOST]
    assert (None, False) == (not_run.figure, not_run.holds)


def test_what_misses_its_bound_is_said() -> None:
    """And what was not run is neither."""
    units = [unit("short_chat", PLAIN, 1.0), unit("short_chat", STERNPOST, 1.5)]
    text = bounds_table(judge(units))

    assert (
        "| short_chat | total_mean | sternpost | vllm | <= 1.01 | 1.500 (1.500 to 1.500) | MISSED |" in text
    )
    assert f"| agent_unstable | ttft_p50 | sternpost | {BEST_PEER} | <= 0.5 | not run |  |" in text


def test_the_result_file_holds_figures_bounds_versions_and_what_is_missing() -> None:
    """So that whoever reads it need not ask what it was."""
    units = [unit("short_chat", PLAIN, 1.0), unit("short_chat", STERNPOST, 1.5)]
    document = document_of(
        Found(units, figures_of(units), judge(units), {"smg": "no wheel"}, []),
        datetime(2026, 1, 2, tzinfo=UTC),
    )

    assert {"smg": "no wheel"} == document["missing"]
    assert ["short_chat"] == list(document["workloads"])
    assert len(CLAIMS) == len(document["bounds"])
    assert {PLAIN, STERNPOST} == {row["target"] for row in document["rows"]}


def test_memory_is_kept_where_it_is_known() -> None:
    """A system that does not tell it has no figure, not a zero."""
    plain = unit("short_chat", PLAIN, 1.0)

    assert {MEMORY: 5.0} == dict(with_memory(plain, 5).peak)
    assert {} == dict(with_memory(plain, 0).peak)


async def test_a_router_that_does_not_start_is_missing_and_stops_nobody(make_run: MakeRun) -> None:
    """Its reason is told, and the others are measured."""
    run = make_run()
    broken = Router("broken", lambda port, engines: ["false"])

    missing = await run_all(replace(run, routers=[broken]))

    assert ["broken"] == list(missing)
    assert "ended with status 1" in missing["broken"]
    assert 4 == len(run.records)


def test_recorded_units_come_back_in_the_scope_s_order(tmp_path: Path) -> None:
    """Whatever the order was in which they were run."""
    records = RecordStore(tmp_path / "r", "f")
    for target in (STERNPOST, PLAIN):
        one = replace(unit("no_reuse", target, 1.0))
        records.add(unit_key("no_reuse", 0, target), one.to_record())

    assert [PLAIN, STERNPOST] == [one.target for one in recorded_units(records, SMALL, [PLAIN, STERNPOST])]


def test_litellm_gets_each_engine_as_a_deployment_of_one_model() -> None:
    """Its own choice among them is what is measured."""
    settings = litellm_settings("m", ["http://a", "http://b"])

    deployments = settings["model_list"]
    assert isinstance(deployments, list)
    assert ["http://a/v1", "http://b/v1"] == [one["litellm_params"]["api_base"] for one in deployments]
    assert {"m"} == {one["model_name"] for one in deployments}
