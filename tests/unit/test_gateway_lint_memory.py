"""The memory that lint takes: that of its caps, whatever the size of the log."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from sternpost_fakes.lint_logs import chats
from sternpost_gateway.lint.cache import BLOCKS_MAX
from sternpost_gateway.lint.simulate import CacheShape

MEASURE = """
import argparse, sys
from sternpost_gateway.lint.command import COMMAND
parser = argparse.ArgumentParser()
COMMAND.add_arguments(parser)
status = COMMAND.run(parser.parse_args(sys.argv[1:]))
# The kernel's count of this program alone: `ru_maxrss` begins with what the process that forked it had.
print("peak", int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024)
sys.exit(status)
"""

BODY_CHARS = 40_000
GROWTH_MIB_MAX = 48
"""What a log of eight times the size may take on top, while the memories of lines and texts fill up."""

PEAK_MIB_MAX = 300


def peak_mib(log: Path) -> int:
    """Return the most memory that a process took for a log, in MiB."""
    command = [sys.executable, "-c", MEASURE, str(log), "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return int(done.stdout.rpartition("peak ")[2])


def write_large_log(path: Path, requests: int) -> Path:
    """Write requests with a clock in front and words that never come again, and return the path."""
    chance = random.Random(requests)
    with path.open("wb") as file:
        for number, line in enumerate(
            chats(requests, lambda n: f"Now: 2026-11-29 09:{n // 60:02}:{n % 60:02}")
        ):
            words = chance.randbytes(BODY_CHARS // 2).hex().encode()
            file.write(line.replace(b"question %d" % number, words) + b"\n")
    return path


def test_a_larger_log_takes_no_more_memory(tmp_path: Path) -> None:
    """Blocks, lines and texts are forgotten, least recently used first."""
    small = peak_mib(write_large_log(tmp_path / "small", 50))
    large = peak_mib(write_large_log(tmp_path / "large", 400))

    assert large - small < GROWTH_MIB_MAX
    assert large < PEAK_MIB_MAX


@pytest.mark.parametrize(
    ("cache_tokens", "scenarios", "expected"),
    [
        pytest.param(65_536, 2, 65_536, id="as-asked"),
        pytest.param(65_540, 2, 65_536, id="whole-blocks"),
        pytest.param(10**9, 2, BLOCKS_MAX // 2 * 16, id="capped"),
        pytest.param(10**9, 20, BLOCKS_MAX // 20 * 16, id="capped-for-many"),
        pytest.param(1, 2, 16, id="one-block-at-least"),
    ],
)
def test_all_simulated_caches_share_one_cap(cache_tokens: int, scenarios: int, expected: int) -> None:
    """The more that is tried at once, the smaller is each."""
    assert expected == CacheShape(16, cache_tokens).bounded(scenarios).cache_tokens
