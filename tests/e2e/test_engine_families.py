"""Ways in which models turn their keys, on the real vLLM: a splice is exact, or the engine says why not."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.engine import RunningEngine, running_engine
from sternpost_running.tiny_models import POSITIONS, Family, write_tiny_model

pytestmark = pytest.mark.engine

TOLERANCE = 2e-3
"""Float32, with sums in another order."""

GLOBAL_LAST = ["sliding_attention", "sliding_attention", "full_attention"]
LOCAL_LAST = ["full_attention", "full_attention", "sliding_attention"]


def _gemma(layers: list[str]) -> Family:
    rotary = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    changes = {
        "layer_types": layers,
        "sliding_window": 512,
        "rope_parameters": rotary,
        "query_pre_attn_scalar": 32,
    }
    return Family("gemma3_text", changes)


def _scaled(**rotary: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, **rotary}}


SUPPORTED = [
    pytest.param(
        Family(
            "llama",
            _scaled(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=512,
            ),
        ),
        id="llama3-scaling-grouped-heads-tied",
    ),
    pytest.param(
        Family(
            "llama",
            {
                "num_key_value_heads": 1,
                "tie_word_embeddings": False,
                **_scaled(rope_type="yarn", factor=8.0, original_max_position_embeddings=512),
            },
        ),
        id="yarn-one-head-untied",
    ),
    pytest.param(
        Family(
            "stablelm", {"hidden_size": 128, "partial_rotary_factor": 0.25, **_scaled(rope_type="default")}
        ),
        id="partial",
    ),
    pytest.param(
        Family("glm4", {"partial_rotary_factor": 0.5, **_scaled(rope_type="default")}),
        id="partial-neighbours",
    ),
    pytest.param(_gemma(GLOBAL_LAST), id="local-and-global-angles-global-last"),
    pytest.param(_gemma(LOCAL_LAST), id="local-and-global-angles-local-last"),
]

REFUSED = [
    pytest.param(
        Family("gpt_neox", {"hidden_size": 128, "rotary_pct": 0.25}),
        "has no rotary module of its own",
        id="positions-elsewhere",
    ),
]


def _tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(1000, 40_000), k=count)


SCAFFOLD, TAIL = _tokens(1, 20), _tokens(2, 400)
"""A repeated token in the tail lets the worker check what it builds."""
TAIL[-1] = TAIL[0]


def _complete(
    engine: RunningEngine, prompt: Sequence[int], hint: dict[str, Any], salt: str
) -> dict[str, Any]:
    body = {
        "model": engine.model,
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 5,
        "cache_salt": salt,
        "kv_transfer_params": {"sternpost": {"v": 1, "scaffold": "s", **hint}},
    }
    return engine.post("/v1/completions", body)


def _read(engine: RunningEngine, middle: Sequence[int], *, exact: bool) -> tuple[str, list[float]]:
    hint = {"op": "off" if exact else "read", "tail_tokens": len(TAIL), "last": 8}
    # An exact answer leaves blocks in the prefix store, which must not cover the spliced one's prompt.
    engine.forget_prefixes()
    answer = _complete(engine, [*SCAFFOLD, *middle, *TAIL], hint, "tenant")
    candidates = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    reason = answer["usage"]["prompt_tokens_details"]["sternpost"]["reason"]
    return reason, sorted(candidates.values(), reverse=True)


def _engine_arguments() -> list[str]:
    return ["--max-model-len", str(POSITIONS), "--dtype", "float32"]


def _model(folder: Path, family: Family) -> Path:
    tokenizer = default_directory(os.environ)
    assert is_model(tokenizer), "run `sternpost model fetch` first"
    return write_tiny_model(folder / "model", family, tokenizer)


@pytest.mark.parametrize("family", SUPPORTED)
def test_splice_is_exact_after_any_middle(tmp_path: Path, family: Family) -> None:
    """At positions near the build's and far from it, the first token's probabilities are full prefill's."""
    with running_engine(_model(tmp_path, family), tmp_path / "log", *_engine_arguments()) as engine:
        info = engine.client.get("/sternpost/v1/info").json()
        assert (True, None) == (info["supported"], info["reason"])
        hint = {"op": "build", "prefix_tokens": len(SCAFFOLD), "tail_tokens": len(TAIL)}
        built = _complete(engine, [*SCAFFOLD, *TAIL], hint, "tenant")
        assert "built" == built["usage"]["prompt_tokens_details"]["sternpost"]["reason"]

        answers = []
        for length in (3, 70, 900):
            middle = _tokens(length, length)
            exact, spliced = (_read(engine, middle, exact=exact) for exact in (True, False))
            answers.append(exact[1])

            assert ("off", "hit") == (exact[0], spliced[0])
            assert pytest.approx(exact[1], abs=TOLERANCE) == spliced[1]
        # Otherwise the answers could be right without anything being attended to.
        assert all(first != pytest.approx(second, abs=TOLERANCE) for first, second in pairwise(answers))


@pytest.mark.parametrize(("family", "reason"), REFUSED)
def test_unknown_way_is_refused_with_its_reason(tmp_path: Path, family: Family, reason: str) -> None:
    """The engine serves as plain vLLM; the log has one line, and every hinted answer the reason."""
    log = tmp_path / "log"
    with running_engine(_model(tmp_path, family), log, *_engine_arguments()) as engine:
        answer, _ = _read(engine, _tokens(3, 10), exact=False)

    lines = [line for line in log.read_text().splitlines() if "suffix store off" in line]
    assert "unsupported" == answer
    assert 1 == len(lines)
    assert reason in lines[0]
