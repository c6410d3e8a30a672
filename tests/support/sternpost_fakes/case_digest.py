"""Print a digest of what becomes of requests: `python -m sternpost_fakes.case_digest FILE...`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from sternpost_fakes.gateway_scene import SECRET, Scene, policy
from sternpost_gateway.plan import plan
from sternpost_gateway.segment import segment
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines

PROMPT = {
    "canonicalize": "Pin",
    "volatile": [
        {"name": "clock", "detect": "Timestamp", "action": "Relocate"},
        {"name": "date", "detect": "Date", "action": "Relocate"},
        {"name": "billing", "detect": "BillingHeader", "action": "Strip"},
    ],
}


def digest(paths: list[Path]) -> str:
    """Return the digest of the canonical bodies, ids and findings of all requests in files of cases."""
    hashed = hashlib.sha256()
    pins, lines, versions = ToolPins(), VolatileLines(), Versions(None)
    chosen = policy(match={}, prompt=PROMPT, suffixCache=None)
    for path in paths:
        for request in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            raw = request.get("body_text") or json.dumps(request["body"])
            scene = Scene(body={}, raw=raw.encode(), policy=chosen)
            canonicalized = scene.canonicalize(pins, lines)
            planned = plan(segment(canonicalized), SECRET, versions)
            assert canonicalized.document is not None
            hashed.update(canonicalized.document.body)
            hashed.update(repr((canonicalized.findings, canonicalized.tools)).encode())
            hashed.update(repr((planned.segmented.chat, planned.conversation, planned.versions)).encode())
    return hashed.hexdigest()


if __name__ == "__main__":
    print(digest([Path(argument) for argument in sys.argv[1:]]))
