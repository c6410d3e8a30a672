"""
vLLM's scheduler with the middle as a second row.

Five things, and no more, differ from vLLM's own: room is kept in a step for rows that ride along, the rows
are added to what vLLM scheduled, blocks past a request's exact part are kept out of the prefix store, samples
for calibration are computed when the engine is idle, and each request's counts and reason are reported with
its first output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus

from sternpost_core.hint import HINT_FIELD, Reason, Report
from sternpost_engine.connector import NO_ROOM, OutcomeMetadata, SchedulerSide, SternpostConnector
from sternpost_engine.operations import Splice
from sternpost_engine.planner import OWN_ROWS, SAMPLE_PREFIX, Room

ORDINARY_SHARE_MIN: Final = 0.25
"""The share of a step's tokens that stays with ordinary rows, whatever rides along."""

ORDINARY_TOKENS_SPARE: Final = 64
"""Tokens kept for the last tokens of requests admitted in the step, beside one per running row."""

SAMPLE_TOKENS_MAX: Final = 512
"""So many tokens of a calibration's sample are computed in one step."""

SAMPLE_USAGE_MAX: Final = 0.8
"""Over this usage of the KV cache a waiting sample gives its blocks back."""

ROW_MARK: Final = "#sternpost-row-"
"""Marks the id of a row that rides along; no request of a client can have it, for vLLM makes the ids."""


class SternpostScheduler(AsyncScheduler):
    """Schedules as vLLM does, and lets middles ride along."""

    max_num_scheduled_tokens: int
    max_num_active_reqs: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.connector, SternpostConnector), "--kv-transfer-config names SternpostConnector"
        assert self.connector.scheduler_side is not None
        self._side: SchedulerSide = self.connector.scheduler_side
        self._tokens_full = self.max_num_scheduled_tokens
        self._active_full = self.max_num_active_reqs
        self._extra_rows = 0
        self._room = NO_ROOM
        self._sample_id = ""
        self._sample_yields = True
        self._splices: dict[int, tuple[Splice, ...]] = {}
        self._engine_id: str = self.vllm_config.instance_id
        self._side.scheduler = self
        self._keep_approximate_out()

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Schedule one step, with room for the middles of waiting reads."""
        held = self._hold_sample()
        self._extra_rows = 0
        self._room = self._make_room()
        self.max_num_scheduled_tokens = self._tokens_for_step(sample_held=bool(held))
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self.running.extend(held)
            self.max_num_scheduled_tokens = self._tokens_full
            self.max_num_active_reqs = self._active_full
        if held and output.total_num_scheduled_tokens == 0:
            # Others wait and none was admitted: the blocks that they lack may be the sample's.
            self._give_sample_up()
        return output

    def room(self) -> Room:
        """Return what is left in the step; rows are counted anew, because vLLM admits others meanwhile."""
        return replace(self._room, rows=self._rows_left())

    def take_room(self, splice: Splice) -> None:
        """Take a splice's tokens and rows; vLLM must not give the rows to others in this step."""
        tokens = splice.middle_tokens + splice.matched_tokens
        self._room = replace(self._room, tokens=self._room.tokens - tokens)
        self._extra_rows += len(splice.rows)
        self.max_num_active_reqs = min(self._active_full, self.max_num_running_reqs - self._extra_rows)

    def _build_kv_connector_meta(self, connector: Any, scheduler_output: Any) -> Any:
        """Take the step's splices before the connector closes the step."""
        splices = self._side.planner.take_splices()
        metadata = super()._build_kv_connector_meta(connector, scheduler_output)
        if splices:
            self._splices[id(scheduler_output)] = splices
        if metadata.operations.captures:
            # The workers hook the cache update before the forward, so the step's start must precede it.
            scheduler_output.has_sync_kv_loads = True
        return metadata

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Let vLLM advance its own requests, then add the rows that it need not know of."""
        super()._update_after_schedule(scheduler_output)
        for splice in self._splices.get(id(scheduler_output), ()):
            self._ride_along(scheduler_output, splice)
            self._correct_counts(splice)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        """Pass on what the workers did, let vLLM process the step, and add the reports."""
        connector_output = model_runner_output.kv_connector_output
        splices = self._splices.pop(id(scheduler_output), ())
        if connector_output is not None:
            if isinstance(connector_output.kv_connector_worker_meta, OutcomeMetadata):
                self._side.answer(connector_output.kv_connector_worker_meta)
            if connector_output.invalid_block_ids:
                self._copies_failed(splices, connector_output.invalid_block_ids)
        reasons = {
            request_id: self._side.planner.reason(request_id)
            for request_id in scheduler_output.num_scheduled_tokens
        }
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        self._side.step_done(splices)
        self._calibrate()
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                self._report(output, reasons)
        return outputs

    # -- room -----------------------------------------------------------------------------------------------

    def _make_room(self) -> Room:
        running = len(self.running)
        ordinary = max(int(self._tokens_full * ORDINARY_SHARE_MIN), running + ORDINARY_TOKENS_SPARE)
        most = max(self._tokens_full - ordinary, 0)
        rows = self._rows_left()
        return Room(
            tokens=min(self._wanted(rows), most),
            rows=rows,
            tokens_max=most,
            rows_max=self.max_num_running_reqs,
        )

    def _rows_left(self) -> int:
        return int(self.max_num_running_reqs) - len(self.running) - self._extra_rows

    def _wanted(self, rows: int) -> int:
        """How many tokens the waiting reads want to let ride along, as far as there are rows for them."""
        wanted = 0
        for request in self.waiting:
            if rows < OWN_ROWS:
                break
            tokens = self._side.planner.pending_middle(request.request_id)
            wanted += tokens
            rows -= OWN_ROWS if tokens else 1
        return wanted

    # -- the extra rows -------------------------------------------------------------------------------------

    def _ride_along(self, scheduler_output: Any, splice: Splice) -> None:
        """
        Add the rows of the middle and of the matched runs: partial prefills over the request's own blocks.

        Each is a new request to the worker, never sampled, and reported finished with the next step; nothing
        depends on rewinding or jumping a counter of the request itself.
        """
        own = next(new for new in scheduler_output.scheduled_new_reqs if new.req_id == splice.request_id)
        for number, (first, end) in enumerate(splice.rows):
            row_id = f"{splice.request_id}{ROW_MARK}{number}"
            tokens = own.prompt_token_ids[: end + 1]
            row = replace(
                own,
                req_id=row_id,
                prompt_token_ids=tokens,
                prefill_token_ids=None if own.prefill_token_ids is None else list(tokens),
                sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                block_ids=tuple(list(blocks) for blocks in own.block_ids),
                num_computed_tokens=first,
            )
            scheduler_output.scheduled_new_reqs.insert(0, row)
            scheduler_output.num_scheduled_tokens[row_id] = end - first
            scheduler_output.total_num_scheduled_tokens += end - first
            self.finished_req_ids.add(row_id)

    def _correct_counts(self, splice: Splice) -> None:
        """Take what the extra rows compute out of what vLLM counted as loaded."""
        request = self.requests[splice.request_id]
        if request.prefill_stats is not None:
            request.prefill_stats.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=splice.hit,
                num_external_cached_tokens=splice.suffix_tokens,
            )
        stats = self.connector_prefix_cache_stats
        if stats is not None:
            computed = splice.middle_tokens + splice.matched_tokens
            stats.hits -= computed
            for source in stats.hits_by_source:
                stats.hits_by_source[source] -= computed
                break

    # -- isolation ------------------------------------------------------------------------------------------

    def _keep_approximate_out(self) -> None:
        """Register no block past a request's exact part under the hash of its tokens."""
        coordinator, planner = self.kv_cache_manager.coordinator, self._side.planner
        cache_blocks = coordinator.cache_blocks

        def cache_exact_blocks(request: Any, num_computed_tokens: int) -> None:
            exact = planner.exact_tokens(request.request_id)
            cache_blocks(request, num_computed_tokens if exact is None else min(num_computed_tokens, exact))

        coordinator.cache_blocks = cache_exact_blocks

    # -- calibration ----------------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        """Schedule a calibration's next sample, when nothing else wants the engine."""
        idle = not self.running and not self.waiting
        taken = self._side.planner.next_sample(idle=idle)
        if taken is None:
            return
        request_id, sample = taken
        self._sample_id, self._sample_yields = request_id, idle
        self.add_request(
            Request(
                request_id=request_id,
                prompt_token_ids=list(sample.prompt),
                sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                pooling_params=None,
                lora_request=sample.lora,
            )
        )

    def _hold_sample(self) -> list[Request]:
        """
        Keep the sample out of a step that others want: a request may go unscheduled for any number of steps.

        One that holds blocks while blocks are scarce is given up.
        """
        sample = self.requests.get(self._sample_id)
        if sample is None or not self._sample_yields or sample not in self.running or self._alone():
            return []
        if self.kv_cache_manager.usage > SAMPLE_USAGE_MAX:
            self._give_sample_up()
            return []
        self.running.remove(sample)
        return [sample]

    def _give_sample_up(self) -> None:
        self.finish_requests(self._sample_id, RequestStatus.FINISHED_ABORTED)

    def _alone(self) -> bool:
        """Whether the sample, running or about to, is all that the engine has to do."""
        return len(self.running) + len(self.waiting) == 1

    def _tokens_for_step(self, *, sample_held: bool) -> int:
        """A sample alone runs in short steps, because whoever arrives meanwhile waits for the step's end."""
        if not sample_held and self._sample_id in self.requests and self._alone():
            return min(self._tokens_full, SAMPLE_TOKENS_MAX)
        return self._tokens_full - self._room.tokens

    # -- answers --------------------------------------------------------------------------------------------

    def _copies_failed(self, splices: tuple[Splice, ...], invalid: set[int]) -> None:
        for splice in splices:
            request = self.requests.get(splice.request_id)
            if request is None or not invalid.intersection(
                self.kv_cache_manager.get_block_ids(splice.request_id)[0]
            ):
                continue
            self._side.planner.copy_failed(splice.request_id)
            if request.prefill_stats is not None:
                request.prefill_stats.set(request.num_prompt_tokens, splice.hit, 0)

    def _report(self, output: Any, reasons: dict[str, Reason]) -> None:
        stats = output.prefill_stats
        if stats is None or output.request_id.startswith(SAMPLE_PREFIX):
            return
        prefix, suffix = stats.num_local_cached_tokens, stats.num_external_cached_tokens
        report = Report(
            prefix_tokens=prefix,
            suffix_tokens=suffix,
            computed_tokens=stats.num_prompt_tokens - prefix - suffix,
            reason=reasons.get(output.request_id, Reason.NOT_ASKED),
            engine=self._engine_id,
        )
        self._side.count_tokens(prefix, suffix, report.computed_tokens)
        output.kv_transfer_params = {**(output.kv_transfer_params or {}), HINT_FIELD: report.to_mapping()}
