"""
Time the reference engine's splice against full prefill at the shapes of an 8B model: `make bench-gpu`.

The weights are random, for only their shapes count here; nothing is fetched, and no vLLM is needed. Both
sides run the same network on the same device in turns: full prefill of middle and tail, and the splice,
which copies the tail (a mix of two means, keys rotated) and computes the middle, some matched tokens and
the last ones.

Takes under four minutes on a data-centre GPU. `--device cpu --small` tries the script itself anywhere. Needs
torch and transformers alone: `PYTHONPATH=core:engine_patch:. python -m bench.gpu` without `make`, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.common.results import head_of
from sternpost_core.clock import Clock, SystemClock
from sternpost_engine.calibrate.timing import Stopwatch
from sternpost_engine.calibration import Mix
from sternpost_engine.matching import Run
from sternpost_engine.reference import (
    ReferenceModel,
    Splice,
    build_tail,
    computed_runs,
    prefill,
    splice,
    wrap,
)
from sternpost_engine.reference.splice import place_tail
from sternpost_engine.tensors import Mean, StoredTail, bytes_per_token
from sternpost_gateway.bench.machine import describe_machine
from sternpost_gateway.bench.stats import Estimate, estimate, estimate_paired, percentile, percentile_ratio

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results" / "gpu.json"

DTYPE: Final = torch.bfloat16

SCAFFOLD_TOKENS: Final = 32
LAST_TOKENS: Final = 32
MATCHED_RUNS: Final = 4
MATCHED_TOKENS: Final = 4
"""Matched words: so many runs of so many tokens, spread over the tail."""

MIX: Final = Mix(((0, 0.5), (1, 0.5)))
"""A request between two means reads both: the dearest copy that there is."""

WARM_UPS: Final = 2
REPEATS_DEFAULT: Final = 12
REPEATS_MAX: Final = 1000
SEED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama's shape, and the lengths that it is timed with."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    middles: tuple[int, ...]
    tails: tuple[int, ...]

    @property
    def positions(self) -> int:
        """As many as the longest prompt needs, and no less than a build."""
        return max((*self.middles, SCAFFOLD_TOKENS)) + max(self.tails)


LARGE: Final = Shape(
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    hidden=4096,
    intermediate=14_336,
    vocabulary=128_256,
    middles=(80, 500, 2000),
    tails=(1200, 4096),
)

SMALL: Final = Shape(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    hidden=64,
    intermediate=128,
    vocabulary=256,
    middles=(16, 48),
    tails=(96,),
)
"""For trying the script."""


@dataclass(frozen=True, slots=True)
class Case:
    """One middle in front of one stored tail, and the request that reads it."""

    tail: StoredTail
    request: Splice

    @property
    def name(self) -> str:
        """The workload's name."""
        return f"middle_{len(self.request.front)}_tail_{len(self.tail.tokens)}"

    @property
    def computed_share(self) -> float:
        """Computed tokens over the prompt's."""
        middle = len(self.request.front)
        return (middle + self.request.computed_tail_tokens) / (middle + len(self.tail.tokens))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each round, paired by place: full prefill, splice, the copy in it, the rotation in that."""

    full: list[float]
    spliced: list[float]
    copy: list[float]
    rotation: list[float]


def main(argv: Sequence[str] | None = None) -> int:
    """Run every case and write the results; 1 without the device that is asked for."""
    arguments = _parser().parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("bench gpu: torch sees no GPU here; --device cpu --small tries the script", file=sys.stderr)
        return 1
    if arguments.device == "cpu" and not arguments.small:
        print("bench gpu: an 8B model takes hours on a CPU; add --small", file=sys.stderr)
        return 1
    rows = measure(
        SMALL if arguments.small else LARGE, torch.device(arguments.device), arguments.repeats, SystemClock()
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document(rows, arguments.device), indent=2) + "\n", "utf-8")
    print(arguments.out)
    return 0


def measure(shape: Shape, device: torch.device, repeats: int, clock: Clock) -> list[dict[str, Any]]:
    """Return the result rows of every case, and print a line for each."""
    model = random_model(shape, device)
    stopwatch = Stopwatch(clock, device)
    rows = []
    for count in shape.tails:
        tail = calibrated_tail(model, count, shape.vocabulary)
        rows.append(
            _row(f"tail_{count}", "tail_bytes", float(bytes_per_token(model.shapes) * count), "bytes")
        )
        for middle in shape.middles:
            case = Case(tail, request_for(middle, count, shape.vocabulary))
            _forget_peak(device)
            times = time_case(model, case, repeats, stopwatch)
            rows += case_rows(case, times, _peak_bytes(device))
            print(_line(case, times), flush=True)
    return rows


def random_model(shape: Shape, device: torch.device) -> ReferenceModel:
    """Return a Llama of this shape with random weights, made on the device."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(SEED)
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    return wrap(network)


def calibrated_tail(model: ReferenceModel, count: int, vocabulary: int) -> StoredTail:
    """Return a stored tail with two means; they are the build's, since the time is the same for any."""
    tokens = made_up_tokens(count, vocabulary)
    tail = build_tail(model, made_up_tokens(SCAFFOLD_TOKENS, vocabulary), tokens)
    tail.means.update({variant: Mean(tail.scaffold, samples=1) for variant, _ in MIX.shares})
    return tail


def request_for(middle: int, tail: int, vocabulary: int) -> Splice:
    """Return a request whose middle points at some words of the tail."""
    behind = tail - LAST_TOKENS
    matched = [
        Run((number + 1) * behind // (MATCHED_RUNS + 1), MATCHED_TOKENS) for number in range(MATCHED_RUNS)
    ]
    runs = computed_runs(tail, last=LAST_TOKENS, matched=matched)
    return Splice(front=made_up_tokens(middle, vocabulary), runs=runs, mix=MIX)


def made_up_tokens(count: int, vocabulary: int) -> tuple[int, ...]:
    """Return tokens that do not repeat at once."""
    return tuple((7919 * number + 13) % vocabulary for number in range(count))


def time_case(model: ReferenceModel, case: Case, repeats: int, stopwatch: Stopwatch) -> Times:
    """Time both sides in turns, after some rounds that do not count."""
    cache = model.new_cache(len(case.request.front) + len(case.tail.tokens))
    sides: tuple[Callable[[], object], Callable[[], object]] = (
        lambda: prefill(model, cache, case.request.front, case.tail.tokens),
        lambda: splice(model, cache, case.tail, case.request),
    )
    times = Times([], [], [], [])
    for place in range(-WARM_UPS, repeats):
        seconds = [0.0, 0.0]
        # In turns, so that what drifts, such as the device's clock, meets both sides alike.
        for side in (0, 1) if place % 2 == 0 else (1, 0):
            seconds[side] = stopwatch.seconds(sides[side])
        copy = stopwatch.seconds(lambda: place_tail(model, cache, case.tail, case.request))
        rotation = stopwatch.seconds(lambda: rotate_tail(model, case))
        if place >= 0:
            times.full.append(seconds[0])
            times.spliced.append(seconds[1])
            times.copy.append(copy)
            times.rotation.append(rotation)
    return times


def rotate_tail(model: ReferenceModel, case: Case) -> None:
    """Turn the keys of every layer, as the copy does."""
    keys = case.tail.scaffold.keys
    turn = model.rotation.turn(case.request.tail_position, keys[0].shape[0], keys[0].shape[1])
    for layer in keys:
        turn.apply(layer, torch.empty_like(layer))


def case_rows(case: Case, times: Times, peak_bytes: int) -> list[dict[str, Any]]:
    """Return a case's result rows: ratios and seconds at the median, with 95% intervals."""

    def median(values: Sequence[float]) -> float:
        return percentile(values, 0.5)

    def ratio(candidate: Sequence[float], baseline: Sequence[float]) -> float:
        return percentile_ratio(candidate, baseline, 0.5)

    chance = Random(SEED)
    figures: list[tuple[str, Estimate, str]] = [
        ("ttft_ratio", estimate_paired(times.spliced, times.full, ratio, chance), "1"),
        ("ttft_full_s", estimate(times.full, median, chance), "s"),
        ("ttft_spliced_s", estimate(times.spliced, median, chance), "s"),
        ("copy_s", estimate(times.copy, median, chance), "s"),
        ("rotation_s", estimate(times.rotation, median, chance), "s"),
    ]
    rows = [_estimated(case.name, metric, figure, unit) for metric, figure, unit in figures]
    rows.append(_row(case.name, "computed_share", case.computed_share, "1"))
    return [*rows, _row(case.name, "peak_bytes", float(peak_bytes), "bytes")] if peak_bytes else rows


def document(rows: Sequence[dict[str, Any]], device: str) -> dict[str, Any]:
    """Return the results with date, commit, machine and versions."""
    machine = describe_machine(ROOT)
    accelerator = f"{torch.cuda.get_device_name()}; " if device == "cuda" else ""
    head = head_of("gpu", machine, datetime.now(UTC))
    return {**head, "machine": f"{accelerator}{machine}", "rows": list(rows)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[1])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="a toy's shape, to try the script")
    parser.add_argument("--repeats", type=_repeats, default=REPEATS_DEFAULT, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: bench/results/gpu.json")
    return parser


def _repeats(word: str) -> int:
    if not word.isdigit() or not 1 <= int(word) <= REPEATS_MAX:
        raise argparse.ArgumentTypeError(f"{word!r} is not allowed; allowed: 1 to {REPEATS_MAX}")
    return int(word)


def _estimated(workload: str, metric: str, figure: Estimate, unit: str) -> dict[str, Any]:
    rounded = {name: round(value, 6) for name, value in asdict(figure).items() if name != "count"}
    return _row(workload, metric, unit=unit, n=figure.count, **rounded)


def _row(
    workload: str,
    metric: str,
    value: float,
    unit: str,
    *,
    n: int = 1,
    low: float | None = None,
    high: float | None = None,
) -> dict[str, Any]:
    return {
        "workload": workload,
        "metric": metric,
        "value": value,
        "unit": unit,
        "n": n,
        "low": low,
        "high": high,
    }


def _line(case: Case, times: Times) -> str:
    full, spliced, copy, rotation = (
        1000 * percentile(values, 0.5) for values in (times.full, times.spliced, times.copy, times.rotation)
    )
    return (
        f"{case.name:<24} full {full:8.1f} ms, spliced {spliced:8.1f} ms ({spliced / full:.3f}), "
        f"copy {copy:6.2f} ms, rotation {rotation:6.2f} ms, computed {case.computed_share:.3f}"
    )


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


if __name__ == "__main__":
    sys.exit(main())
