"""The comparison of a splice with full prefill on a GPU: what it asks, and what it takes for equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from bench.gpu_v2 import Engine, compare, largest_difference, main


def engine_that(spliced: float, reason: str = "hit") -> tuple[Engine, list[dict[str, Any]]]:
    """Return an engine whose spliced answer has this log-probability, and what it is asked."""
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/reset_prefix_cache":
            asked.append({"op": "forget"})
            return httpx.Response(200)
        body = json.loads(request.content)
        hint = body["kv_transfer_params"]["sternpost"]
        asked.append(hint)
        read = hint["op"] == "read"
        report = {"reason": reason if read else hint["op"], "suffix_tokens": 224 if read else 0}
        logprobs = {"a": spliced if read else -1.0, "b": -2.0}
        return httpx.Response(
            200,
            json={
                "choices": [{"logprobs": {"top_logprobs": [logprobs]}}],
                "usage": {"prompt_tokens_details": {"sternpost": report}},
            },
        )

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://engine")
    return Engine(client, "m"), asked


@pytest.mark.parametrize(
    ("dtype", "spliced", "reason", "equal"),
    [
        pytest.param("float32", -1.0, "hit", True, id="same"),
        pytest.param("float32", -1.01, "hit", False, id="more-than-rounding"),
        pytest.param("bfloat16", -1.01, "hit", True, id="rounding-of-16-bits"),
        pytest.param("float32", -1.0, "unsupported", False, id="nothing-was-spliced"),
    ],
)
def test_splice_is_equal_when_it_is_one_and_differs_by_rounding(
    dtype: str, spliced: float, reason: str, equal: bool
) -> None:
    """An engine that refuses to splice computes the right answer, and proves nothing."""
    engine, _ = engine_that(spliced, reason)

    assert equal is compare(engine, runner="v2", dtype=dtype, tail_tokens=256, last=32).equal


def test_tail_is_read_behind_its_own_scaffold_with_an_empty_prefix_store() -> None:
    """Otherwise its KV would be another context's, or nothing would be spliced."""
    engine, asked = engine_that(-1.0)

    compare(engine, runner="v1", dtype="float32", tail_tokens=300, last=1)

    assert ["off", "build", "forget", "read"] == [hint["op"] for hint in asked]
    assert [(32, 300), (32, 300)] == [
        (hint["prefix_tokens"], hint["tail_tokens"]) for hint in asked if "prefix_tokens" in hint
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param({"a": -1.0}, {"a": -1.0}, 0.0, id="equal"),
        pytest.param({"a": -1.0, "b": -3.0}, {"a": -1.5, "b": -3.25}, 0.5, id="largest"),
        pytest.param({"a": -1.0, "b": -3.0}, {"a": -1.0, "c": -2.0}, 1.0, id="other-candidate"),
    ],
)
def test_largest_difference(first: dict[str, float], second: dict[str, float], expected: float) -> None:
    """Over all candidates of either."""
    assert expected == largest_difference(first, second)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words, and without starting anything."""
    assert 2 == main(["--model", str(tmp_path), "--save", str(tmp_path / "result.json")])
    assert "needs a GPU" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())
