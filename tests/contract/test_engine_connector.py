"""The connector's halves: vLLM's requests and answers, put into the planner's words."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sternpost_core.hint import Correction, Mode, Reason
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.operations import Built, Operations, Splice
from sternpost_engine.rules import Facts
from sternpost_engine.self_test import COMPARED
from sternpost_engine.settings import EngineSettings
from sternpost_engine.tracks import Room
from sternpost_fakes.tail_requests import BLOCK_SIZE, SCAFFOLD, TAIL, build_facts, read_facts
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

ADAPTER = SimpleNamespace(lora_name="l", lora_int_id=3, lora_path="adapters/l")

ROOM = Room(tokens=100, rows=8, tokens_max=100, rows_max=8)


@pytest.fixture(scope="module")
def connector() -> ModuleType:
    """The module, which imports vLLM."""
    module: ModuleType = import_object("sternpost_engine.connector")
    return module


class FakePrefillStats:
    """Keeps what was set last."""

    def __init__(self) -> None:
        self.counts: tuple[int, int, int] | None = None

    def set(
        self, num_prompt_tokens: int, num_local_cached_tokens: int, num_external_cached_tokens: int
    ) -> None:
        """Keep the counts."""
        self.counts = (num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens)


def request_of(facts: Any, **changes: Any) -> SimpleNamespace:
    """Return a request as vLLM has it."""
    values: dict[str, Any] = {
        "request_id": facts.request_id,
        "prompt_token_ids": list(facts.prompt),
        "num_prompt_tokens": len(facts.prompt),
        "kv_transfer_params": facts.transfer,
        "cache_salt": facts.salt or None,
        "lora_request": None,
        "pooling_params": None,
        "sampling_params": SimpleNamespace(prompt_logprobs=None),
        "mm_features": [],
        "prompt_embeds": None,
        "resumable": False,
        "max_tokens": 16,
        "num_preemptions": 0,
        "num_computed_tokens": 0,
        "skip_reading_prefix_cache": False,
        "block_hashes": [bytes([number]) for number in range(len(facts.prompt) // BLOCK_SIZE)],
        "update_block_hashes": lambda: None,
        "prefill_stats": FakePrefillStats(),
    }
    return SimpleNamespace(**{**values, **changes})


class FakeScheduler:
    """Has the same room in every step, and notes what is taken of it."""

    def __init__(self) -> None:
        self.taken: list[Splice] = []
        self.side: Any = None
        self.asked: list[Any] = []

    def room(self) -> Room:
        """Return the room."""
        return ROOM

    def take_room(self, splice: Splice) -> None:
        """Note the splice."""
        self.taken.append(splice)

    def ask_probe(self) -> None:
        """Note what the self-test asks."""
        self.asked.append(self.side.take_probe())


def make_side(
    connector: ModuleType,
    *,
    workers: int = 1,
    engines: int = 1,
    full_graphs: bool = False,
    v2_runner: bool = False,
    settings: EngineSettings | None = None,
) -> Any:
    """Return the scheduler's half over one layer, with short tails allowed."""
    torch = import_object("torch")
    spec = SimpleNamespace(num_kv_heads=1, head_size=8, head_size_v=8, dtype=torch.bfloat16)
    group = SimpleNamespace(kv_cache_spec=spec, layer_names=["layer-0", "layer-1"])
    config = SimpleNamespace(
        instance_id="start",
        use_v2_model_runner=v2_runner,
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(),
            model="m",
            revision=None,
            quantization=None,
            dtype=torch.bfloat16,
            tokenizer="m",
            tokenizer_revision=None,
            skip_tokenizer_init=True,
            max_model_len=4096,
            get_vocab_size=lambda: 1000,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full_graphs)
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=workers, data_parallel_size=engines),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    side = connector.SchedulerSide(
        config,
        SimpleNamespace(kv_cache_groups=[group]),
        settings or EngineSettings(pool_bytes=10**6, tail_tokens_min=4),
    )
    side.kv_cache_manager = SimpleNamespace(get_block_ids=lambda request_id: (list(range(20)),))
    side.scheduler = FakeScheduler()
    side.scheduler.side = side
    return side


def build(connector: ModuleType, side: Any) -> None:
    """Build the tail."""
    side.add(request_of(build_facts("build")))
    side.close_step({"build": len(SCAFFOLD) + len(TAIL)})
    side.answer(connector.OutcomeMetadata({Built(1): 1}, set()))


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
    side.admit(request)

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
    side.admit(request)

    assert counts == request.prefill_stats.counts


def test_preempted_read_is_counted_by_its_next_admission(connector: ModuleType) -> None:
    """vLLM counts a request's first admission alone, and this request did not live to profit from it."""
    side = make_side(connector)
    build(connector, side)
    request = request_of(read_facts("read"))
    side.add(request)
    side.match(request, 8)
    side.admit(request)
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
    ("full_graphs", "shifts", "reason"),
    [
        pytest.param(False, (True, True), Reason.BUILDING, id="all-can"),
        pytest.param(False, (True, False), Reason.ANCHOR_UNSUPPORTED, id="one-worker-cannot"),
        pytest.param(True, (True, True), Reason.ANCHOR_UNSUPPORTED, id="forwards-are-replayed-whole"),
    ],
)
def test_tails_are_anchored_where_positions_can_be_shifted(
    connector: ModuleType, full_graphs: bool, shifts: tuple[bool, bool], reason: Reason
) -> None:
    """By every worker, in every step; otherwise the request is exact and says why."""
    setup = import_object("sternpost_engine.worker_setup")
    side = make_side(connector, workers=2, full_graphs=full_graphs)
    side.workers_ready([setup.WorkerReport(10**6, False, None, shifting) for shifting in shifts])

    side.add(request_of(build_facts("build", mode=Mode.ANCHOR, anchor=64)))

    assert reason is side.planner.reason("build")


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


def run_probe(side: Any, probe: Any) -> Operations:
    """Let a request of the self-test go through one step, as far as the connector sees it."""
    facts = Facts(request_id=probe.request_id, prompt=probe.prompt, transfer=probe.transfer)
    request = request_of(facts)
    side.add(request)
    loaded = side.match(request, 0)
    if loaded:
        side.admit(request)
        request.num_computed_tokens = loaded
    operations: Operations = side.close_step({probe.request_id: len(probe.prompt) - loaded})
    return operations


@pytest.mark.parametrize(("v2_runner", "allowed"), [(False, True), (True, False)], ids=["v1", "v2"])
def test_running_request_jumps_over_its_tail_where_the_runner_sees_it(
    connector: ModuleType, v2_runner: bool, allowed: bool
) -> None:
    """The V2 runner counts on the device, so a middle longer than a step is computed exactly there."""
    assert allowed is make_side(connector, v2_runner=v2_runner).planner.limits.long_middles
