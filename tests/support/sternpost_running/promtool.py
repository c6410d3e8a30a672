"""Prometheus' own programs."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

INSTALL: Final = Path(__file__).parents[1] / "prometheus" / "install.sh"
PROMTOOL_SECONDS_MAX: Final = 100.0


@lru_cache(maxsize=1)
def prometheus_folder() -> Path:
    """Return the folder of prometheus and promtool."""
    done = subprocess.run([INSTALL], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; what it says is in the result, and so is its status."""
    command = [prometheus_folder() / "promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROMTOOL_SECONDS_MAX, check=False)
