"""
vLLM's KV connector: the adapter between vLLM and the suffix store, in the scheduler and in each worker.

It decides nothing. On the scheduler side it passes requests and blocks to the planner and the planner's
operations to vLLM; on the worker side it passes operations to the worker and answers with what became of
them. It works together with `SternpostScheduler` alone: under another scheduler it stays idle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
)
from vllm.logger import init_logger

from sternpost_core.clock import SystemClock
from sternpost_core.hint import Mode
from sternpost_engine.adapters import AdapterDigests
from sternpost_engine.engine_identity import describe_engine
from sternpost_engine.figures import counters_of, gauges_of
from sternpost_engine.hashes import BlockHashes
from sternpost_engine.index import SuffixIndex
from sternpost_engine.language import read_language
from sternpost_engine.metadata import OutcomeMetadata, StepMetadata
from sternpost_engine.operations import Built, Operations, Outcome, Splice
from sternpost_engine.planner import TailPlanner
from sternpost_engine.reads import Admission
from sternpost_engine.request_facts import facts_of
from sternpost_engine.rules import Limits
from sternpost_engine.self_test import Probe, SelfTest, tail_tokens_for
from sternpost_engine.self_test_run import SelfTestRun
from sternpost_engine.settings import EngineSettings, parse_settings, pool_budget
from sternpost_engine.sight import describe_pool, describe_tails
from sternpost_engine.stats import CounterDeltas, SuffixMetrics, SuffixStats, empty_data
from sternpost_engine.support import check_groups, check_support
from sternpost_engine.tensors import LayerShape, bytes_per_token
from sternpost_engine.tracks import Room
from sternpost_engine.worker import SuffixWorker
from sternpost_engine.worker_setup import UnsupportedModelError, WorkerReport, make_worker, report_of

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger("vllm.sternpost")

OBSERVATIONS_MAX: Final = 10_000
"""So many times and shares are kept at most: nobody takes them where the engine's statistics are off."""


class SternpostConnector(KVConnectorBase_V1):
    """One instance lives in the scheduler, one in each worker; each has its own half."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = parse_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        support = check_support(vllm_config, vllm_version, v2_model_runner=settings.v2_model_runner)
        support = support if not support.supported else check_groups(kv_cache_config)
        if support.reason is not None and role is KVConnectorRole.SCHEDULER:
            logger.warning("suffix store off, serving as plain vLLM: %s", support.reason)
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self.scheduler_side = SchedulerSide(vllm_config, kv_cache_config, settings, support.reason)
        elif support.supported:
            self.worker_side = WorkerSide(vllm_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """No request waits for KV from elsewhere."""
        return False

    # -- scheduler side -----------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Learn where requests' blocks are found."""
        self._scheduler().kv_cache_manager = kv_cache_manager

    def on_new_request(self, request: Request) -> None:
        """Take a new request into the planner."""
        self._scheduler().add(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Say how many tokens a splice would count as loaded."""
        return self._scheduler().match(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        """The request was admitted; plan its splice."""
        self._scheduler().admit(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Hand the step's operations to the workers."""
        return StepMetadata(self._scheduler().close_step(scheduler_output.num_scheduled_tokens))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Let the request go; its blocks need not be held."""
        self._scheduler().finish(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Forget every tail: the engine's weights or caches were changed in place."""
        self._scheduler().planner.reset()
        return True

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Learn what the workers said when the engine started."""
        self._scheduler().workers_ready(list(metadata.values()))

    # -- worker side --------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Learn the layers and their pages."""
        if self.worker_side is not None:
            self.worker_side.pages = dict(kv_caches)

    def get_handshake_metadata(self) -> WorkerReport | None:
        """Make the worker, and say what memory it has and what stands against reuse."""
        return self.worker_side.prepare() if self.worker_side is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Carry out the step's operations."""
        if self.worker_side is not None:
            metadata = self._get_connector_metadata()
            assert isinstance(metadata, StepMetadata)
            self.worker_side.start(metadata.operations, forward_context.slot_mapping)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are done before the forward begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Builds are kept on their way into the cache."""

    def wait_for_save(self) -> None:
        """The forward is over: close the step."""
        if self.worker_side is not None:
            self.worker_side.end()

    def build_connector_worker_meta(self) -> OutcomeMetadata | None:
        """Tell the scheduler which builds are whole, and which copies failed."""
        return self.worker_side.take_outcome() if self.worker_side is not None else None

    # -- metrics ------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> SuffixStats | None:
        """Return what was counted since the last call, on either side."""
        side = self.scheduler_side or self.worker_side
        return side.take_stats() if side is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> SuffixStats:
        """Rebuild stats that were sent to another process."""
        return SuffixStats(data=data or empty_data())

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> SuffixMetrics:
        """Register the suffix store's metrics."""
        return SuffixMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _scheduler(self) -> SchedulerSide:
        assert self.scheduler_side is not None, "called on the scheduler's connector"
        return self.scheduler_side


NO_ROOM = Room(tokens=0, rows=0, tokens_max=0, rows_max=0)
"""Under a scheduler that lets nothing ride along."""


class RidingScheduler(Protocol):
    """What the scheduler's side needs of the scheduler."""

    def room(self) -> Room:
        """Return what is left in the step that is being scheduled."""

    def take_room(self, splice: Splice) -> None:
        """Take the room of a splice's rows."""

    def ask_probe(self) -> None:
        """Add the self-test's next request, if there is one."""


class SchedulerSide:
    """The planner, and the requests that it follows."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, settings: EngineSettings, refusal: str | None = None
    ) -> None:
        supported = refusal is None
        groups = kv_cache_config.kv_cache_groups if supported else ()
        size = sum(_layer_bytes(group.kv_cache_spec) * len(group.layer_names) for group in groups)
        clock = SystemClock()
        index = SuffixIndex(
            # Where no bytes are given, the workers say what is free before the first request comes.
            budget_bytes=settings.pool_bytes,
            bytes_per_token=max(size, 1),
            clock=clock,
            buckets=settings.buckets,
        )
        limits = Limits(
            tail_tokens_min=settings.tail_tokens_min,
            tail_tokens_max=min(settings.tail_tokens_max, index.tokens_max),
            tail_share_min=settings.tail_share_min,
            positions_max=_positions_max(vllm_config),
            # The V2 runner counts each request's tokens on the device, and would not see the jump.
            long_middles=not vllm_config.use_v2_model_runner,
        )
        reading = read_language(vllm_config, settings) if supported else None
        self.planner = TailPlanner(
            index,
            limits,
            engine=describe_engine(vllm_config),
            start=vllm_config.instance_id,
            clock=clock,
            supported=supported,
            calibrator=reading.calibrator if reading is not None else None,
            marker=reading.marker if reading is not None else None,
        )
        self.hashes = BlockHashes()
        self._clock = clock
        self._refusal = refusal
        self.kv_cache_manager: Any = None
        self.scheduler: RidingScheduler | None = None
        self._settings = settings
        self._tokens_max = vllm_config.model_config.max_model_len
        test = SelfTest(
            vocabulary=vllm_config.model_config.get_vocab_size(),
            tail_tokens=tail_tokens_for(limits.tail_tokens_min, self._tokens_max),
        )
        self._self_test = SelfTestRun(test, self.planner)
        self._lockstep = vllm_config.parallel_config.data_parallel_size > 1
        self.adapters = AdapterDigests()
        self._workers = vllm_config.parallel_config.tensor_parallel_size
        self._requests: dict[str, Request] = {}
        self._deltas = CounterDeltas()
        self._tokens = {"prefix": 0, "suffix": 0, "computed": 0}
        self._match_seconds: deque[float] = deque(maxlen=OBSERVATIONS_MAX)
        self._hit_shares: deque[float] = deque(maxlen=OBSERVATIONS_MAX)

    def workers_ready(self, reports: Sequence[WorkerReport]) -> None:
        """Take what the workers said when the engine started: their free memory, and their refusals."""
        refusal = next((report.refusal for report in reports if report.refusal is not None), None)
        if not all(report.shifts_positions for report in reports):
            self.planner.refuse_anchors()
        budget = pool_budget(self._settings, reports)
        self.planner.index.resize(budget)
        logger.info("suffix store: %d bytes on each worker", budget)
        if refusal is not None:
            self._refuse(refusal)
        elif self._self_test.tokens > self._tokens_max:
            self._refuse(f"--max-model-len {self._tokens_max} has no room for the shortest tail")
        elif self.scheduler is not None and self.planner.supported and not self._lockstep:
            # Engines that compute in lockstep wait for each other, and take requests of clients alone.
            self._self_test.begin()
            self.scheduler.ask_probe()

    def take_probe(self) -> Probe | None:
        """Return the self-test's next request, once."""
        return self._self_test.take_probe()

    def add(self, request: Request) -> None:
        """Take a request; a build computes its whole tail, so it reads no prefix blocks."""
        self._requests[request.request_id] = request
        if self.planner.add(self._self_test.disguise(facts_of(request, self.adapters))):
            request.skip_reading_prefix_cache = True

    def open_space(self, request: Request, exact_hit: int, block_tokens: int) -> bool:
        """Give the request's approximate blocks hashes of their own; whether there are any to look up."""
        space = self.planner.open_space(request.request_id, exact_hit)
        if space is None:
            return False
        entered = self.hashes.enter(request, space, block_tokens)
        if not entered:
            self.planner.close_space(request.request_id)
        return entered

    def match(self, request: Request, hit: int) -> int | None:
        """Ask the planner how the request goes on; one that is computed exactly has the ordinary hashes."""
        began = time.perf_counter()
        if request.num_preemptions and request.prefill_stats is not None:
            # vLLM counts a request's first admission alone, which this one did not live to profit from.
            request.prefill_stats.set(request.num_prompt_tokens, min(hit, request.num_prompt_tokens), 0)
        room = self.scheduler.room() if self.scheduler is not None else NO_ROOM
        tokens = self.planner.match(request.request_id, hit, room)
        if not self.planner.in_space(request.request_id):
            self.hashes.leave(request)
        self._match_seconds.append(time.perf_counter() - began)
        return tokens

    def admit(self, request: Request, loaded: int) -> None:
        """Plan the splice of an admitted read of which vLLM counts so many tokens as loaded."""
        self.take(request, self.planner.admit(request.request_id, loaded))
        if not self.planner.in_space(request.request_id):
            self.hashes.leave(request)

    def resume(self, request: Request, room: Room) -> Splice | None:
        """Plan the splice of a read that runs in chunks, when what is left of its middle fits."""
        admission = self.planner.resume(request.request_id, request.num_computed_tokens, room)
        self.take(request, admission)
        if not self.planner.in_space(request.request_id):
            self.hashes.leave(request)
        return admission.splice if admission is not None else None

    def take(self, request: Request, admission: Admission | None) -> None:
        """Take a splice's room, and count the prompt's tokens by source as they are."""
        if admission is None:
            return
        if request.prefill_stats is not None:
            request.prefill_stats.set(
                request.num_prompt_tokens, admission.prefix_tokens, admission.suffix_tokens
            )
        if admission.splice is not None:
            assert self.scheduler is not None, "a read is spliced by a scheduler that lets middles ride along"
            self.scheduler.take_room(admission.splice)
            self._self_test.admitted(request.request_id)

    def close_step(self, scheduled: Mapping[str, int]) -> Operations:
        """Return the step's operations."""
        runs = [
            (request_id, self._requests[request_id].num_computed_tokens, count)
            for request_id, count in scheduled.items()
            if request_id in self._requests
        ]
        return self._self_test.with_comparison(self.planner.close_step(runs, self._blocks), runs)

    def answer(self, outcome: OutcomeMetadata) -> None:
        """Pass on what the workers did: a tail is live when every worker holds it."""
        for built in outcome.failed:
            self._settle(built, whole=False)
        for built, workers in outcome.completed.items():
            self._settle(built, whole=workers == self._workers)

    def _settle(self, built: Built, *, whole: bool) -> None:
        if self._self_test.settle(built, whole=whole):
            return
        if whole:
            self.planner.completed(built)
        else:
            self.planner.failed(built)

    def step_done(self, splices: Sequence[Splice]) -> None:
        """The step's output has been processed."""
        self.planner.step_done(splices)

    def count_tokens(self, prefix: int, suffix: int, computed: int) -> None:
        """Count a request's prompt tokens by source."""
        self._tokens["prefix"] += prefix
        self._tokens["suffix"] += suffix
        self._tokens["computed"] += computed
        if suffix:
            self._hit_shares.append(suffix / (prefix + suffix + computed))

    def finish(self, request_id: str) -> None:
        """Forget a request."""
        self._requests.pop(request_id, None)
        self.hashes.forget(request_id)
        reason = self.planner.reason(request_id)
        self.planner.finish(request_id)
        self._self_test.finished(request_id, reason)
        refusal = self._self_test.refusal
        if refusal is not None and self.planner.supported:
            self._refuse(refusal)

    def _refuse(self, refusal: str) -> None:
        logger.warning("suffix store off, serving as plain vLLM: %s", refusal)
        self._refusal = refusal
        self.planner.refuse()

    def describe_pool(self) -> dict[str, Any]:
        """Describe the store as a whole, with what stands against its use."""
        return {
            **describe_pool(self.planner.index),
            "reason": self._refusal,
            "self_test": self._self_test.verdict.value,
            "modes": [
                mode.value for mode in Mode if mode is Mode.ROTATE or self.planner.limits.positions_max
            ],
        }

    def describe_tails(self) -> dict[str, Any]:
        """List the held tails."""
        return describe_tails(self.planner.index, self._clock.monotonic())

    def take_stats(self) -> SuffixStats:
        """Return what was counted since the last call."""
        index = self.planner.index
        observed = {
            "match_seconds": list(self._match_seconds),
            "hit_kv_share": list(self._hit_shares),
            "lock_wait_seconds": index.take_waits(),
        }
        self._match_seconds.clear()
        self._hit_shares.clear()
        data = {
            "counters": self._deltas.take(counters_of(self.planner, self._tokens)),
            "gauges": gauges_of(index, supported=self.planner.supported),
            "observations": {name: values for name, values in observed.items() if values},
        }
        return SuffixStats(data=data)

    def _blocks(self, request_id: str) -> Sequence[int]:
        blocks: Sequence[int] = self.kv_cache_manager.get_block_ids(request_id)[0]
        return blocks


class WorkerSide:
    """The worker that holds the tensors, made when the first step tells its layers."""

    def __init__(self, vllm_config: Any) -> None:
        self.pages: dict[str, torch.Tensor] = {}
        self._modules: Mapping[str, Any] = vllm_config.compilation_config.static_forward_context
        self._block_size = vllm_config.cache_config.block_size
        self._dtype = vllm_config.model_config.dtype
        self._worker: SuffixWorker | None = None
        self._not_copied: set[str] = set()
        self._outcome = Outcome()
        self._copy_seconds: list[float] = []

    def prepare(self) -> WorkerReport:
        """Make the worker before the first request; report its memory, or why it cannot be made."""
        try:
            self._worker = make_worker(
                self.pages,
                self._modules,
                dtype=self._dtype,
                block_size=self._block_size,
                logger=logger,
            )
        except UnsupportedModelError as error:
            return report_of(self.pages, refusal=str(error))
        return report_of(self.pages, shifts_positions=self._worker.shifts_positions)

    def start(self, operations: Operations, slot_mapping: Mapping[str, torch.Tensor]) -> None:
        """Carry out what comes before the forward, which writes each layer's tokens to these slots."""
        if operations == Operations():
            return
        assert self._worker is not None, "a refused worker is told nothing"
        copied = self._worker.start(operations)
        if operations.shifts:
            self._worker.shift(operations.shifts, slot_mapping)
        if operations.loads:
            self._copy_seconds.append(copied.seconds)
        self._not_copied.update(copied.failed)

    def end(self) -> None:
        """Close the step."""
        if self._worker is not None:
            self._outcome = self._worker.end()

    def take_outcome(self) -> OutcomeMetadata | None:
        """Return this step's outcome, or None when it built nothing and no copy failed."""
        outcome, self._outcome = self._outcome, Outcome()
        not_copied, self._not_copied = self._not_copied, set()
        if not outcome.completed and not outcome.failed and not not_copied:
            return None
        return OutcomeMetadata(dict.fromkeys(outcome.completed, 1), set(outcome.failed), not_copied)

    def take_stats(self) -> SuffixStats | None:
        """Return the copies' times since the last call."""
        seconds, self._copy_seconds = self._copy_seconds, []
        if not seconds:
            return None
        return SuffixStats(data={**empty_data(), "observations": {"copy_seconds": seconds}})


def _positions_max(vllm_config: Any) -> int:
    """
    How far an anchored tail may reach.

    Nowhere where whole forwards are replayed, for they call nothing, and nowhere under the V2 runner, which
    makes positions on the device.
    """
    if vllm_config.use_v2_model_runner or vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return 0
    length: int = vllm_config.model_config.max_model_len
    return length


def _layer_bytes(spec: Any) -> int:
    value_dim = getattr(spec, "head_size_v", None) or spec.head_size
    return bytes_per_token([LayerShape(spec.num_kv_heads, spec.head_size, value_dim, spec.dtype)])
