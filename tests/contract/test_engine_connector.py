"""The connector's half in the scheduler: vLLM's requests and answers, put into the planner's words."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Correction, Reason
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.operations import Built, Operations
from sternpost_fakes.connector_side import build, make_side, request_of
from sternpost_fakes.tail_requests import BLOCK_SIZE, SCAFFOLD, TAIL, build_facts, read_facts
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

ADAPTER = SimpleNamespace(lora_name="l", lora_int_id=3, lora_path="adapters/l")


@pytest.fixture(scope="module")
def connector() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.connector")
    return module


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"cache_salt": "s"}, {"salt": "s"}, id="salt"),
        pytest.param(
            {"lora_request": ADAPTER},
            {"adapter": ADAPTER, "adapter_unknown": True},
            id="adapter-without-files",
        ),
        pytest.param(
            {"lora_request": ADAPTER, "kv_transfer_params": {}},
            {"adapter": ADAPTER, "transfer": {}},
            id="adapter-of-a-request-without-a-hint",
        ),
        pytest.param({"pooling_params": object()}, {"pooling": True}, id="pooling"),
        pytest.param(
            {"sampling_params": SimpleNamespace(prompt_logprobs=0)}, {"prompt_logprobs": True}, id="logprobs"
        ),
        pytest.param({"sampling_params": None}, {}, id="no-sampling"),
        pytest.param({"mm_features": [object()]}, {"multimodal": True}, id="image"),
        pytest.param({"prompt_embeds": object()}, {"multimodal": True}, id="embeddings"),
        pytest.param(
            {"kv_transfer_params": {"do_remote_prefill": True}},
            {"remote_kv": True, "transfer": {"do_remote_prefill": True}},
            id="remote-prefill",
        ),
        pytest.param(
            {"kv_transfer_params": {"do_remote_decode": True}},
            {"remote_kv": True, "transfer": {"do_remote_decode": True}},
            id="remote-decode",
        ),
        pytest.param({"resumable": True}, {"resumable": True}, id="resumable"),
        pytest.param({"skip_reading_prefix_cache": True}, {"cache_off": True}, id="no-cached-kv"),
        pytest.param({"prompt_token_ids": None}, {"prompt": ()}, id="no-ids"),
    ],
)
def test_facts_of_a_request(connector: ModuleType, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each is read where vLLM keeps it."""
    facts = connector.facts_of(request_of(read_facts("read"), **changes), AdapterDigests())

    defaults = {
        "salt": "",
        "lora": "",
        "adapter": None,
        "adapter_unknown": False,
        "cache_off": False,
        "pooling": False,
        "prompt_logprobs": False,
        "multimodal": False,
        "remote_kv": False,
        "resumable": False,
        "answer_tokens": 16,
        "transfer": read_facts("read").transfer,
        "prompt": list(read_facts("read").prompt),
    }
    assert {**defaults, **expected} == {name: getattr(facts, name) for name in defaults}


def test_outcomes_of_workers_are_added_up(connector: ModuleType) -> None:
    """Per tail or sample, how many workers hold it whole; one failure is enough."""
    tail, sample, other = Built(1), Built(1, 0), Built(2)
    first = connector.OutcomeMetadata({tail: 1, sample: 1}, {other})

    total = first.aggregate(connector.OutcomeMetadata({tail: 1}, {sample}, {"read"}))

    assert ({tail: 2, sample: 1}, {sample, other}) == (total.completed, total.failed)
    assert {"read"} == total.not_copied


@pytest.mark.parametrize(
    ("completed", "failed", "reason"),
    [
        pytest.param({Built(1): 2}, set(), Reason.BUILT, id="both-workers"),
        pytest.param({Built(1): 1}, set(), Reason.UNSUPPORTED, id="one-worker"),
        pytest.param({Built(1): 1}, {Built(1)}, Reason.UNSUPPORTED, id="one-worker-failed"),
        pytest.param({}, {Built(1)}, Reason.UNSUPPORTED, id="both-failed"),
    ],
)
def test_tail_is_live_when_every_worker_holds_it(
    connector: ModuleType, completed: dict[Built, int], failed: set[Built], reason: Reason
) -> None:
    """A rank without its heads would put garbage into the others' answers."""
    side = make_side(connector, workers=2)
    side.add(request_of(build_facts("build")))

    side.answer(connector.OutcomeMetadata(completed, failed))

    assert reason is side.planner.reason("build")


def test_build_reads_no_prefix_blocks(connector: ModuleType) -> None:
    """It must compute its whole tail; a read must not."""
    side = make_side(connector)
    requests = [request_of(build_facts("build")), request_of(read_facts("read"))]

    for request in requests:
        side.add(request)

    assert [True, False] == [request.skip_reading_prefix_cache for request in requests]


def test_admitted_splice_takes_its_room(connector: ModuleType) -> None:
    """The scheduler is told of every row that rides along, when its request is admitted."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"))
    side.add(request)

    assert 24 == side.match(request, 8)
    assert [] == side.scheduler.taken
    side.admit(request, 1)

    assert list(side.planner.take_splices()) == side.scheduler.taken
    assert [(8, 18, 10)] == [
        (splice.hit, splice.exact, splice.middle_tokens) for splice in side.scheduler.taken
    ]


def test_under_another_scheduler_nothing_rides_along(connector: ModuleType) -> None:
    """The connector stays idle: every read is computed exactly."""
    side = make_side(connector)
    build(connector, side)
    side.scheduler = None
    request = request_of(read_facts("read"))
    side.add(request)

    assert 0 == side.match(request, 8)


def test_without_a_tokenizer_tails_are_neither_calibrated_nor_matched(connector: ModuleType) -> None:
    """vLLM may be started so; then tails are read as they were built."""
    side = make_side(connector)
    side.add(request_of(build_facts("build", correction=Correction.CALIBRATED)))
    side.close_step({"build": len(SCAFFOLD) + len(TAIL)})
    side.answer(connector.OutcomeMetadata({Built(1): 1}, set()))

    assert None is side.planner.next_sample(idle=True)


def test_step_starts_where_vllms_counter_stands(connector: ModuleType) -> None:
    """Captures of a later chunk go where that chunk goes."""
    side = make_side(connector)
    side.add(request_of(build_facts("build"), num_computed_tokens=12))

    operations = side.close_step({"build": 4, "unknown": 1})

    assert [(12, 4, 4)] == [
        (capture.span.position, capture.span.offset, capture.span.count) for capture in operations.captures
    ]
    assert 12 // BLOCK_SIZE in operations.captures[0].span.blocks


def test_read_has_hashes_of_its_own_while_it_may_be_spliced(connector: ModuleType) -> None:
    """From its first approximate block on; the ordinary ones come back when it is computed exactly."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"))
    ordinary = list(request.block_hashes)
    side.add(request)

    assert side.open_space(request, 8, BLOCK_SIZE)
    own = list(request.block_hashes)
    side.planner.reset()
    side.match(request, 8)

    assert ordinary[:4] == own[:4]
    assert ordinary[4] != own[4]
    assert ordinary == request.block_hashes


def test_read_without_a_whole_approximate_block_looks_up_exact_ones_alone(connector: ModuleType) -> None:
    """And what is approximate of it is not registered."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"), block_hashes=[b"the middle's"])
    side.add(request)

    assert not side.open_space(request, 0, BLOCK_SIZE)
    assert not side.planner.in_space("read")


@pytest.mark.parametrize(
    ("hit", "counts"),
    [
        pytest.param(8, (34, 8, 14), id="copied"),
        pytest.param(24, (34, 18, 14), id="partly-there"),
        pytest.param(32, (34, 18, 14), id="all-there"),
    ],
)
def test_approximate_tokens_are_counted_for_the_suffix_store(
    connector: ModuleType, hit: int, counts: tuple[int, int, int]
) -> None:
    """Wherever they come from; vLLM counts what its own store has as exact."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"))
    side.add(request)
    side.open_space(request, 8, BLOCK_SIZE)

    side.match(request, hit)
    side.admit(request, 1)

    assert counts == request.prefill_stats.counts


def test_preempted_read_is_counted_by_its_next_admission(connector: ModuleType) -> None:
    """vLLM counts a request's first admission alone, and this request did not live to profit from it."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"))
    side.add(request)
    side.match(request, 8)
    side.admit(request, 1)
    side.step_done(side.planner.take_splices())
    side.planner.reset()
    request.num_preemptions = 1

    assert 0 == side.match(request, 4)

    assert (34, 4, 0) == request.prefill_stats.counts


def test_figures_are_sent_once(connector: ModuleType) -> None:
    """Counters as increases, the pool as it is."""
    side = make_side(connector)
    build(connector, side)
    side.match(request_of(read_facts("unknown")), 0)
    side.count_tokens(8, 16, 10)
    side.finish("build")

    first, second = side.take_stats().data, side.take_stats().data

    assert {
        "requests": {"built": 1},
        "tokens": {"prefix": 8, "suffix": 16, "computed": 10},
        "inserts": {"": 1},
        "builds": {"begun": 1, "completed": 1},
    } == first["counters"]
    assert [16 / 34] == first["observations"]["hit_kv_share"]
    assert {"building": 0, "live": 1, "retired": 0} == first["gauges"]["tails"]
    assert {"": 256 * 2 * (8 * 4 + 8 * 2)} == first["gauges"]["pool_bytes"]
    assert 1 == len(first["observations"]["match_seconds"])
    assert ({}, {}) == (second["counters"], second["observations"])


def test_finished_request_is_forgotten(connector: ModuleType) -> None:
    """Nothing of it is left to be scheduled."""
    side = make_side(connector)
    side.add(request_of(build_facts("build")))

    side.finish("build")

    assert Operations(drops=(1,)) == side.close_step({"build": 24})
