"""The engine's part of a tail's identity: whatever changes the KV of equal tokens changes the sum."""

from types import SimpleNamespace
from typing import Any

import pytest

from sternpost_engine.engine_identity import describe_engine


def engine(**changes: Any) -> SimpleNamespace:
    """Return an engine's configuration, with changes as `part__field`."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(rope_parameters={"rope_theta": 1e5, "rope_type": "default"}),
            model="model",
            revision="r1",
            quantization=None,
            dtype="bfloat16",
            tokenizer="model",
            tokenizer_revision="r1",
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16),
    )
    for path, value in changes.items():
        part, _, field = path.partition("__")
        setattr(getattr(config, part), field, value)
    return config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_config__model", "other"),
        ("model_config__revision", "r2"),
        ("model_config__quantization", "fp8"),
        ("model_config__dtype", "float16"),
        ("model_config__tokenizer", "other"),
        ("model_config__tokenizer_revision", "r2"),
        ("cache_config__cache_dtype", "float32"),
        ("parallel_config__tensor_parallel_size", 2),
        ("model_config__hf_text_config", SimpleNamespace(rope_parameters={"rope_theta": 1e4})),
        ("model_config__hf_text_config", SimpleNamespace(rope_theta=1e5)),
        ("model_config__hf_text_config", SimpleNamespace(rope_scaling={"rope_type": "yarn"})),
        ("model_config__hf_text_config", SimpleNamespace(partial_rotary_factor=0.5)),
        ("model_config__hf_text_config", SimpleNamespace()),
    ],
)
def test_each_part_changes_the_sum(path: str, value: object) -> None:
    """Tails of another engine are not found."""
    assert describe_engine(engine()) != describe_engine(engine(**{path: value}))


def test_what_leaves_the_kv_alone_leaves_the_sum_alone() -> None:
    """The size of a block, or the order in which parameters were written."""
    reordered = SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 1e5})

    assert describe_engine(engine()) == describe_engine(engine(cache_config__block_size=128))
    assert describe_engine(engine()) == describe_engine(engine(model_config__hf_text_config=reordered))


def test_sum_is_a_digest() -> None:
    """It names nothing of the engine."""
    assert 64 == len(describe_engine(engine()))
    assert set(describe_engine(engine())) <= set("0123456789abcdef")
