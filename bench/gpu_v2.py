"""
Compare a splice with full prefill on a GPU, under each of vLLM's model runners: `python -m bench.gpu_v2`.

For each runner and dtype a real engine is started on the model in `--model`. A tail is built, and read back
behind the very tokens that it was built behind; the first token's log-probabilities must then be those of
full prefill, up to rounding: in float32 all digits, in bfloat16 no more than a batch of another shape
changes. The engine's own self-test is told too. Refuses where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import torch

from sternpost_gateway.bench.machine import describe_machine

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "gpu_v2.json"

RUNNERS: Final = {"v1": "0", "v2": "1"}
"""What `VLLM_USE_V2_MODEL_RUNNER` is set to for each."""

TOLERANCES: Final = {"float32": 1e-3, "bfloat16": 0.1}
"""How far a log-probability may be off, by dtype."""

SCAFFOLD_TOKENS: Final = 32
TAILS: Final = (256, 1200, 4000)
LASTS: Final = (1, 32)
"""Tail lengths, and how many of a tail's last tokens are computed."""

WORDS: Final = range(1000, 20_000)
"""Token ids that every model has, and that are words in most."""

READY_SECONDS_MAX: Final = 600.0
STOP_SECONDS_MAX: Final = 60.0
ANSWER_SECONDS_MAX: Final = 120.0
POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison: how far the spliced answer is off, and whether that is rounding."""

    runner: str
    dtype: str
    tail_tokens: int
    last: int
    reason: str
    suffix_tokens: int
    difference: float
    equal: bool


class Engine:
    """Asks a running engine, by token ids."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self._client = client
        self._model = model

    def info(self) -> Mapping[str, Any]:
        """Return what the engine says of itself."""
        answer: Mapping[str, Any] = self._client.get("/sternpost/v1/info").raise_for_status().json()
        return answer

    def forget_prefixes(self) -> None:
        """Empty the prefix store, which would cover what is to be spliced."""
        self._client.post("/reset_prefix_cache").raise_for_status()

    def ask(self, prompt: Sequence[int], hint: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer of one greedy token with its likeliest candidates."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 5,
            "kv_transfer_params": {"sternpost": {"v": 1, "scaffold": "s", **hint}},
        }
        answer: Mapping[str, Any] = self._client.post("/v1/completions", json=body).raise_for_status().json()
        return answer


def compare(engine: Engine, *, runner: str, dtype: str, tail_tokens: int, last: int) -> Row:
    """Build a tail, read it behind its own scaffold, and compare with full prefill of the same prompt."""
    chosen = random.Random(tail_tokens)
    prompt = chosen.choices(WORDS, k=SCAFFOLD_TOKENS + tail_tokens)
    prompt[-1] = prompt[SCAFFOLD_TOKENS]
    lengths = {"prefix_tokens": SCAFFOLD_TOKENS, "tail_tokens": tail_tokens}
    exact = engine.ask(prompt, {"op": "off"})
    engine.ask(prompt, {"op": "build", **lengths})
    engine.forget_prefixes()
    spliced = engine.ask(prompt, {"op": "read", "last": last, **lengths})
    report = spliced["usage"]["prompt_tokens_details"]["sternpost"]
    difference = largest_difference(candidates(exact), candidates(spliced))
    return Row(
        runner=runner,
        dtype=dtype,
        tail_tokens=tail_tokens,
        last=last,
        reason=report["reason"],
        suffix_tokens=report["suffix_tokens"],
        difference=difference,
        equal=report["reason"] == "hit" and difference <= TOLERANCES[dtype],
    )


def candidates(answer: Mapping[str, Any]) -> dict[str, float]:
    """Return the first token's candidates and their log-probabilities."""
    return dict(answer["choices"][0]["logprobs"]["top_logprobs"][0])


def largest_difference(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Return the largest difference; a candidate that only one has is as far off as the other's least."""
    floors = min(first.values()), min(second.values())
    return max(
        abs(first.get(token, floors[0]) - second.get(token, floors[1]))
        for token in first.keys() | second.keys()
    )


@contextmanager
def running(model: Path, runner: str, dtype: str, log: Path) -> Iterator[Engine]:
    """Run an engine with the plugin under this runner, and end it with its whole process group."""
    port = free_port()
    transfer = {
        "kv_connector": "SternpostConnector",
        "kv_connector_module_path": "sternpost_engine.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"v2_model_runner": True, "pool_fraction": 0.5},
    }
    command = [sys.executable, "-m", "sternpost_core", "engine", "--device", "gpu", "--model", str(model)]
    command += ["--port", str(port), "--", "--dtype", dtype, "--gpu-memory-utilization", "0.6"]
    command += ["--kv-transfer-config", json.dumps(transfer)]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_V2_MODEL_RUNNER": RUNNERS[runner]}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_SECONDS_MAX) as client:
            await_ready(process, client, log)
            yield Engine(client, model.name)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def await_ready(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> None:
    """
    Wait until the engine answers.

    Raises:
        RuntimeError: when it ends, or is not ready in time; the message names its log.
    """
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/health", timeout=POLL_SECONDS).is_success:
                return
        except httpx.TransportError:
            time.sleep(POLL_SECONDS)
    raise RuntimeError(f"the engine is not ready; see {log}")


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def compare_all(model: Path, logs: Path) -> dict[str, Any]:
    """Compare under every runner and dtype; return the rows, and what each engine said of itself."""
    rows: list[Row] = []
    engines: dict[str, Any] = {}
    for runner in RUNNERS:
        for dtype in TOLERANCES:
            with running(model, runner, dtype, logs / f"engine-{runner}-{dtype}.log") as engine:
                info = engine.info()
                engines[f"{runner} {dtype}"] = {
                    "supported": info["supported"],
                    "reason": info["reason"],
                    "self_test": info["pools"][0].get("self_test"),
                }
                for tail_tokens in TAILS:
                    for last in LASTS:
                        row = compare(engine, runner=runner, dtype=dtype, tail_tokens=tail_tokens, last=last)
                        print(row, flush=True)
                        rows.append(row)
    return {"engines": engines, "rows": [asdict(row) for row in rows]}


def main(words: Sequence[str] | None = None) -> int:
    """Run the comparison; 0 when every splice equals full prefill, 1 when one does not, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="bench.gpu_v2", description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="the folder of config, weights and tokenizer"
    )
    parser.add_argument("--save", type=Path, default=RESULTS, help="default: %(default)s")
    arguments = parser.parse_args(words)
    if not torch.cuda.is_available():
        print("this comparison needs a GPU that torch can use; there is none here", file=sys.stderr)
        return 2
    logs = Path(tempfile.mkdtemp(prefix="sternpost-gpu-"))
    print(f"the engines' logs are in {logs}", flush=True)
    found = compare_all(arguments.model, logs)
    machine = describe_machine(ROOT)
    device = torch.cuda.get_device_name()
    head = {
        "name": "gpu_v2",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit,
        "machine": f"{machine}, {device}",
        "versions": dict(machine.versions),
    }
    arguments.save.write_text(json.dumps({**head, **found}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["equal"] for row in found["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
