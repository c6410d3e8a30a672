"""What the scheduler's adapter needs of vLLM's own scheduler, without an engine behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from sternpost_core.hint import Correction
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.hashes import BlockHashes
from sternpost_engine.operations import Operations, Splice
from sternpost_engine.planner import TailPlanner
from sternpost_engine.tracks import Room
from sternpost_fakes.middles import make_calibrator, make_marker
from sternpost_fakes.tail_requests import TAIL, WIDE, admitted, build, build_facts, make_planner, read_facts
from sternpost_fakes.vllm_modules import import_object

MIDDLE: Final = (900, TAIL[9], TAIL[1], 901)
"""Twelve tokens with the scaffold; two of them point at runs of four tokens."""

FULL_TOKENS, FULL_ROWS = 1000, 8
"""What a step has."""


@dataclass
class Step:
    """What vLLM's scheduler would have seen when it was asked for a step."""

    running: list[str]
    tokens: int


@dataclass
class FakeSide:
    """The connector's half, with a planner; notes the tokens and splices that it is told of."""

    planner: TailPlanner
    scheduler: Any = None
    counted: list[tuple[int, int, int]] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    hashes: BlockHashes = field(default_factory=BlockHashes)
    adapters: AdapterDigests = field(default_factory=AdapterDigests)

    def open_space(self, request: Any, exact_hit: int, block_tokens: int) -> bool:
        """Ask the planner; note the hit of those that have a namespace."""
        if self.planner.open_space(request.request_id, exact_hit) is None:
            return False
        self.opened.append(exact_hit)
        return True

    def resume(self, request: Any, room: Room) -> Splice | None:
        """Ask the planner, and take the splice's room."""
        admission = self.planner.resume(request.request_id, request.num_computed_tokens, room)
        if admission is None or admission.splice is None:
            return None
        self.scheduler.take_room(admission.splice)
        return admission.splice

    probes: list[Any] = field(default_factory=list)

    def answer(self, outcome: Any) -> None:
        """Pass on what the workers did."""
        for built in outcome.completed:
            self.planner.completed(built)

    def take_probe(self) -> Any:
        """Return what the self-test asks next."""
        return self.probes.pop(0) if self.probes else None

    def step_done(self, splices: Any) -> None:
        """Note the splices."""
        self.done.extend(splices)

    def count_tokens(self, prefix: int, suffix: int, computed: int) -> None:
        """Note the tokens."""
        self.counted.append((prefix, suffix, computed))


def request_named(request_id: str) -> SimpleNamespace:
    """Return a request of which only the name matters, and that its first output is still to come."""
    return SimpleNamespace(request_id=request_id, num_computed_tokens=0, prefill_stats=object())


def running_request(request_id: str, tokens: int, computed: int = 0) -> Any:
    """Return vLLM's own request of so many tokens."""
    request = import_object("vllm.v1.request:Request")(
        request_id=request_id,
        prompt_token_ids=list(range(tokens)),
        sampling_params=import_object("vllm.sampling_params:SamplingParams")(max_tokens=1),
        pooling_params=None,
    )
    request.num_computed_tokens = computed
    request.status = import_object("vllm.v1.request:RequestStatus").RUNNING
    return request


def planner_of(*, calibrated: bool = False) -> TailPlanner:
    """Return a planner that holds a tail."""
    planner = make_planner(calibrator=make_calibrator(), marker=make_marker())
    correction = Correction.CALIBRATED if calibrated else Correction.NONE
    build(planner, build_facts("build", correction=correction))
    return planner


def planned_splice(planner: TailPlanner, request_id: str = "read", *, match: int = 16) -> Splice:
    """Plan a read's splice into the step."""
    planner.add(read_facts(request_id, middle=MIDDLE, match=match))
    assert planner.match(request_id, 4, WIDE)
    return admitted(planner, request_id)


class LittleVllm:
    """Stands where vLLM's own scheduler would: schedules nothing, and notes what it is asked."""

    def __init__(self, planner: TailPlanner, state: Mapping[str, Any]) -> None:
        connector_class = import_object("sternpost_engine.connector:SternpostConnector")
        self.connector = connector_class.__new__(connector_class)
        self.connector.scheduler_side = FakeSide(planner)
        self.vllm_config = SimpleNamespace(instance_id="engine")
        self.max_num_scheduled_tokens = FULL_TOKENS
        self.max_num_running_reqs = self.max_num_active_reqs = FULL_ROWS
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.requests: dict[str, Any] = {}
        self.finished_req_ids: set[str] = set()
        self.connector_prefix_cache_stats = None
        self.registered: list[tuple[str, int]] = []
        self.use_v2_model_runner = False
        self.hash_block_size = 4
        self.kv_cache_manager = SimpleNamespace(
            usage=0.0,
            coordinator=SimpleNamespace(cache_blocks=self.register),
            get_block_ids=lambda request_id: ([1, 2, 3],),
        )
        self.steps: list[Step] = []
        self.lookups = 0
        self.preempted: list[str] = []
        self.scheduled_tokens = 1
        self.given_up: list[tuple[str, Any]] = []
        for name, value in state.items():
            setattr(self, name, value)

    def register(self, request: Any, num_computed_tokens: int) -> None:
        self.registered.append((request.request_id, num_computed_tokens))

    def schedule(self, throttle_prefills: bool = False) -> Any:
        running = [request.request_id for request in self.running]
        self.steps.append(Step(running, self.max_num_scheduled_tokens))
        return SimpleNamespace(total_num_scheduled_tokens=self.scheduled_tokens)

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        self.given_up.append((request_ids, finished_status))
        self.running = [request for request in self.running if request.request_id != request_ids]
        del self.requests[request_ids]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return model_runner_output.answers

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Advance nothing."""

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        self.lookups += 1
        return None, self.lookups, 0, False

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool) -> None:
        assert drop_stale_output, "what is in flight is thrown away"
        self.preempted.append(request.request_id)

    def _reserve_prefill_lookahead(self, request: Any, computed: int, new: int) -> int:
        return new

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        return SimpleNamespace(operations=scheduler_output.operations)


def make_scheduler(planner: TailPlanner, **state: Any) -> Any:
    """
    Return the adapter over a scheduler that schedules nothing, and keeps what it was asked in `steps`.

    `state` replaces attributes that vLLM's own scheduler would have at its start.
    """
    adapter = import_object("sternpost_engine.scheduler:SternpostScheduler")
    vllm_class = import_object("vllm.v1.core.sched.async_scheduler:AsyncScheduler")
    return type("LittleScheduler", (adapter, LittleVllm, vllm_class), {})(planner, state)


def end_step(
    scheduler: Any, answers: Mapping[int, Any] | None = None, scheduled: Mapping[str, int] | None = None
) -> Any:
    """Let the adapter process a step's output."""
    return scheduler.update_from_output(
        SimpleNamespace(num_scheduled_tokens=dict(scheduled or {})),
        SimpleNamespace(kv_connector_output=None, answers=dict(answers or {})),
    )


def step_output(scheduled: Mapping[str, int], operations: Operations) -> SimpleNamespace:
    """Return a step's output as vLLM has scheduled it, without new requests."""
    return SimpleNamespace(
        scheduled_new_reqs=[],
        num_scheduled_tokens=dict(scheduled),
        total_num_scheduled_tokens=sum(scheduled.values()),
        has_sync_kv_loads=False,
        operations=operations,
    )
