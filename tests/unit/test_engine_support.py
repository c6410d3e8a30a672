"""The compatibility gate: which engines use the suffix store, and how the others say why not."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_engine.support import SCHEDULER, Support, check_groups, check_support


def engine(**changes: Any) -> SimpleNamespace:
    """Return the configuration of a supported engine, with changes as `part__field` or `field`."""
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(scheduler_cls=SCHEDULER, enable_chunked_prefill=True),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            tensor_parallel_size=2,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            use_ubatching=False,
        ),
        model_config=SimpleNamespace(
            use_mla=False,
            is_hybrid=False,
            is_encoder_decoder=False,
            uses_mrope=False,
            runner_type="generate",
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        speculative_config=None,
        aux_output_config=SimpleNamespace(enabled=False),
        use_v2_model_runner=False,
    )
    for path, value in changes.items():
        part, _, field = path.rpartition("__")
        setattr(getattr(config, part) if part else config, field, value)
    return config


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "0.32.1", "0.32.0+cpu"])
def test_known_versions_are_supported(version: str) -> None:
    """Every patch release of a version that was tried."""
    assert Support() == check_support(engine(), version)
    assert check_support(engine(), version).supported


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3", "0.320.0", "1.0.32", "dev"])
def test_other_versions_are_refused(version: str) -> None:
    """With the version that was found and those that are known."""
    assert f"vLLM {version}; supported: 0.32.x" == check_support(engine(), version).reason


@pytest.mark.parametrize("dtype", ["auto", "float16", "bfloat16", "float32"])
def test_plain_cache_types_are_supported(dtype: str) -> None:
    """What is stored is not rounded more than the cache itself."""
    assert check_support(engine(cache_config__cache_dtype=dtype), "0.32.0").supported


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ("scheduler_config__scheduler_cls", "vllm.Other", f"--scheduler-cls is not {SCHEDULER}"),
        ("scheduler_config__scheduler_cls", None, f"--scheduler-cls is not {SCHEDULER}"),
        (
            "scheduler_config__enable_chunked_prefill",
            False,
            "--no-enable-chunked-prefill: steps are shared with rows that ride along",
        ),
        ("parallel_config__pipeline_parallel_size", 2, "--pipeline-parallel-size 2; supported: 1"),
        (
            "parallel_config__decode_context_parallel_size",
            2,
            "--decode-context-parallel-size 2; supported: 1",
        ),
        (
            "parallel_config__prefill_context_parallel_size",
            4,
            "--prefill-context-parallel-size 4; supported: 1",
        ),
        (
            "parallel_config__use_ubatching",
            True,
            "--enable-dbo or --ubatch-size: rows of one forward must stay together",
        ),
        ("model_config__use_mla", True, "the model has multi-head latent attention"),
        ("model_config__is_hybrid", True, "the model has recurrent state"),
        ("model_config__is_encoder_decoder", True, "the model has an encoder and a decoder"),
        ("model_config__uses_mrope", True, "the model has multi-axis rotary positions"),
        ("model_config__runner_type", "pooling", "--runner pooling; supported: generate"),
        (
            "cache_config__cache_dtype",
            "fp8",
            "--kv-cache-dtype fp8; supported: auto, float16, bfloat16, float32",
        ),
        ("speculative_config", object(), "speculative decoding"),
        (
            "aux_output_config__enabled",
            True,
            "--enable-return-routed-experts: a copied token has passed no expert",
        ),
        ("use_v2_model_runner", True, "the V2 model runner; set VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_not_tried_is_refused(change: str, value: object, reason: str) -> None:
    """In one line that names the flag or what of the model is in the way."""
    support = check_support(engine(**{change: value}), "0.32.0")

    assert reason == support.reason
    assert not support.supported


def test_first_of_several_reasons_is_named() -> None:
    """In an order that never changes: all processes of one engine say the same."""
    config = engine(use_v2_model_runner=True, model_config__use_mla=True)

    assert "the model has multi-head latent attention" == check_support(config, "0.32.0").reason


class FullAttentionSpec:
    """A group of layers with full attention."""


class SlidingWindowSpec:
    """A group of layers with a window."""


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        pytest.param([FullAttentionSpec()], None, id="full-attention"),
        pytest.param(
            [],
            "KV cache groups none; one of FullAttentionSpec is supported",
            id="none",
        ),
        pytest.param(
            [SlidingWindowSpec()],
            "KV cache groups SlidingWindowSpec; one of FullAttentionSpec is supported",
            id="window",
        ),
        pytest.param(
            [SlidingWindowSpec(), FullAttentionSpec()],
            "KV cache groups FullAttentionSpec, SlidingWindowSpec; one of FullAttentionSpec is supported",
            id="both",
        ),
        pytest.param(
            [FullAttentionSpec(), FullAttentionSpec()],
            "KV cache groups FullAttentionSpec; one of FullAttentionSpec is supported",
            id="two-groups",
        ),
    ],
)
def test_groups_of_the_cache(specs: list[object], reason: str | None) -> None:
    """A request's blocks are those of one group."""
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]

    assert reason == check_groups(SimpleNamespace(kv_cache_groups=groups)).reason


@pytest.mark.parametrize(
    ("tried", "supported"), [(False, False), (True, True)], ids=["by-itself", "asked-for"]
)
def test_v2_model_runner_is_used_where_its_owner_asks(tried: bool, supported: bool) -> None:
    """It has not been tried on a GPU; the engine's self-test then decides."""
    config = engine(use_v2_model_runner=True)

    assert supported is check_support(config, "0.32.0", v2_model_runner=tried).supported
