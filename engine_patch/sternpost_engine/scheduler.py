"""
vLLM's scheduler with the middle as a second row.

Six things, and no more, differ from vLLM's own: room is kept in a step for rows that ride along; the rows are
added to what vLLM scheduled; middles that are longer than a step has room for are computed in chunks that
end where the tail begins; blocks past a request's exact part have hashes of their own; samples for
calibration are computed when the engine is idle; and each request's counts and reason are reported with its
first output.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.request import Request, RequestStatus

from sternpost_core.hint import HINT_FIELD, Reason, Report
from sternpost_engine.calibration import Sample
from sternpost_engine.connector import NO_ROOM, SchedulerSide, SternpostConnector
from sternpost_engine.metadata import OutcomeMetadata
from sternpost_engine.operations import ROW_MARK, Built, Splice
from sternpost_engine.planner import SAMPLE_PREFIX
from sternpost_engine.reads import OWN_ROWS
from sternpost_engine.self_test import SELF_TEST_PREFIX
from sternpost_engine.tracks import Room

ORDINARY_SHARE_MIN: Final = 0.25
"""The share of a step's tokens that stays with ordinary rows, whatever rides along."""

ORDINARY_TOKENS_SPARE: Final = 64
"""Tokens kept for the last tokens of requests admitted in the step, beside one per running row."""

SAMPLE_TOKENS_MAX: Final = 512
"""So many tokens of a calibration's sample are computed in one step."""

SAMPLE_USAGE_MAX: Final = 0.8
"""Over this usage of the KV cache a waiting sample gives its blocks back."""


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
        self._resumed: dict[Splice, int] = {}
        self._engine_id: str = self.vllm_config.instance_id
        self._side.scheduler = self
        # vLLM keeps freed blocks from a connector that writes to them whenever it likes. Tails are copied in
        # the order of the steps, as all else is written, so blocks are free at once, as without a connector.
        self.defer_block_free = False
        self._limit_registration()

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Schedule one step, with room for the middles of waiting reads."""
        held = self._hold_sample()
        self._extra_rows = 0
        self._resumed = {}
        self._room = self._make_room()
        self.max_num_scheduled_tokens = self._tokens_for_step(sample_held=bool(held))
        self._resume_splices()
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
        resumed = self._settle_resumed(scheduler_output)
        splices = self._side.planner.take_splices()
        metadata = super()._build_kv_connector_meta(connector, scheduler_output)
        if splices:
            self._splices[id(scheduler_output)] = splices
        if metadata.operations.captures or metadata.operations.shifts or resumed:
            # The workers copy tails, hook the cache update and shift positions before the forward, so the
            # step's start must precede it; vLLM knows that of the loads that it admitted itself.
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
        outcome = _outcome_of(model_runner_output)
        splices = self._splices.pop(id(scheduler_output), ())
        self._side.answer(outcome)
        self._settle_copies(splices, outcome.not_copied)
        reasons = self._reasons(scheduler_output)
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        self._side.step_done(splices)
        self.ask_probe()
        self._calibrate()
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                if output.prefill_stats is not None:
                    self._report(output, reasons)
        return outputs

    def ask_probe(self) -> None:
        """Add the self-test's next request, if there is one."""
        probe = self._side.take_probe()
        if probe is not None:
            sampling = SamplingParams(
                temperature=0.0, max_tokens=1, extra_args={"kv_transfer_params": probe.transfer}
            )
            self.add_request(
                Request(
                    request_id=probe.request_id,
                    prompt_token_ids=list(probe.prompt),
                    sampling_params=sampling,
                    pooling_params=None,
                )
            )

    # -- room -----------------------------------------------------------------------------------------------

    def _make_room(self) -> Room:
        running = len(self.running)
        ordinary = max(int(self._tokens_full * ORDINARY_SHARE_MIN), running + ORDINARY_TOKENS_SPARE)
        most = max(self._tokens_full - ordinary, 0)
        rows = self._rows_left()
        return Room(
            tokens=min(self._wanted(rows, most), most),
            rows=rows,
            tokens_max=most,
            rows_max=self.max_num_running_reqs,
        )

    def _rows_left(self) -> int:
        return int(self.max_num_running_reqs) - len(self.running) - self._extra_rows

    def _wanted(self, rows: int, most: int) -> int:
        """
        How many tokens reads want to let ride along, `most` each, as far as there are rows for them.

        One whose middle is longer gets it computed in ordinary chunks first.
        """
        planner, wanted = self._side.planner, 0
        for request in self.running:
            if planner.chunk_end(request.request_id) is not None and rows >= 1:
                wanted += planner.pending_middle(request.request_id, most, request.num_computed_tokens)
                rows -= 1
        for request in self.waiting:
            if rows < OWN_ROWS:
                break
            tokens = planner.pending_middle(request.request_id, most)
            wanted += tokens
            rows -= OWN_ROWS if tokens else 1
        return wanted

    # -- the extra rows -------------------------------------------------------------------------------------

    def _ride_along(self, scheduler_output: Any, splice: Splice) -> None:
        """
        Add the rows of the middle and of the matched runs: partial prefills over the request's own blocks.

        Each is a new request to the worker, never sampled, and reported finished with the next step; nothing
        depends on rewinding a counter of the request itself.
        """
        request = self.requests[splice.request_id]
        blocks = self.kv_cache_manager.get_block_ids(splice.request_id)
        for number, (first, end) in enumerate(splice.rows):
            row_id = f"{splice.request_id}{ROW_MARK}{number}"
            tokens = request.prompt_token_ids[: end + 1]
            row = replace(
                NewRequestData.from_request(request, tuple(list(ids) for ids in blocks)),
                req_id=row_id,
                prompt_token_ids=tokens,
                prefill_token_ids=list(tokens) if self.use_v2_model_runner else None,
                sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                num_computed_tokens=first,
            )
            scheduler_output.scheduled_new_reqs.insert(0, row)
            scheduler_output.num_scheduled_tokens[row_id] = end - first
            scheduler_output.total_num_scheduled_tokens += end - first
            self.finished_req_ids.add(row_id)

    def _correct_counts(self, splice: Splice) -> None:
        """
        Let vLLM count as loaded what is copied.

        It counted all that it need not compute of a request that it admitted, the extra rows' tokens too,
        and nothing of one that was running. What comes back from a preemption it counts elsewhere.
        """
        request, stats = self.requests[splice.request_id], self.connector_prefix_cache_stats
        if stats is None or request.num_preemptions:
            return
        copied = splice.suffix_tokens - splice.approximate
        more = copied if splice in self._resumed else copied - (splice.copied - splice.hit)
        stats.hits += more
        for source in self.connector.get_external_cache_hit_sources(request, splice.copied - splice.hit):
            stats.hits_by_source[source] = stats.hits_by_source.get(source, 0) + more

    # -- long middles ---------------------------------------------------------------------------------------

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """
        End an ordinary chunk of a long middle where the tail begins: the tail is not computed.

        A build's last chunk has two tokens at least: a step with one token of each request may be replayed as
        a whole CUDA graph, in which nothing can be kept.
        """
        count: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        end = self._side.planner.chunk_end(request.request_id)
        if end is not None:
            return min(count, max(end - num_computed_tokens, 0))
        left = request.num_tokens - num_computed_tokens - count
        return count - 1 if left == 1 < count and self._side.planner.builds(request.request_id) else count

    def _resume_splices(self) -> None:
        """
        Splice the running reads of which little enough of the middle is left.

        vLLM sees a request of which all but the last tokens is computed; it sends that count to the workers
        with every step, so nothing else has to learn of the jump.
        """
        for request in self.running:
            if self._side.planner.chunk_end(request.request_id) is None:
                continue
            computed = request.num_computed_tokens
            splice = self._side.resume(request, self.room())
            if splice is not None:
                self._resumed[splice] = computed
                request.num_computed_tokens = splice.copied

    def _settle_resumed(self, scheduler_output: Any) -> int:
        """Withdraw the splices of running reads that got no place in the step; returns how many did."""
        for splice, computed in list(self._resumed.items()):
            if splice.request_id in scheduler_output.num_scheduled_tokens:
                continue
            del self._resumed[splice]
            self._side.planner.withdraw(splice)
            request = self.requests[splice.request_id]
            if request.prefill_stats is not None:
                # Its tail may be gone when it is asked again; then all of it is computed.
                found = request.prefill_stats.num_local_cached_tokens
                request.prefill_stats.set(request.num_prompt_tokens, found, 0)
            if request.status is RequestStatus.RUNNING:
                request.num_computed_tokens = computed
        return len(self._resumed)

    # -- isolation ------------------------------------------------------------------------------------------

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[Any, int, int, bool]:
        """Look up the request's exact blocks, and behind them the approximate ones that it may read."""
        self._side.hashes.leave(request)
        found: tuple[Any, int, int, bool] = super()._get_local_prefix_cache_hit(request)
        if self._side.open_space(request, found[1], self.hash_block_size):
            found = super()._get_local_prefix_cache_hit(request)
        return found

    def _limit_registration(self) -> None:
        """
        Register no block that holds no KV yet, or approximate KV without a hash of its own.

        vLLM registers blocks when they are allocated. A tail's blocks wait until its copy is known to have
        succeeded, for else another request could read what a failed copy left in them.
        """
        coordinator, planner = self.kv_cache_manager.coordinator, self._side.planner
        cache_blocks = coordinator.cache_blocks

        def cache_limited_blocks(request: Any, num_computed_tokens: int) -> None:
            if request.request_id.startswith(SELF_TEST_PREFIX):
                # The self-test's read must not find its build's blocks; nor need anybody else.
                return
            most = planner.register_max(request.request_id)
            cache_blocks(request, num_computed_tokens if most is None else min(num_computed_tokens, most))

        coordinator.cache_blocks = cache_limited_blocks

    # -- calibration ----------------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        """Schedule a calibration's next sample, when nothing else wants the engine."""
        idle = not self.running and not self.waiting
        taken = self._side.planner.next_sample(idle=idle)
        if taken is None:
            return
        request_id, sample = taken
        if not self._has_adapter(sample):
            # vLLM would load the adapter, and where its files are gone the engine would end.
            self._side.planner.failed(Built(sample.entry, sample.variant))
            self._side.planner.finish(request_id)
            return
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

    def _has_adapter(self, sample: Sample) -> bool:
        """Whether the sample's adapter is still what its tail was built with."""
        record = self._side.planner.index.record(sample.entry)
        found = self._side.adapters.identify(sample.lora)
        return record is not None and found == record.key.identity.lora

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

    def end_samples(self) -> None:
        """The engine was told to end, and waits for its work: give up the sample, and make no more."""
        self._side.planner.end_calibration()
        if self._sample_id in self.requests:
            self._give_sample_up()

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

    def _settle_copies(self, splices: tuple[Splice, ...], failed: set[str]) -> None:
        """Let the blocks of the step's copies be found by others, and begin anew where a copy failed."""
        for splice in splices:
            if splice.request_id not in failed:
                self._side.planner.copied(splice)
                continue
            self._side.planner.copy_failed(splice.request_id)
            request = self.requests.get(splice.request_id)
            if request is not None:
                self._begin_anew(request)

    def _begin_anew(self, request: Request) -> None:
        """
        Preempt a request that ran on what a failed copy left in its blocks.

        What it has in flight rests on that, too, and is thrown away. No other request can have found its
        blocks, for they were not registered.
        """
        request.drop_stale_output = True
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._preempt_request(request, time.monotonic(), drop_stale_output=True)

    def _reasons(self, scheduler_output: Any) -> dict[str, tuple[Reason, str]]:
        """
        Note why the requests whose first output this may be go their way, and whose tails they read.

        Some end in this step.
        """
        planner = self._side.planner
        return {
            request_id: (planner.reason(request_id), planner.owner(request_id))
            for request_id in scheduler_output.num_scheduled_tokens
            if (request := self.requests.get(request_id)) is not None and request.prefill_stats is not None
        }

    def _report(self, output: Any, reasons: dict[str, tuple[Reason, str]]) -> None:
        stats = output.prefill_stats
        if output.request_id.startswith((SAMPLE_PREFIX, SELF_TEST_PREFIX)):
            return
        prefix, suffix = stats.num_local_cached_tokens, stats.num_external_cached_tokens
        reason, owner = reasons.get(output.request_id, (Reason.NOT_ASKED, ""))
        report = Report(
            prefix_tokens=prefix,
            suffix_tokens=suffix,
            computed_tokens=stats.num_prompt_tokens - prefix - suffix,
            reason=reason,
            engine=self._engine_id,
            owner=owner,
        )
        self._side.count_tokens(prefix, suffix, report.computed_tokens)
        output.kv_transfer_params = {**(output.kv_transfer_params or {}), HINT_FIELD: report.to_mapping()}


def _outcome_of(model_runner_output: Any) -> OutcomeMetadata:
    """What the workers say about the step; nothing, where they have nothing to say."""
    connector_output = model_runner_output.kv_connector_output
    meta = connector_output.kv_connector_worker_meta if connector_output is not None else None
    return meta if isinstance(meta, OutcomeMetadata) else OutcomeMetadata({}, set())
