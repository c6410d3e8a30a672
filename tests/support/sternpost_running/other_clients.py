"""Clients of other projects, each in a process of the environment that they share."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

SCRIPTS: Final = Path(__file__).parents[1] / "clients"
CLIENT_SECONDS_MAX: Final = 300.0
"""Such a client takes a minute to load on a busy machine."""


def use_client(script: str, base_url: str, model: str) -> dict[str, Any]:
    """Run a script of `tests/support/clients` and return what it got; skips where they are not installed."""
    # What these clients would fetch at their start, such as tables of prices, they have with them.
    environment = {"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [str(_python()), str(SCRIPTS / script), base_url, model],
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS_MAX,
        env=environment,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _python() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = cache / "sternpost" / "clients" / "bin" / "python"
    if not python.exists():
        pytest.skip("LiteLLM and LangChain are not installed: run tests/support/clients/install.sh")
    return python
