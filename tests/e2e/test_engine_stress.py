"""One real engine under stress: every answer is full prefill's, and nothing is left behind."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sternpost_engine.model_fetch import default_directory, is_model
from sternpost_running.engine import RunningEngine, running_engine
from sternpost_running.stress import Stress
from sternpost_running.tiny_models import Family, write_tiny_model

STREAMS = 16
SECONDS = float(os.environ.get("STERNPOST_STRESS_SECONDS", "20"))
"""How long the short run takes; set the variable for a longer one."""

LONG_SECONDS = 1800.0

TOKEN_BYTES = 3 * 2 * 32 * (4 + 4)
"""One stored token of the tiny model in float32: 3 layers, 2 heads, 32 wide, keys and values."""

POOL_BYTES = 6 * 1024 * TOKEN_BYTES
"""Room for a few of the twelve tails."""

BLOCK_TOKENS = 32
BLOCKS = 200
"""KV blocks: fewer than sixteen streams want, and answers grow into new ones, so that some are preempted."""

REST_SECONDS_MAX = 60.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(int(max(SECONDS, LONG_SECONDS)) + 600)]


def _model(folder: Path) -> Path:
    tokenizer = default_directory(os.environ)
    assert is_model(tokenizer), "run `sternpost model fetch` first"
    return write_tiny_model(folder / "model", Family("llama"), tokenizer)


def _arguments() -> list[str]:
    config = {
        "kv_connector": "SternpostConnector",
        "kv_connector_module_path": "sternpost_engine.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool_bytes": POOL_BYTES, "calibration_samples": 1},
    }
    flags = {
        "--kv-transfer-config": json.dumps(config),
        "--max-model-len": "2048",
        "--max-num-seqs": "48",
        "--block-size": str(BLOCK_TOKENS),
        "--num-gpu-blocks-override": str(BLOCKS),
    }
    return [word for flag in flags.items() for word in flag]


def _await_rest(engine: RunningEngine) -> None:
    """Wait until nothing runs or waits, calibration included."""
    deadline = time.monotonic() + REST_SECONDS_MAX
    busy = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    while any(engine.metric(name) for name in busy):
        assert time.monotonic() < deadline, "the engine comes to rest"
        time.sleep(0.2)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SECONDS, id="short"),
        pytest.param(LONG_SECONDS, id="half-an-hour", marks=pytest.mark.slow),
    ],
)
def test_engine_under_stress_answers_right_and_comes_to_rest(tmp_path: Path, seconds: float) -> None:
    """Random tails, aborts, preemption, new epochs and evictions, sixteen streams at once."""
    log = tmp_path / "engine.log"
    with running_engine(_model(tmp_path), log, *_arguments()) as engine:
        stress, stop = Stress(engine), threading.Event()
        stress.expect(STREAMS)
        with ThreadPoolExecutor(STREAMS) as pool:
            runs = [pool.submit(stress.worker, number, stop) for number in range(STREAMS)]
            time.sleep(seconds)
            stop.set()
        for run in runs:
            run.result()
        _await_rest(engine)

        tally = stress.tally
        print(dict(tally.reasons), f"gone {tally.gone}", f"probes {tally.probes}")
        assert [] == tally.wrong[:5]
        assert min(tally.reasons["hit"], tally.reasons["build built"], tally.gone, tally.probes) > 0
        for moved in ("sternpost_suffix_evictions_total", "vllm:num_preemptions_total"):
            assert engine.metric(moved) > 0, moved
        listed = engine.client.get("/sternpost/v1/tails").json()["engines"][0]["tails"]
        assert [] == [tail for tail in listed if tail["readers"] or tail["state"] != "live"]

        assert engine.client.post("/reset_prefix_cache?reset_external=true").status_code == 200
        pool_after = engine.client.get("/sternpost/v1/info").json()["pools"][0]
        assert (0, {"building": 0, "live": 0, "retired": 0}) == (
            pool_after["pool_bytes"],
            pool_after["tails"],
        )
        # Read before the engine is told to end, which it does not do without a word.
        faults = [line for line in log.read_text().splitlines() if " ERROR " in line or "Traceback" in line]
        assert [] == faults[:5]
