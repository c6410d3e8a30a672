"""Canonical bytes and ids are equal in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).parents[1] / "cases"


def digest(seed: str) -> str:
    """Return what another process, with this seed of Python's hashes, makes of all cases."""
    command = [sys.executable, "-m", "sternpost_fakes.case_digest", *map(str, sorted(CASES.glob("*.json")))]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_seeds_and_processes_change_nothing() -> None:
    """Other seeds, and another process with a seed of its own, send the same bytes and name the same ids."""
    digests = {digest(seed) for seed in ("0", "1", "random", "random")}

    assert 1 == len(digests) and 64 == len(digests.pop().strip())
