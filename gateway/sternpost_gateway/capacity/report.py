"""The plan as a table, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sternpost_gateway.bench.report import table
from sternpost_gateway.capacity.sizing import Plan, Promise
from sternpost_gateway.capacity.speed import Speed

GIBIBYTE: Final = 2**30


def plan_text(today: Plan, fixed: Plan, speed: Speed, promise: Promise) -> str:
    """Return what is planned, and what the figures rest on."""
    lines = [
        f"{promise.requests_per_second:g} requests per second, {promise.answer_tokens:g} answer tokens each.",
        f"An engine computes {speed.prefill_rate:.0f} prompt tokens per second, and takes "
        f"{speed.fixed_seconds * 1000:.0f} ms for each prompt besides,",
        f"and {speed.pair_seconds * 1e9:.1f} ns for each earlier token that a computed one looks at.",
        "",
        table(("", "without", "with", "with / without"), list(_rows(today, fixed))),
        "",
        "Reuse is lint's simulation of the log; times to first token are the model's, with so many engines.",
    ]
    return "\n".join(lines)


def plan_json(today: Plan, fixed: Plan, speed: Speed, promise: Promise) -> str:
    """Return the same as JSON."""
    document = {
        "without": asdict(today),
        "with": asdict(fixed),
        "speed": {
            "prefill_rate": speed.prefill_rate,
            "fixed_seconds": speed.fixed_seconds,
            "pair_seconds": speed.pair_seconds,
        },
        "promise": asdict(promise),
    }
    return json.dumps(document, indent=1)


def _rows(today: Plan, fixed: Plan) -> list[Sequence[str]]:
    figures = (
        ("engines", float(today.engines), float(fixed.engines), "{:.0f}"),
        ("prompt tokens reused", today.reuse, fixed.reuse, "{:.1%}"),
        ("TTFT p50, ms", today.waiting.ttft_p50 * 1000, fixed.waiting.ttft_p50 * 1000, "{:.0f}"),
        ("TTFT p95, ms", today.waiting.ttft_p95 * 1000, fixed.waiting.ttft_p95 * 1000, "{:.0f}"),
        ("busy", today.waiting.utilisation, fixed.waiting.utilisation, "{:.0%}"),
        ("prefixes held, GiB", today.prefix_bytes / GIBIBYTE, fixed.prefix_bytes / GIBIBYTE, "{:.2f}"),
        ("suffix store each, GiB", today.suffix_bytes / GIBIBYTE, fixed.suffix_bytes / GIBIBYTE, "{:.3f}"),
        ("cost per month", today.cost, fixed.cost, "{:,.0f}"),
    )
    return [
        (name, form.format(one), form.format(other), f"{other / one:.2f}" if one else "")
        for name, one, other, form in figures
    ]
