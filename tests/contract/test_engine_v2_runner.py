"""vLLM's V2 model runner, read by its own code: what rows that ride along are to it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"

PROMPT = list(range(50))
"""A request of 50 tokens: 4 are cached, the middle ends at 14, the copied part of the tail at 48."""

HIT, MIDDLE_END, OWN_FIRST = 4, 14, 48


class Staged:
    """An array that V2 writes to by element, as its device arrays are."""

    def __init__(self, size: int) -> None:
        self.np = numpy.zeros(size, dtype=numpy.int32)

    def stage_write_elem(self, index: int, value: int) -> None:
        """Write one element."""
        self.np[index] = value

    def stage_write(self, index: int, start: int, values: Sequence[int]) -> None:
        """Write a row, of which this keeps the length alone."""
        self.np[index] = start + len(values)


def request_states(size: int = 4) -> Any:
    """Return V2's own table of requests, over arrays of the host."""
    states_class = import_object("vllm.v1.worker.gpu.states:RequestState")
    states = states_class.__new__(states_class)
    states.req_id_to_index, states.index_to_req_id = {}, {}
    states.free_indices = list(range(size))
    for name in ("prompt_len", "prefill_len", "total_len", "all_token_ids", "num_computed_tokens"):
        setattr(states, name, Staged(size))
    for name in ("max_seq_len", "num_computed_prefill_tokens", "num_computed_tokens_np"):
        setattr(states, name, numpy.zeros(size, dtype=numpy.int32))
    states.draft_tokens = import_object("torch").zeros(size, 1)
    return states


def new_request(request_id: str, end: int, first: int) -> Any:
    """Return a row as the scheduler hands it out: its tokens end one behind it, so that it is not sampled."""
    new_class = import_object("vllm.v1.core.sched.output:NewRequestData")
    return new_class(
        req_id=request_id,
        prompt_token_ids=PROMPT[:end],
        prefill_token_ids=PROMPT[:end],
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        block_ids=([0, 1, 2, 3],),
        num_computed_tokens=first,
        lora_request=None,
    )


def added(*rows: Any) -> Any:
    """Return V2's table after it has taken these new rows."""
    states = request_states()
    for row in rows:
        states.add_request(row.req_id, row.prompt_len, row.prefill_token_ids, row.num_computed_tokens, 1)
    return states


def batch_of(states: Any, counts: dict[str, int]) -> Any:
    """Return what V2 makes of a step with so many tokens of each request."""
    runner = SimpleNamespace(req_states=states, decode_query_len=1, use_pp=False, pcp_manager=None)
    step = SimpleNamespace(
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens={},
    )
    return import_object(f"{RUNNER}.gather_batch_req_state")(runner, step, False)[0]


def test_row_that_rides_along_is_never_sampled() -> None:
    """It ends one token short of what V2 takes for its prompt; the request's own row ends with its prompt."""
    states = added(new_request("read#row", MIDDLE_END + 1, HIT), new_request("read", len(PROMPT), OWN_FIRST))
    batch = batch_of(states, {"read#row": MIDDLE_END - HIT, "read": len(PROMPT) - OWN_FIRST})

    ends = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
    sampled = dict(zip(batch.req_ids, (ends >= batch.prefill_len_np).tolist(), strict=True))
    assert {"read#row": False, "read": True} == sampled
    assert batch.is_prefilling_np.all()


def test_row_cut_like_the_whole_request_would_be_sampled_or_refused() -> None:
    """V2 takes no prompt that is longer than its prefill, and none that is missing."""
    row = new_request("read#row", MIDDLE_END + 1, HIT)
    row.prefill_token_ids = PROMPT[:MIDDLE_END]

    with pytest.raises(AssertionError, match="prefill_len"):
        added(row)
    assert "assert new_req_data.prefill_token_ids is not None" in inspect.getsource(
        import_object(f"{RUNNER}.add_requests")
    )


def test_rows_are_forgotten_when_they_are_reported_finished() -> None:
    """As any request, so that the next step has their places."""
    states = added(new_request("read#row", MIDDLE_END + 1, HIT))

    assert None is not states.remove_request("read#row")
    assert ([], 4) == (list(states.req_id_to_index), len(states.free_indices))


def test_new_rows_are_taken_before_loads_and_loads_before_the_forward() -> None:
    """Where the step says that loads are to be waited for, as ours do."""
    step = inspect.getsource(import_object(f"{RUNNER}.execute_model"))
    order = [
        step.index(text)
        for text in (
            "self.finish_requests(",
            "self.add_requests(",
            "self.kv_connector.pre_forward(",
            "self.cudagraph_manager.run_fullgraph(",
            "self.kv_connector.finish_forward(",
        )
    ]
    before = inspect.getsource(import_object("vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.pre_forward"))

    assert sorted(order) == order
    assert "if scheduler_output.has_sync_kv_loads:" in before


def test_running_requests_counter_on_the_device_is_not_set_by_the_scheduler() -> None:
    """So a running request cannot jump over a tail: under this runner long middles are computed exactly."""
    update = inspect.getsource(import_object(f"{RUNNER}.update_requests"))

    assert "num_computed_tokens_np[req_index] = num_computed_tokens" in update
    assert "num_computed_tokens.stage_write" not in update
