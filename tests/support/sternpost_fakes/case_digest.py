"""Print a digest of what becomes of the requests of all cases: `python -m sternpost_fakes.case_digest`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sternpost_core.errors import BodyError
from sternpost_fakes.cases import CASES, Request, case
from sternpost_fakes.clock import FakeClock
from sternpost_fakes.gateway_scene import ENGINE, READY, SECRET, Scene, policy
from sternpost_gateway.compose import compose
from sternpost_gateway.plan import plan
from sternpost_gateway.segment import segment
from sternpost_gateway.tails import Tails
from sternpost_gateway.tool_pins import ToolPins
from sternpost_gateway.versions import Versions
from sternpost_gateway.volatile import VolatileLines

PROMPT = {
    "canonicalize": "Pin",
    "layout": "FixedTail",
    "tail": {"source": "LastSystemMessage"},
    "volatile": [
        {"name": "clock", "detect": "Timestamp", "action": "Relocate"},
        {"name": "date", "detect": "Date", "action": "Relocate"},
        {"name": "billing", "detect": "BillingHeader", "action": "Strip"},
    ],
}


def digest() -> str:
    """Return the digest of the bodies, ids and findings of all requests of all cases, in order."""
    hashed = hashlib.sha256()
    pins, lines, versions = ToolPins(), VolatileLines(), Versions(None)
    for path in sorted(CASES.glob("*.json")):
        for request in case(path.stem):
            for part in _outcome(request, pins, lines, versions):
                hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()


def _outcome(request: Request, pins: ToolPins, lines: VolatileLines, versions: Versions) -> Iterator[bytes]:
    headers = tuple((name.encode(), value.encode()) for name, value in request.headers.items())
    scene = Scene(body={}, raw=request.body, headers=headers, policy=policy(match={}, prompt=PROMPT))
    try:
        canonicalized = scene.canonicalize(pins, lines)
    except BodyError as error:
        yield str(error).encode()
        return
    planned = plan(segment(canonicalized), SECRET, versions)
    composed = compose(planned, ENGINE, READY, Tails(FakeClock()))
    yield composed.body or b""
    yield repr((canonicalized.findings, canonicalized.tools)).encode()
    yield repr((planned.segmented.chat, planned.conversation, planned.salt, planned.versions)).encode()


if __name__ == "__main__":
    print(digest())
