"""The GPU benchmark at toy size on a CPU: what it times, and the file that it writes."""

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import (
    LARGE,
    LAST_TOKENS,
    MATCHED_RUNS,
    MATCHED_TOKENS,
    SMALL,
    Case,
    calibrated_tail,
    made_up_tokens,
    main,
    random_model,
    request_for,
)
from sternpost_engine.reference import Splice, computed_runs, prefill, splice

CPU = torch.device("cpu")


def test_results_have_every_metric_of_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the common form of benchmark results."""
    out = tmp_path / "results" / "gpu.json"

    assert 0 == main(["--device", "cpu", "--small", "--repeats", "3", "--out", str(out)])

    document = json.loads(out.read_text("utf-8"))
    assert ["name", "date", "commit", "machine", "versions", "rows"] == list(document)
    found = {(row["workload"], row["metric"]): row for row in document["rows"]}
    assert {
        ("tail_96", "tail_bytes"),
        *(
            (f"middle_{middle}_tail_96", metric)
            for middle in (16, 48)
            for metric in (
                "ttft_ratio",
                "ttft_full_s",
                "ttft_spliced_s",
                "copy_s",
                "rotation_s",
                "computed_share",
            )
        ),
    } == set(found)
    for row in found.values():
        assert row["value"] > 0
    ratio = found["middle_16_tail_96", "ttft_ratio"]
    assert (3, "1") == (ratio["n"], ratio["unit"])
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert 2 == capsys.readouterr().out.count("spliced")


def test_computed_share_is_counted_from_the_request() -> None:
    """Middle, matched tokens and the last, over middle and tail."""
    model = random_model(SMALL, CPU)
    case = Case(calibrated_tail(model, 96, SMALL.vocabulary), request_for(16, 96, SMALL.vocabulary))

    assert (16 + LAST_TOKENS + MATCHED_RUNS * MATCHED_TOKENS) / (16 + 96) == case.computed_share


def test_both_sides_compute_the_same_prompt() -> None:
    """Where the whole tail is computed, the splice's logits are full prefill's, to bfloat16's rounding."""
    model = random_model(SMALL, CPU)
    front, tokens = made_up_tokens(16, SMALL.vocabulary), made_up_tokens(20, SMALL.vocabulary)
    tail = calibrated_tail(model, 20, SMALL.vocabulary)
    cache = model.new_cache(36)

    full = prefill(model, cache, front, tokens)

    actual = splice(model, cache, tail, Splice(front=front, runs=computed_runs(20, last=20)))

    assert torch.allclose(full, actual, atol=0.01 * float(full.abs().max()))


def test_shape_is_that_of_an_8b_model() -> None:
    """Weights of about 16 GB in bfloat16."""
    attention = LARGE.hidden * LARGE.head_dim * 2 * (LARGE.heads + LARGE.kv_heads)
    layer = attention + 3 * LARGE.hidden * LARGE.intermediate
    weights = LARGE.layers * layer + 2 * LARGE.vocabulary * LARGE.hidden

    assert 8.0e9 < weights < 8.1e9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--device", "cuda"], "torch sees no GPU here", id="no-gpu"),
        pytest.param(["--device", "cpu"], "takes hours on a CPU; add --small", id="large-on-cpu"),
    ],
)
def test_missing_device_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do instead, and nothing is written."""
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "gpu.json"

    assert 1 == main([*words, "--out", str(out)])
    assert message in capsys.readouterr().err
    assert not out.exists()
