"""The connector's half in the scheduler when an engine starts: what the workers say, and the self-test."""

from types import ModuleType
from typing import Any

import pytest

from sternpost_core.hint import Mode, Reason
from sternpost_engine.operations import Built, Operations
from sternpost_engine.rules import Facts
from sternpost_engine.self_test import COMPARED
from sternpost_engine.settings import EngineSettings
from sternpost_fakes.connector_side import make_side, request_of
from sternpost_fakes.tail_requests import build_facts, read_facts
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def connector() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.connector")
    return module


@pytest.mark.parametrize(
    ("settings", "reports", "budget"),
    [
        pytest.param({"pool_fraction": 0.5}, [(1000, False)], 500, id="share-of-what-is-free"),
        pytest.param({"pool_fraction": 0.5}, [(1000, False), (800, False)], 400, id="least-of-the-devices"),
        pytest.param({"pool_fraction": 0.5}, [(1000, True), (1000, True)], 250, id="hosts-memory-is-shared"),
        pytest.param({"pool_bytes": 77}, [(1000, False)], 77, id="bytes"),
    ],
)
def test_budget_is_what_the_workers_have(
    connector: ModuleType, settings: dict[str, Any], reports: list[tuple[int, bool]], budget: int
) -> None:
    """The device's memory, which the scheduler's process cannot ask for."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, settings=EngineSettings(**settings))

    side.workers_ready([setup.WorkerReport(free, host) for free, host in reports])

    assert budget == side.planner.index.budget_bytes


def test_refusal_of_one_worker_turns_the_store_off(connector: ModuleType) -> None:
    """A tail that one rank cannot turn is of no use to the others."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, workers=2)

    side.workers_ready([setup.WorkerReport(1, False), setup.WorkerReport(1, False, "layer 3 is odd")])
    side.add(request_of(build_facts("build")))

    assert Reason.UNSUPPORTED is side.planner.reason("build")


@pytest.mark.parametrize(
    ("engine", "shifts", "reason"),
    [
        pytest.param({}, (True, True), Reason.BUILDING, id="all-can"),
        pytest.param({}, (True, False), Reason.ANCHOR_UNSUPPORTED, id="one-worker-cannot"),
        pytest.param(
            {"full_graphs": True}, (True, True), Reason.ANCHOR_UNSUPPORTED, id="forwards-are-replayed-whole"
        ),
        pytest.param(
            {"v2_runner": True}, (True, True), Reason.ANCHOR_UNSUPPORTED, id="positions-made-on-the-device"
        ),
    ],
)
def test_tails_are_anchored_where_positions_can_be_shifted(
    connector: ModuleType, engine: dict[str, Any], shifts: tuple[bool, bool], reason: Reason
) -> None:
    """By every worker, in every step; otherwise the request is exact and says why."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, workers=2, **engine)
    side.workers_ready([setup.WorkerReport(10**6, False, None, shifting) for shifting in shifts])

    side.add(request_of(build_facts("build", mode=Mode.ANCHOR, anchor=64)))

    assert reason is side.planner.reason("build")
    assert (reason is Reason.BUILDING) is ("anchor" in side.describe_pool()["modes"])


@pytest.mark.parametrize(
    ("engines", "refusal", "asked"),
    [
        pytest.param(1, None, ["sternpost-self-test-build"], id="alone"),
        pytest.param(2, None, [], id="in-lockstep-with-others"),
        pytest.param(1, "layer 3 is odd", [], id="refused-already"),
    ],
)
def test_self_test_begins_when_the_workers_are_ready(
    connector: ModuleType, engines: int, refusal: str | None, asked: list[str]
) -> None:
    """Before the first request of a client."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, engines=engines)

    side.workers_ready([setup.WorkerReport(10**6, False, refusal)])

    assert asked == [probe.request_id for probe in side.scheduler.asked]


def test_engine_whose_requests_hold_no_tail_is_refused(connector: ModuleType) -> None:
    """A self-test longer than the longest request would end the engine."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, settings=EngineSettings(tail_tokens_min=4090))

    side.workers_ready([setup.WorkerReport(10**9, False)])

    assert "--max-model-len 4096 has no room for the shortest tail" == side.describe_pool()["reason"]
    assert [] == side.scheduler.asked


@pytest.mark.parametrize(
    ("equal", "verdict", "reason"),
    [
        pytest.param(True, "passed", Reason.NOT_BUILT, id="equal"),
        pytest.param(False, "failed", Reason.UNSUPPORTED, id="different"),
    ],
)
def test_self_test_decides_whether_the_store_is_used(
    connector: ModuleType, equal: bool, verdict: str, reason: Reason
) -> None:
    """A build and a read of its own, compared by the workers; afterwards nothing of it is held or counted."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, settings=EngineSettings(pool_bytes=10**6))
    side.workers_ready([setup.WorkerReport(10**6, False)])
    build_probe = side.scheduler.asked[0]
    run_probe(side, build_probe)
    side.answer(connector.OutcomeMetadata({Built(1): 1}, set()))
    side.finish(build_probe.request_id)
    read_probe = side.take_probe()

    operations = run_probe(side, read_probe)
    splices = [side.scheduler.taken[-1]]
    compared = Built(1, COMPARED)
    side.answer(connector.OutcomeMetadata({compared: 1} if equal else {}, set() if equal else {compared}))
    side.finish(read_probe.request_id)
    side.step_done(splices)
    side.add(request_of(read_facts("read", range(300))))
    side.match(request_of(read_facts("read", range(300))), 0)

    assert [(COMPARED, True, 256, 240, 16)] == [
        (one.variant, one.final, one.span.position, one.span.offset, one.span.count)
        for one in operations.captures
    ]
    assert (verdict, None) == (side.describe_pool()["self_test"], side.take_probe())
    assert (reason, 0) == (side.planner.reason("read"), side.planner.index.used_bytes)
    assert {} == {label: count for label, count in side.planner.requests.items() if count}


@pytest.mark.parametrize("reading", [False, True], ids=["while-it-builds", "while-it-reads"])
def test_self_test_that_was_aborted_begins_again(connector: ModuleType, reading: bool) -> None:
    """As when an engine is put to sleep at its start: it builds its tail anew, and the store is used."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, settings=EngineSettings(pool_bytes=10**6))
    side.workers_ready([setup.WorkerReport(10**6, False)])
    probe = side.scheduler.asked[0]
    run_probe(side, probe)
    if reading:
        side.answer(connector.OutcomeMetadata({Built(1): 1}, set()))
        side.finish(probe.request_id)
        probe = side.take_probe()
        run_probe(side, probe)

    side.finish(probe.request_id)

    begins = run_probe(side, side.take_probe()).begins
    assert [256] == [len(begin.tokens) for begin in begins]
    assert side.planner.supported
    side.answer(connector.OutcomeMetadata({Built(begins[0].entry): 1}, set()))
    side.finish(side.scheduler.asked[0].request_id)
    assert not side.take_probe().builds


def run_probe(side: Any, probe: Any) -> Operations:
    """Let a request of the self-test go through one step, as far as the connector sees it."""
    facts = Facts(request_id=probe.request_id, prompt=probe.prompt, transfer=probe.transfer)
    request = request_of(facts)
    side.add(request)
    loaded = side.match(request, 0)
    if loaded:
        side.admit(request, loaded)
        request.num_computed_tokens = loaded
    operations: Operations = side.close_step({probe.request_id: len(probe.prompt) - loaded})
    return operations


@pytest.mark.parametrize(("v2_runner", "allowed"), [(False, True), (True, False)], ids=["v1", "v2"])
def test_running_request_jumps_over_its_tail_where_the_runner_sees_it(
    connector: ModuleType, v2_runner: bool, allowed: bool
) -> None:
    """The V2 runner counts on the device, so a middle longer than a step is computed exactly there."""
    assert allowed is make_side(connector, v2_runner=v2_runner).planner.limits.long_middles
