"""What the plugin relies on in vLLM, name by name: each failure says what breaks."""

import inspect
from typing import Any

import pytest

from sternpost_engine.support import VLLM_VERSIONS
from sternpost_fakes.vllm_modules import import_object

pytestmark = pytest.mark.engine

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"
SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"


def parameters(path: str) -> list[str]:
    """Return a function's parameters, without `self`."""
    return [name for name in inspect.signature(import_object(path)).parameters if name != "self"]


def field_names(path: str) -> set[str]:
    """Return the fields of a dataclass or a msgspec structure."""
    kind = import_object(path)
    return set(getattr(kind, "__dataclass_fields__", ())) | set(getattr(kind, "__struct_fields__", ()))


def source(path: str) -> str:
    """Return a function's source."""
    return inspect.getsource(import_object(path))


def test_installed_version_is_one_that_was_tried() -> None:
    """Otherwise the gate refuses, and every test of a splice fails for that reason alone."""
    assert import_object("vllm:__version__").startswith(VLLM_VERSIONS)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("bind_kv_cache_manager", ["kv_cache_manager"]),
        ("on_new_request", ["request"]),
        ("get_num_new_matched_tokens", ["request", "num_computed_tokens"]),
        ("update_state_after_alloc", ["request", "blocks", "num_external_tokens"]),
        ("build_connector_meta", ["scheduler_output"]),
        ("request_finished", ["request", "block_ids"]),
        ("reset_cache", []),
        ("register_kv_caches", ["kv_caches"]),
        ("start_load_kv", ["forward_context", "kwargs"]),
        ("wait_for_layer_load", ["layer_name"]),
        ("save_kv_layer", ["layer_name", "kv_layer", "attn_metadata", "kwargs"]),
        ("wait_for_save", []),
        ("build_connector_worker_meta", []),
        ("get_kv_connector_stats", []),
        ("build_kv_connector_stats", ["data"]),
        ("get_handshake_metadata", []),
        ("set_xfer_handshake_metadata", ["metadata"]),
        ("build_prom_metrics", ["vllm_config", "metric_types", "labelnames", "per_engine_labelvalues"]),
    ],
)
def test_connector_methods_are_vllms(method: str, expected: list[str]) -> None:
    """A method that vLLM does not call by this name and with these arguments is never called."""
    ours = f"sternpost_engine.connector:SternpostConnector.{method}"

    assert expected == parameters(f"{CONNECTOR}.{method}") == parameters(ours)


def test_connector_implements_all_that_vllm_demands() -> None:
    """An abstract method left over stops the engine at its start."""
    assert frozenset() == import_object("sternpost_engine.connector:SternpostConnector").__abstractmethods__


def test_connector_waits_for_no_delivery() -> None:
    """vLLM would hold requests back for KV that never comes."""
    assert isinstance(import_object(f"{CONNECTOR}.requires_kv_delivery"), property)


def test_outcome_implements_all_that_vllm_demands() -> None:
    """Workers' answers are added up by vLLM."""
    assert frozenset() == import_object("sternpost_engine.connector:OutcomeMetadata").__abstractmethods__


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("schedule", ["throttle_prefills"]),
        ("_build_kv_connector_meta", ["connector", "scheduler_output"]),
        ("_update_after_schedule", ["scheduler_output"]),
        ("update_from_output", ["scheduler_output", "model_runner_output"]),
        ("_get_local_prefix_cache_hit", ["request"]),
        ("_reserve_prefill_lookahead", ["request", "num_computed_tokens", "num_new_tokens"]),
    ],
)
def test_scheduler_methods_are_vllms(method: str, expected: list[str]) -> None:
    """An override that vLLM does not call leaves rows out, or references held."""
    ours = f"sternpost_engine.scheduler:SternpostScheduler.{method}"

    assert expected == parameters(f"{SCHEDULER}.{method}") == parameters(ours)


def test_metadata_is_built_before_the_counters_advance() -> None:
    """The connector reads each request's first position of the step from `num_computed_tokens`."""
    text = source("vllm.v1.core.sched.scheduler:Scheduler.schedule")

    assert 0 < text.index("_build_kv_connector_meta(") < text.index("_update_after_schedule(")


def test_chunks_of_waiting_and_of_running_requests_are_bounded() -> None:
    """A long middle's chunk would go on into its tail, and the tail be computed."""
    text = source("vllm.v1.core.sched.scheduler:Scheduler.schedule")

    assert 2 == text.count("self._reserve_prefill_lookahead(")


def test_lookups_go_through_the_overridden_method() -> None:
    """A request's namespace is opened there, before its blocks are looked up."""
    text = source("vllm.v1.core.sched.scheduler:Scheduler.schedule")

    assert (
        0
        < text.index("self._get_local_prefix_cache_hit(request)")
        < text.index("self.connector.get_num_new_matched_tokens(")
        < text.index("self.connector.update_state_after_alloc(")
    )


def test_running_requests_workers_are_told_what_is_computed() -> None:
    """A read that is spliced while it runs jumps over its tail: the runner takes the count as it is."""
    runner = "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states"

    assert "num_computed_tokens.append(req.num_computed_tokens)" in source(
        "vllm.v1.core.sched.scheduler:Scheduler._make_cached_request_data"
    )
    assert "input_batch.num_computed_tokens_cpu[req_index] = num_computed_tokens" in source(runner)


def test_positions_of_anchored_tails_can_be_shifted() -> None:
    """They are passed to the model by name, in a buffer that each step fills anew, before slots are used."""
    runner = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"

    assert "positions=positions" in source(f"{runner}._model_forward")
    assert "self.positions[:total_num_scheduled_tokens] = (" in source(f"{runner}._prepare_inputs")
    assert "slot_mapping" in field_names("vllm.forward_context:ForwardContext")
    assert [] == parameters("vllm.config.compilation:CUDAGraphMode.has_full_cudagraphs")


def test_request_whose_copy_failed_is_preempted_with_what_it_has_in_flight() -> None:
    """Tokens that rest on a failed copy would reach the client."""
    scheduler = "vllm.v1.core.sched.scheduler:Scheduler"

    assert ["request", "timestamp", "drop_stale_output"] == parameters(f"{scheduler}._preempt_request")
    assert "output_is_stale and request.drop_stale_output" in source(f"{scheduler}.update_from_output")
    assert "self.drop_stale_output" in source("vllm.v1.request:Request.__init__")


def test_rows_are_made_of_requests() -> None:
    """As vLLM tells its workers of any new request."""
    maker = "vllm.v1.core.sched.output:NewRequestData.from_request"

    assert ["request", "block_ids"] == parameters(maker)[:2]


@pytest.mark.parametrize(
    "name",
    [
        "max_num_scheduled_tokens",
        "max_num_running_reqs",
        "max_num_active_reqs",
        "running",
        "waiting",
        "requests",
        "finished_req_ids",
        "connector_prefix_cache_stats",
        "defer_block_free",
        "kv_cache_manager",
        "connector",
        "vllm_config",
        "hash_block_size",
        "use_v2_model_runner",
    ],
)
def test_scheduler_has_what_is_read_and_written(name: str) -> None:
    """The room of a step, and the rows that ride along, are kept in these."""
    assert f"self.{name}" in source("vllm.v1.core.sched.scheduler:Scheduler.__init__")


@pytest.mark.parametrize(
    ("path", "used"),
    [
        (
            "vllm.v1.core.sched.output:NewRequestData",
            {
                "req_id",
                "prompt_token_ids",
                "prefill_token_ids",
                "sampling_params",
                "block_ids",
                "num_computed_tokens",
            },
        ),
        (
            "vllm.v1.core.sched.output:SchedulerOutput",
            {
                "scheduled_new_reqs",
                "num_scheduled_tokens",
                "total_num_scheduled_tokens",
                "has_sync_kv_loads",
                "kv_connector_metadata",
            },
        ),
        (
            "vllm.v1.outputs:KVConnectorOutput",
            {"kv_connector_worker_meta"},
        ),
        ("vllm.v1.engine:EngineCoreOutput", {"request_id", "kv_transfer_params", "prefill_stats"}),
        ("vllm.v1.engine:EngineCoreOutputs", {"outputs"}),
        (
            "vllm.v1.metrics.stats:PrefillStats",
            {
                "num_prompt_tokens",
                "num_cached_tokens",
                "num_local_cached_tokens",
                "num_external_cached_tokens",
            },
        ),
        ("vllm.v1.metrics.stats:PrefixCacheStats", {"hits", "hits_by_source"}),
        (
            "vllm.v1.kv_cache_interface:FullAttentionSpec",
            {"num_kv_heads", "head_size", "head_size_v", "dtype"},
        ),
    ],
    ids=lambda value: value.partition(":")[2] if isinstance(value, str) else "",
)
def test_fields_exist(path: str, used: set[str]) -> None:
    """A field that was renamed is read as missing, or written in vain."""
    assert set() == used - field_names(path)


def test_prefill_stats_are_set_by_these_names() -> None:
    """A request's counts would be reported wrongly, or not at all."""
    assert ["num_prompt_tokens", "num_local_cached_tokens", "num_external_cached_tokens"] == parameters(
        "vllm.v1.metrics.stats:PrefillStats.set"
    )


@pytest.mark.parametrize(
    "name",
    [
        "kv_transfer_params",
        "cache_salt",
        "lora_request",
        "pooling_params",
        "sampling_params",
        "prompt_token_ids",
        "prompt_embeds",
        "mm_features",
        "resumable",
        "num_preemptions",
        "skip_reading_prefix_cache",
        "prefill_stats",
        "num_prompt_tokens",
        "num_computed_tokens",
        "block_hashes",
        "status",
        "max_tokens",
    ],
)
def test_request_has_what_the_planner_needs(name: str) -> None:
    """A fact that cannot be read cannot refuse."""
    assert f"self.{name}" in source("vllm.v1.request:Request.__init__")


def test_blocks_are_hashed_in_a_chain_from_the_last_hash() -> None:
    """A namespace is one other hash in the chain, and vLLM's own hashes behind it."""
    hasher = source("vllm.v1.core.kv_cache_utils:get_request_block_hasher")

    assert "len(request.block_hashes) * hash_block_size" in hasher
    assert "request.block_hashes[-1] if request.block_hashes else None" in hasher
    assert [] == parameters("vllm.v1.request:Request.update_block_hashes")


def test_request_takes_what_a_sample_gives() -> None:
    """A calibration's request is made by the scheduler itself."""
    given = ["request_id", "prompt_token_ids", "sampling_params", "pooling_params", "lora_request"]

    assert set(given) <= set(parameters("vllm.v1.request:Request"))
    assert {"temperature", "max_tokens"} <= set(parameters("vllm.sampling_params:SamplingParams"))


def test_samples_are_added_and_given_up_by_these_methods() -> None:
    """A sample that could not be given up would keep its blocks from others."""
    scheduler = "vllm.v1.core.sched.scheduler:Scheduler"

    assert ["request"] == parameters(f"{scheduler}.add_request")
    assert ["request_ids", "finished_status"] == parameters(f"{scheduler}.finish_requests")
    assert import_object("vllm.v1.request:RequestStatus").FINISHED_ABORTED
    assert isinstance(import_object("vllm.v1.core.kv_cache_manager:KVCacheManager.usage"), property)


def test_rows_that_ride_along_are_kept_from_others() -> None:
    """vLLM asks this limit before each admission, and never runs more than the other one."""
    text = source("vllm.v1.core.sched.scheduler:Scheduler.schedule")

    assert "num_running >= self.max_num_active_reqs" in text
    assert "len(self.running) <= self.max_num_running_reqs" in text


def test_waiting_requests_are_counted_and_looked_through() -> None:
    """The room of a step is made for those that wait."""
    queue = import_object("vllm.v1.core.sched.request_queue:RequestQueue")

    assert {"__len__", "__iter__"} <= set(dir(queue))


def test_tokenizer_is_found_by_the_models_configuration() -> None:
    """Without it tails are neither calibrated nor matched."""
    assert "model_config" == parameters("vllm.tokenizers:cached_tokenizer_from_config")[0]
    assert "model_config.skip_tokenizer_init" in source("vllm.tokenizers:cached_tokenizer_from_config")


@pytest.mark.parametrize(
    "method", ["encode", "decode", "apply_chat_template", "convert_ids_to_tokens", "all_special_ids"]
)
def test_tokenizer_has_what_words_and_middles_need(method: str) -> None:
    """Each is called with one text, one token, or one conversation."""
    assert method in dir(import_object("transformers:PreTrainedTokenizerFast"))


def test_builds_compute_their_whole_tail() -> None:
    """`skip_reading_prefix_cache` keeps a build from reading blocks that it would then not capture."""
    assert "not request.skip_reading_prefix_cache" in source(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.prefix_cache_lookup_enabled"
    )


def test_prefix_store_registers_through_the_coordinator() -> None:
    """What keeps approximate blocks out of the prefix store wraps this one method of the instance."""
    assert ["request", "num_computed_tokens"] == parameters(
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator.cache_blocks"
    )
    assert "coordinator.cache_blocks(" in source("vllm.v1.core.kv_cache_manager:KVCacheManager.cache_blocks")


def test_blocks_of_a_request_are_found_by_its_id() -> None:
    """Loads and captures would have no slots."""
    assert ["request_id"] == parameters("vllm.v1.core.kv_cache_manager:KVCacheManager.get_block_ids")


def test_cache_update_takes_five_arguments() -> None:
    """Tails are written through it, and builds are kept on their way into it."""
    assert ["layer", "key", "value", "kv_cache", "slot_mapping"] == parameters(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackendImpl.do_kv_cache_update"
    )


def test_cache_update_is_looked_up_on_the_layers_backend() -> None:
    """The hook is an attribute of that object; a bound method kept elsewhere would pass it by."""
    assert "attn_layer.impl.do_kv_cache_update(" in source(
        "vllm.model_executor.layers.attention.attention:unified_kv_cache_update"
    )


def test_rotary_modules_are_found_and_read() -> None:
    """The angles of stored keys come from the model's own module."""
    assert isinstance(import_object("vllm.model_executor.layers.rotary_embedding:_ROPE_DICT"), dict)
    assert [] == parameters(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbeddingBase._compute_cos_sin_cache"
    )
    assert "self.is_neox_style" in source(
        "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbeddingBase.__init__"
    )


def test_usage_details_keep_more_fields() -> None:
    """The report would be dropped from the answer, or the answer refused."""
    details: Any = import_object("vllm.entrypoints.serve.engine.protocol:PromptTokenUsageInfo")

    assert {"hit": 1} == details(cached_tokens=3, sternpost={"hit": 1}).model_dump()["sternpost"]


def test_outputs_are_processed_where_reports_are_carried() -> None:
    """The wrapper takes the outputs first and passes the rest on."""
    assert (
        "engine_core_outputs"
        == parameters("vllm.v1.engine.output_processor:OutputProcessor.process_outputs")[0]
    )


def test_metrics_are_made_of_these_types() -> None:
    """The suffix store's figures are registered with the types that vLLM hands over."""
    text = source("vllm.distributed.kv_transfer.kv_connector.v1.metrics:KVConnectorPromMetrics.__init__")

    for name in ("_gauge_cls", "_counter_cls", "_histogram_cls", "_labelnames", "per_engine_labelvalues"):
        assert f"self.{name} = " in text


def test_workers_are_asked_before_the_first_request() -> None:
    """Their memory and their refusals must be known when the first hint comes."""
    text = source("vllm.v1.engine.core:EngineCore.__init__")

    assert text.index("Scheduler(") < text.index("set_xfer_handshake_metadata_pp_aware(")
    assert "connector.get_handshake_metadata()" in source(
        "vllm.v1.worker.gpu_worker:Worker.get_kv_connector_handshake_metadata"
    )


def test_engine_core_is_called_by_a_methods_name() -> None:
    """What the store holds is asked for so."""
    assert "getattr(self, method_name)" in source("vllm.v1.engine.core:EngineCoreProc._handle_client_request")
    assert ["method", "args"] == parameters("vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async")
    assert "get_kv_connector" in dir(import_object(SCHEDULER))
    assert "self.engine_core = " in source("vllm.v1.engine.async_llm:AsyncLLM.__init__")
    # A call that is given up after its time must not end the client when its answer comes.
    assert "except asyncio.InvalidStateError" in source("vllm.v1.engine.core_client:_process_utility_output")


def test_engine_core_asks_before_each_step_whether_it_ends() -> None:
    """An engine would drain for as long as there are tails to calibrate."""
    text = source("vllm.v1.engine.core:EngineCoreProc._handle_shutdown")

    assert "not self.has_work()" in text
    assert "while self._handle_shutdown()" in source("vllm.v1.engine.core:EngineCoreProc")
    assert [] == parameters("vllm.v1.engine.core:EngineCoreProc.is_running")


def test_gate_sees_what_splits_a_forward_and_what_asks_for_every_token() -> None:
    """What is read by another name would be let in."""
    ubatching: Any = import_object("vllm.config:ParallelConfig.use_ubatching")

    assert "self.enable_dbo or self.ubatch_size > 1" in inspect.getsource(ubatching.fget)
    assert "aux_output_config" in field_names("vllm.config:VllmConfig")
    assert "enabled" in dir(import_object("vllm.config.aux_output:AuxOutputConfig"))


def test_attention_layers_are_known_before_the_forward() -> None:
    """The worker is made of them when the engine starts."""
    compilation: Any = import_object("vllm.config:CompilationConfig")

    assert "static_forward_context" in compilation.__dataclass_fields__


def test_backends_say_where_they_write_their_cache() -> None:
    """One that writes inside attention is refused."""
    backend: Any = import_object("vllm.v1.attention.backend:AttentionBackend")

    assert backend.forward_includes_kv_cache_update is True
    assert not import_object(
        "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend.forward_includes_kv_cache_update"
    )
    assert "attn_backend" in source("vllm.model_executor.layers.attention.attention:Attention.__init__")
