"""
What a splice's copy costs on one core, beside the least that it can cost.

    python -m bench.engine_copy [--repeats REPEATS] [--save-results]

The copy of 1,200 tokens of SmolLM2-135M (30 layers, 3 heads of 64 dimensions) through vLLM's own cache
update, keys turned to their positions. Three arms take turns on the same tail:

    floor      the cache update alone, of keys and values that are there as it wants them
    torch      the copy, with keys turned by torch's operators
    copy       the copy as an engine does it, with keys turned by vLLM's kernel

No bound is set on milliseconds: they are the machine's. The floor moves each byte to pages that are not in
any cache, so it is bound by memory, and what is above it is the rotation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import torch

from bench.common.results import Row, row_of, write_results
from sternpost_engine.operations import Begin, Capture, Load, Operations, Span
from sternpost_engine.rotary import Rotation
from sternpost_engine.tensors import LayerShape
from sternpost_engine.worker import Layer, SuffixWorker
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.stats import estimate, estimate_paired, percentile

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "engine_copy.json"

TOKENS: Final = 1200
LAYERS: Final = 30
HEADS: Final = 3
HEAD_DIM: Final = 64
BASE: Final = 100_000.0

POSITION: Final = 85
"""Where the tail begins in the reader's prompt: behind the middle, inside a block."""

REPEATS: Final = 40
WARM_UP: Final = 3
ENTRY: Final = 1
SEED: Final = 2026


@dataclass(frozen=True, slots=True)
class Workload:
    """A dtype of the KV cache, and the tokens of its blocks."""

    name: str
    dtype: torch.dtype
    block_tokens: int


WORKLOADS: Final = (
    Workload("float32_block_32", torch.float32, 32),
    Workload("float32_block_128", torch.float32, 128),
    Workload("bfloat16_block_32", torch.bfloat16, 32),
    Workload("bfloat16_block_128", torch.bfloat16, 128),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the results if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine_copy", description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each arm (default: %(default)s)")
    parser.add_argument("--save-results", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [row for workload in WORKLOADS for row in measure(workload, options.repeats)]
    for row in rows:
        print(f"{row.workload:<19} {row.metric:<14} {row.value:8.3f} {row.unit}")
    if options.save_results:
        write_results("engine_copy", rows, describe_machine(ROOT), datetime.now(UTC), RESULTS)
    return 0


def measure(workload: Workload, repeats: int) -> list[Row]:
    """Return the figures of one workload; the arms take turns."""
    arms = make_arms(workload)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(WARM_UP + repeats):
        for name, arm in arms.items():
            began = time.perf_counter()
            arm()
            if repeat >= WARM_UP:
                times[name].append((time.perf_counter() - began) * 1000)
    return rows_of(workload, times)


def rows_of(workload: Workload, times: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return each arm's median, and the copy's ratio to the other two."""
    chance, median = Random(SEED), partial(percentile, share=0.5)
    rows = [
        row_of(workload.name, f"{name}_ms", estimate(values, median, chance), "ms")
        for name, values in times.items()
    ]
    ratios = [
        row_of(
            workload.name,
            f"{name}_ratio",
            estimate_paired(times["copy"], times[name], lambda one, two: median(one) / median(two), chance),
        )
        for name in ("floor", "torch")
    ]
    return [*rows, *ratios]


def make_arms(workload: Workload) -> dict[str, Callable[[], object]]:
    """Return the arms, each with pages of its own."""
    layers = make_layers(workload, plain_rotation())
    ready = [torch.randn((TOKENS, HEADS, HEAD_DIM), dtype=workload.dtype) for _ in range(2 * LAYERS)]
    slots = torch.arange(POSITION, POSITION + TOKENS)
    return {
        "floor": partial(update_all, layers, ready, slots),
        "torch": copying(workload, plain_rotation()),
        "copy": copying(workload, plain_rotation().with_kernel(_kernel())),
    }


def plain_rotation() -> Rotation:
    """Return the model's angles."""
    frequencies = BASE ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.outer(torch.arange(2 * TOKENS, dtype=torch.float32), frequencies)
    return Rotation(angles.cos(), angles.sin(), neox=True)


def make_layers(workload: Workload, rotation: Rotation) -> list[Layer]:
    """Return layers whose pages and cache update are those of vLLM's CPU backend."""
    from vllm.v1.attention.backends import cpu_attn

    blocks = (POSITION + TOKENS) // workload.block_tokens + 1
    size = (blocks, HEADS, workload.block_tokens, 2 * HEAD_DIM)
    isa = cpu_attn._get_attn_isa(workload.dtype, workload.block_tokens, HEAD_DIM)
    shape = LayerShape(HEADS, HEAD_DIM, HEAD_DIM, workload.dtype)
    return [
        Layer(f"layer-{number}", make_module(isa), torch.zeros(size, dtype=workload.dtype), shape, rotation)
        for number in range(LAYERS)
    ]


def make_module(isa: str) -> Any:
    """Return what vLLM's cache update needs of an attention layer: a backend of its own, and scales."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    # The update alone, as a method of its class: a backend can be made within an engine only.
    parts = {
        "attn_type": "decoder",
        "kv_cache_dtype": "auto",
        "do_kv_cache_update": CPUAttentionBackendImpl.do_kv_cache_update,
    }
    backend = type("CacheUpdate", (), parts)()
    return SimpleNamespace(impl=backend, isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)


def update_all(layers: Sequence[Layer], ready: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
    """Write keys and values of every layer to its pages."""
    for number, layer in enumerate(layers):
        keys, values = ready[2 * number], ready[2 * number + 1]
        layer.module.impl.do_kv_cache_update(layer.module, keys, values, layer.pages, slots)


def copying(workload: Workload, rotation: Rotation) -> Callable[[], object]:
    """Build a tail in a worker, and return what copies it to a reader's blocks."""
    layers = make_layers(workload, rotation)
    worker = SuffixWorker(
        layers, workload.block_tokens, torch.device("cpu"), time.perf_counter, logging.getLogger(__name__)
    )
    blocks = tuple(range((POSITION + TOKENS) // workload.block_tokens + 1))
    whole = Span(blocks, 0, 0, TOKENS)
    worker.start(
        Operations(
            begins=(Begin(ENTRY, tuple(range(TOKENS))),), captures=(Capture(ENTRY, whole, final=True),)
        )
    )
    ready = [torch.randn((TOKENS, HEADS, HEAD_DIM), dtype=workload.dtype) for _ in range(2 * LAYERS)]
    update_all(layers, ready, torch.arange(TOKENS))
    assert worker.end().completed, "the tail is built whole"
    load = Load("reader", ENTRY, Span(blocks, POSITION, 0, TOKENS))
    return partial(worker.start, Operations(loads=(load,)))


def _kernel() -> Any:
    from sternpost_engine.worker_setup import fused_rotation

    return fused_rotation


if __name__ == "__main__":
    sys.exit(main())
