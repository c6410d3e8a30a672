"""
The compatibility gate: which engines may use the suffix store.

Asked once at start, in every process, of the configuration alone, so that all processes agree. A refused
engine serves as plain vLLM, says why in one line, and reports the reason with every hinted request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

VLLM_VERSIONS: Final = ("0.32",)
"""The vLLM releases, as major and minor, that this plugin was read and tried against."""

CONNECTOR_NAME: Final = "SternpostConnector"
"""The connector's name in `--kv-transfer-config`."""

SCHEDULER: Final = "sternpost_engine.scheduler.SternpostScheduler"
"""The scheduler class without which the connector stays idle."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether the suffix store is used, and if not, why."""

    reason: str | None = None

    @property
    def supported(self) -> bool:
        """Whether the suffix store is used."""
        return self.reason is None


def check_support(vllm_config: Any, vllm_version: str, *, v2_model_runner: bool = False) -> Support:
    """
    Decide from vLLM's configuration; `vllm_version` is vLLM's own version string.

    `v2_model_runner` says that the owner wants to try vLLM's V2 model runner.
    """
    refusals = (
        _refuse_version(vllm_version),
        _refuse_scheduler(vllm_config.scheduler_config),
        _refuse_whole_prompts(vllm_config.scheduler_config),
        _refuse_parallel(vllm_config.parallel_config),
        _refuse_model(vllm_config.model_config),
        _refuse_cache(vllm_config.cache_config),
        _refuse_features(vllm_config),
        _refuse_runner(vllm_config, tried=v2_model_runner),
    )
    return Support(next((reason for reason in refusals if reason is not None), None))


def check_groups(kv_cache_config: Any) -> Support:
    """Decide from the KV cache's groups: one group of full attention is supported."""
    groups = kv_cache_config.kv_cache_groups
    kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
    if kinds != ["FullAttentionSpec"] or len(groups) != 1:
        return Support(f"KV cache groups {', '.join(kinds) or 'none'}; one of FullAttentionSpec is supported")
    return Support()


def _refuse_version(version: str) -> str | None:
    if any(version == known or version.startswith(f"{known}.") for known in VLLM_VERSIONS):
        return None
    return f"vLLM {version}; supported: {', '.join(f'{known}.x' for known in VLLM_VERSIONS)}"


def _refuse_scheduler(config: Any) -> str | None:
    return None if config.scheduler_cls == SCHEDULER else f"--scheduler-cls is not {SCHEDULER}"


def _refuse_whole_prompts(config: Any) -> str | None:
    if config.enable_chunked_prefill:
        return None
    return "--no-enable-chunked-prefill: steps are shared with rows that ride along"


def _refuse_parallel(config: Any) -> str | None:
    counts = {
        "--pipeline-parallel-size": config.pipeline_parallel_size,
        "--decode-context-parallel-size": getattr(config, "decode_context_parallel_size", 1),
        "--prefill-context-parallel-size": getattr(config, "prefill_context_parallel_size", 1),
    }
    for flag, count in counts.items():
        if count != 1:
            return f"{flag} {count}; supported: 1"
    if getattr(config, "use_ubatching", False):
        return "--enable-dbo or --ubatch-size: rows of one forward must stay together"
    return None


def _refuse_model(config: Any) -> str | None:
    refusals = (
        (config.use_mla, "the model has multi-head latent attention"),
        (getattr(config, "is_hybrid", False), "the model has recurrent state"),
        (config.is_encoder_decoder, "the model has an encoder and a decoder"),
        (config.uses_mrope, "the model has multi-axis rotary positions"),
        (config.runner_type != "generate", f"--runner {config.runner_type}; supported: generate"),
    )
    return next((reason for refused, reason in refusals if refused), None)


def _refuse_cache(config: Any) -> str | None:
    if config.cache_dtype not in ("auto", "float16", "bfloat16", "float32"):
        return f"--kv-cache-dtype {config.cache_dtype}; supported: auto, float16, bfloat16, float32"
    return None


def _refuse_features(vllm_config: Any) -> str | None:
    if vllm_config.speculative_config is not None:
        return "speculative decoding"
    if getattr(getattr(vllm_config, "aux_output_config", None), "enabled", False):
        return "--enable-return-routed-experts: a copied token has passed no expert"
    return None


def _refuse_runner(vllm_config: Any, *, tried: bool) -> str | None:
    if not vllm_config.use_v2_model_runner or tried:
        return None
    return "the V2 model runner; set VLLM_USE_V2_MODEL_RUNNER=0"
