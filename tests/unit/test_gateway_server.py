"""How the gateway's process is set up for many requests at once."""

from __future__ import annotations

import subprocess
import sys

from sternpost_gateway.server import YOUNG_OBJECTS

SCRIPT = """
import gc
from sternpost_gateway.server import calm_collector
calm_collector()
print(gc.get_threshold()[0], gc.isenabled(), gc.get_freeze_count() > 0)
"""


def test_the_collector_looks_rarely_and_passes_over_what_was_made_at_the_start() -> None:
    """It stays on: libraries may leave cycles behind, and what they hold has to go some day."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    assert [str(YOUNG_OBJECTS), "True", "True"] == ran.stdout.split()
