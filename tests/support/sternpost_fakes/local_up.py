"""
`sternpost up` with other children, for tests that need it as a process of its own.

Run as `python local_up.py SPECIFICATIONS`, a JSON list of the fields of `ChildSpec`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from sternpost_operator.local.child import ChildSpec, Limits
from sternpost_operator.local.command import supervise
from sternpost_operator.local.progress import Progress


def main() -> int:
    """Supervise the children in the one argument, with short waits."""
    specs = [_spec(fields) for fields in json.loads(sys.argv[1])]
    limits = Limits(tick=0.05, probe_interval=0.2, restart_first=0.1)
    asyncio.run(supervise(specs, "ready: all", Progress(sys.stderr, sys.stdout), limits))
    return 0


def _spec(fields: dict[str, Any]) -> ChildSpec:
    changed = {
        "command": tuple(fields["command"]),
        "log": Path(fields["log"]),
        "waits_for": tuple(fields["waits_for"]),
    }
    return ChildSpec(**{**fields, **changed})


if __name__ == "__main__":
    sys.exit(main())
